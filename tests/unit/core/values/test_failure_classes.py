"""Failures have names: the words of torch, CUDA, NCCL, Triton and the kernel, as users report them."""

from __future__ import annotations

import errno
import re
import signal

import pytest

from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.failure_classes import (
    ECHOES,
    FAILURES,
    NextStep,
    codes_of,
    name_error,
    name_last_words,
    name_signal,
    name_text,
)
from frenzy.core.values.run_files import EXIT_BY_REASON, REASON_BY_EXIT

TRAILER = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
TEXTS = [
    (
        "CUDA_OUT_OF_MEMORY",
        "CUDA out of memory. Tried to allocate 10.01 GiB (GPU 0; 14.75 GiB total capacity; 10.12 GiB already",
    ),
    (
        "CUDA_OUT_OF_MEMORY",
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 1 MiB is",
    ),
    ("CUDA_OUT_OF_MEMORY", "CUDA error: out of memory" + TRAILER),
    ("CUDA_OUT_OF_MEMORY", "CUDA driver error: out of memory"),
    ("CUDA_OUT_OF_MEMORY", "cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCStorage.cu:58"),
    ("CUDA_OUT_OF_MEMORY", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("CUDA_OUT_OF_MEMORY", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    ("CUDA_OUT_OF_MEMORY", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    ("CUDA_OUT_OF_MEMORY", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ("CUDA_OUT_OF_MEMORY", "ng30903:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'"),
    ("CUDA_OUT_OF_MEMORY", "include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes"),
    (
        "CUDA_OUT_OF_MEMORY",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 2 'out of memory'",
    ),
    ("CUDA_OUT_OF_MEMORY", "Triton Error [CUDA]: out of memory"),
    ("CUDA_OUT_OF_MEMORY", "Error out of memory at line 380 in file /mmfs1/bitsandbytes/csrc/pythonInterface.c"),
    (
        "KERNEL_TOO_LARGE",
        "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes may help.",
    ),
    ("KERNEL_TOO_LARGE", "CUDA error: too many resources requested for launch" + TRAILER),
    ("GPU_FAULT", "CUDA error: uncorrectable ECC error encountered" + TRAILER),
    ("GPU_FAULT", "cuda runtime error (39) : uncorrectable ECC error encountered at THCCachingHostAllocator.cpp:265"),
    ("GPU_FAULT", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."),
    ("GPU_FAULT", "NVRM: Xid (PCI:0000:c1:00): 94, pid=98, Contained: SM (0x1)."),
    ("GPU_FAULT", "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system"),
    ("ILLEGAL_ACCESS", "NVRM: Xid (PCI:0000:3b:00): 31, pid=77, Ch 00000010, MMU Fault: ENGINE GRAPHICS"),
    ("ILLEGAL_ACCESS", "CUDA error: an illegal memory access was encountered" + TRAILER),
    ("ILLEGAL_ACCESS", "CUDA error: misaligned address"),
    ("ILLEGAL_ACCESS", "CUDA error: unspecified launch failure"),
    ("DEVICE_ASSERT", "CUDA error: device-side assert triggered" + TRAILER),
    (
        "DEVICE_ASSERT",
        "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [184,0,0], thread: [32,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
    ),
    (
        "DRIVER_TOO_OLD",
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
    ),
    ("DRIVER_TOO_OLD", "CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    ("DRIVER_TOO_OLD", "CUDA error: the provided PTX was compiled with an unsupported toolchain."),
    ("DRIVER_TOO_OLD", "Failed to initialize NVML: Driver/library version mismatch"),
    ("GPU_NOT_SUPPORTED", "CUDA error: no kernel image is available for execution on the device" + TRAILER),
    ("GPU_NOT_SUPPORTED", "FlashAttention only supports Ampere GPUs or newer."),
    ("GPU_UNAVAILABLE", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("GPU_UNAVAILABLE", "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    (
        "GPU_UNAVAILABLE",
        "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ),
    (
        "GPU_UNAVAILABLE",
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 999 'unknown error'",
    ),
    (
        "SHARED_MEMORY_FULL",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ),
    (
        "SHARED_MEMORY_FULL",
        "misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes",
    ),
    (
        "SHARED_MEMORY_FULL",
        "misc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 963), "
        "error: No space left on device (28)",
    ),
    ("SHARED_MEMORY_FULL", "DataLoader worker (pid 1371) is killed by signal: Bus error."),
    (
        "HOST_OUT_OF_MEMORY",
        "[enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory: you tried to",
    ),
    ("HOST_OUT_OF_MEMORY", "terminate called after throwing an instance of 'std::bad_alloc'"),
    ("HOST_OUT_OF_MEMORY", "DataLoader worker (pid 28661) is killed by signal: Killed."),
    ("HOST_OUT_OF_MEMORY", "OSError: [Errno 12] Cannot allocate memory"),
    ("DISK_FULL", "[enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0: No space left on device"),
    ("DISK_FULL", "OSError: [Errno 122] Disk quota exceeded: '/home/me/model.safetensors'"),
    (
        "COLLECTIVE_TIMEOUT",
        "[rank4]:[E321 02:07:08.414640780 ProcessGroupNCCL.cpp:607] [Rank 4] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
        "ran for 600067 milliseconds before timing out.",
    ),
    ("COLLECTIVE_TIMEOUT", "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    ("COLLECTIVE_TIMEOUT", "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"),
    (
        "COLLECTIVE_TIMEOUT",
        "The client socket has timed out after 600000ms while trying to connect to (10.0.0.7, 29500).",
    ),
    (
        "COLLECTIVE_FAILED",
        "NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\nncclRemoteError: A call "
        "failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nNET/IB : Got "
        "completion from peer 11.214.147.122<39138> with error 12, opcode 0, len 0, vendor err 129",
    ),
    (
        "COLLECTIVE_FAILED",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:10895",
    ),
    ("COLLECTIVE_FAILED", "gloo/transport/tcp/pair.cc:589] Read error [192.168.70.92]:25266: Connection reset by peer"),
    ("COLLECTIVE_FAILED", "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node2<42830>"),
]


@pytest.mark.parametrize(("code", "text"), TEXTS)
def test_texts_of_failures_have_their_names(code: str, text: str) -> None:
    named = name_text(f"2026-11-23 10:00:00 loss 2.1\n{text}")
    assert named is not None
    assert named.failure.code == code
    assert named.line
    assert "\n" not in named.line


@pytest.mark.parametrize(
    "text",
    [
        "step 12 of 3000, loss 2.31, memory 70 of 80 GiB",
        "KeyError: 'input_ids'",
        "NCCL INFO Connected all trees",
        "UserWarning: expandable_segments not supported on this platform",
        "The size of tensor a (128) must match the size of tensor b (64) at non-singleton dimension 1",
        "HTTPError: 503 Server Error",
    ],
)
def test_other_words_have_none(text: str) -> None:
    assert name_text(text) is None
    assert name_error(RuntimeError(text)) is None


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutOfMemoryError("Allocation on device 0 would exceed allowed memory."), ReasonCode.CUDA_OUT_OF_MEMORY),
        (MemoryError(), ReasonCode.HOST_OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "x"), ReasonCode.HOST_OUT_OF_MEMORY),
        (OSError(errno.ENOSPC, "x", "/scratch/a"), ReasonCode.DISK_FULL),
        (OSError(errno.ENOSPC, "No space left on device", "/dev/shm/sem.x"), ReasonCode.SHARED_MEMORY_FULL),  # noqa: S108
    ],
)
def test_exceptions_say_it_by_their_type_too(error: BaseException, code: ReasonCode) -> None:
    named = name_error(error)
    assert named is not None
    assert named.failure.code is code


def test_what_an_error_comes_from_counts_and_a_cause_before_an_echo() -> None:
    def raised() -> BaseException:
        try:
            try:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
            except RuntimeError as error:
                raise RuntimeError("Connection closed by peer [10.0.0.1]:1") from error
        except RuntimeError as error:
            return error

    named = name_error(raised())
    assert named is not None
    assert named.failure.code is ReasonCode.CUDA_OUT_OF_MEMORY


STACK = "\n".join(f"frame #{number}: at::native::copy_kernel(at::TensorIterator&)" for number in range(40))
ABORTED = (
    f"terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address\n{STACK}"
)


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("CUDA out of memory, retrying\n" + "step\n" * 30, None),
        (f"CUDA out of memory, retrying\n{ABORTED}", ReasonCode.ILLEGAL_ACCESS),
        ("uncorrectable ECC error\nNo space left on device", ReasonCode.DISK_FULL),
        ("uncorrectable ECC error\nConnection closed by peer", ReasonCode.GPU_FAULT),
        ("step\nConnection closed by peer", ReasonCode.COLLECTIVE_FAILED),
        ("/dev/shm/nccl-WU88OE (size 963), error: No space left on device (28)", ReasonCode.SHARED_MEMORY_FULL),
        ("", None),
    ],
)
def test_a_death_is_named_by_what_was_said_last(log: str, code: ReasonCode | None) -> None:
    named = name_last_words(log)
    assert (named and named.failure.code) == code


def handled(older: Exception, newer: Exception) -> BaseException:
    """``newer``, raised while ``older`` was handled."""
    try:
        try:
            raise older
        except Exception:
            raise newer  # noqa: B904  # without a cause
    except Exception as error:
        return error


def test_a_failure_that_was_handled_does_not_name_a_later_one() -> None:
    probe = RuntimeError("No CUDA GPUs are available")
    assert name_error(handled(probe, ValueError("column missing"))) is None
    full = name_error(handled(probe, RuntimeError("CUDA out of memory")))
    assert full is not None
    assert full.failure.code is ReasonCode.CUDA_OUT_OF_MEMORY


def test_a_failure_whose_handling_met_only_lost_peers_is_still_the_one_that_explains() -> None:
    named = name_error(
        handled(RuntimeError("CUDA out of memory"), RuntimeError("Connection closed by peer [10.0.0.1]"))
    )
    assert named is not None
    assert named.failure.code is ReasonCode.CUDA_OUT_OF_MEMORY


@pytest.mark.parametrize(
    "text", ["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", "device-side assert triggered"]
)
def test_only_errors_of_drivers_and_libraries_cost_a_node_or_the_run(text: str) -> None:
    assert name_error(KeyError(text)) is None
    assert name_error(ValueError(text)) is None
    assert name_error(type("DeferredCudaCallError", (Exception,), {"__module__": "torch.cuda"})(text)) is not None
    assert name_error(OSError(text)) is not None


def test_a_handle_that_cannot_be_made_is_no_want_of_memory_where_the_device_has_room() -> None:
    text = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    assert name_text(text, device_is_full=True) is not None
    assert name_text(text, device_is_full=False) is None


def test_a_bus_error_says_it_by_its_signal() -> None:
    found = name_signal(signal.SIGBUS)
    assert found is not None
    assert found.code is ReasonCode.SHARED_MEMORY_FULL
    assert name_signal(signal.SIGSEGV) is None


def test_each_failure_stands_once_and_has_an_exit_code_and_a_sentence() -> None:
    codes = [each.code for each in FAILURES]
    assert len(codes) == len(set(codes))
    assert all(REASON_BY_EXIT[EXIT_BY_REASON[code]] is code for code in codes)
    assert all(code.sentence for code in codes)
    assert codes_of(*NextStep) == set(codes)
    assert codes_of(NextStep.AGAIN) >= ECHOES


def test_each_pattern_of_the_table_is_a_pattern() -> None:
    assert [re.compile(text).pattern == text for each in FAILURES for text in (*each.texts, *each.texts_when_full)]
