"""The kernel's account of a process's memory.

*Data memory* is VmData plus the stack: private writable mappings, the very quantity RLIMIT_DATA
bounds (up to the stack), whether the pages were touched or not.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = resource.getpagesize()
_STATM_BYTES: Final = 128
_DATA_FIELD: Final = 5
_RESIDENT_FIELD: Final = 1
# In a container its own group is mounted at the root.
_OOM_COUNTERS: Final = (
    ("/sys/fs/cgroup/memory.events", "oom_kill"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
    ("/proc/vmstat", "oom_kill"),
)


class ProcessMemory:
    """Reads of one process's memory through an open ``/proc/<pid>/statm``, about a microsecond each."""

    def __init__(self, pid: int | None = None) -> None:
        self._statm = os.open(f"/proc/{pid or 'self'}/statm", os.O_RDONLY | os.O_CLOEXEC)

    def data_bytes(self) -> int:
        """Data memory now. Raises OSError when the process is gone."""
        fields = os.pread(self._statm, _STATM_BYTES, 0).split()
        if len(fields) <= _DATA_FIELD:
            raise ProcessLookupError("the process has ended")
        return int(fields[_DATA_FIELD]) * PAGE_BYTES

    def resident_bytes(self) -> int:
        return int(os.pread(self._statm, _STATM_BYTES, 0).split()[_RESIDENT_FIELD]) * PAGE_BYTES

    def close(self) -> None:
        os.close(self._statm)


def num_oom_kills() -> int:
    """Processes the kernel has killed for their memory: of this control group if that is told, else of the machine."""
    for place, field in _OOM_COUNTERS:
        try:
            lines = Path(place).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        counts = [line.split()[1] for line in lines if line.split()[:1] == [field]]
        if counts:
            return int(counts[0])
    return 0


def status_bytes(*names: str) -> tuple[int, ...]:
    """Fields of this process's status that the kernel gives in kB, such as VmPeak, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123  # a Path costs more than the read
        fields = dict(line.split(":", 1) for line in file)
    return tuple(int(fields[name].split()[0]) * 1024 for name in names)
