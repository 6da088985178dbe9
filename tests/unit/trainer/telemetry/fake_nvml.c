/* Plays NVML with one GPU. With FAKE_NVML=old it lacks what an old driver lacks. */
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
static int old(void) { const char *mode = getenv("FAKE_NVML"); return mode && !strcmp(mode, "old"); }
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned int flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "fake"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strcmp(uuid, "GPU-1234")) return NOT_FOUND;
    *device = (void *)uuid;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    (void)device;
    memory->total = 80ULL << 30; memory->used = 33ULL << 30; memory->free = 47ULL << 30;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates) {
    (void)device;
    if (old()) return NOT_SUPPORTED;
    rates->gpu = 87; rates->memory = 40;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    (void)device; *reasons = 4; return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count) {
    (void)device; (void)counter;
    if (old() || kind != 1) return NOT_SUPPORTED;
    *count = 2;
    return SUCCESS;
}
