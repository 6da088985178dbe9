"""Choosing physical GPUs on this machine, where no cluster hands them out.

The ledger counts slots; which devices they are is decided here, when the workers start. A lock
file for each device is held by the supervisor and every process that inherits it, so a device is
free exactly when the last of them is gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frenzy.core.values.units import counted

_SAME_MEMORY: Final = 0.1
_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU as the driver lists it. is_busy: some process computes on it."""

    index: int
    uuid: str
    memory_bytes: int
    is_busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClaim:
    """Devices by their index in PCI order, and the open locks that hold them."""

    indices: tuple[int, ...]
    lock_fds: tuple[int, ...]


def claim_gpus(
    num_gpus: int,
    memory_bytes: int,
    *,
    locks: Path,
    visible: str | None,
    cancelled: Callable[[], bool],
    devices: Callable[[], Iterable[Device]] | None = None,
    patience_s: float = _PATIENCE_S,
) -> GpuClaim:
    """Lock ``num_gpus`` devices with about ``memory_bytes`` each; idle ones first.

    locks: folder of the lock files, the same for all installations on this machine.
    visible: CUDA_VISIBLE_DEVICES of this process, if set. Waits up to ``patience_s`` for devices of
    workers that are still dying. Raises OSError when there are too few.
    """
    list_devices = devices or nvml_devices
    deadline_s = time.monotonic() + patience_s
    while True:
        fitting = [each for each in list_devices() if _fits(each, memory_bytes) and _is_visible(each, visible)]
        fitting.sort(key=lambda each: (each.is_busy, each.index))
        claim = _try_claim(fitting, num_gpus, locks)
        if claim is not None:
            return claim
        if cancelled() or len(fitting) < num_gpus or time.monotonic() >= deadline_s:
            wanted = f"{counted(num_gpus, 'GPU')} with {memory_bytes} bytes"
            detail = f"Wanted: {wanted}; this machine has {len(fitting)}, not all free"
            raise OSError(errno.ENODEV, detail)
        time.sleep(_POLL_S)


def nvml_devices() -> tuple[Device, ...]:
    """The devices that NVML lists. Raises OSError without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return tuple(_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise OSError(errno.ENODEV, f"no NVIDIA driver answers: {error}") from error


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        is_busy=bool(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    )


def _fits(device: Device, memory_bytes: int) -> bool:
    return abs(device.memory_bytes - memory_bytes) <= _SAME_MEMORY * memory_bytes


def _is_visible(device: Device, visible: str | None) -> bool:
    if visible is None:
        return True
    wanted = [each.strip() for each in visible.split(",") if each.strip()]
    return any(each == str(device.index) or (not each.isdigit() and device.uuid.startswith(each)) for each in wanted)


def _try_claim(devices: Iterable[Device], num_gpus: int, folder: Path) -> GpuClaim | None:
    """All or nothing; one claim at a time on this machine."""
    folder.mkdir(exist_ok=True)
    held: list[tuple[int, int]] = []
    with (folder / "claim.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for device in devices:
            fd = _try_lock(folder / f"{device.uuid}.lock") if len(held) < num_gpus else None
            if fd is not None:
                held.append((device.index, fd))
        if len(held) == num_gpus:
            held.sort()
            return GpuClaim(indices=tuple(index for index, _ in held), lock_fds=tuple(fd for _, fd in held))
        for _, fd in held:
            os.close(fd)
    return None


def _try_lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
