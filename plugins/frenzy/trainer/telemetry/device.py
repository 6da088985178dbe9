"""The device of one rank: how its memory is bounded and measured, how its speed is held.

A real GPU is torch's and the driver's business; a virtual GPU is this process's data memory under
a limit of the kernel, and a floor under the time of a step.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from frenzy.core.values.hardware import GpuType
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.trainer.telemetry.nvml import NvmlReader
from frenzy.trainer.telemetry.process_memory import ProcessMemory, status_bytes
from frenzy.trainer.telemetry.shared_progress import SharedProgress

# Making handles of cuBLAS or cuDNN, which takes up to hundreds of MiB, fails with a code that also means other things.
_FULL_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """One step's memory, in the terms of StepRecord."""

    peaks: PeakMemory
    capacity_bytes: int
    host_rss_bytes: int
    num_alloc_retries: int = 0
    num_ooms: int = 0
    utilisation: float | None = None
    clock_reasons: int | None = None
    ecc_errors: int | None = None


class Device(Protocol):
    """What the training loop asks of the GPU it runs on."""

    torch_device: torch.device

    def enter(self) -> None:
        """Take the baseline and bound the memory; called right before the model is made."""
        ...

    def read_step(self) -> MemoryReading:
        """Peaks since the last call."""
        ...

    def host_work(self) -> Any:
        """Context in which memory is the host's, not the device's (saving, exporting)."""
        ...

    def throttle(self, *, started_s: float, flops: float) -> float:
        """Wait until a step of ``flops`` may end; the seconds waited."""
        ...

    def is_full(self) -> bool | None:
        """Whether next to no memory is left, asked after a failure; None where nobody knows."""
        ...


class CudaDevice:
    """A real GPU: torch's caching allocator measures, NVML tells the device's own figures."""

    def __init__(self, gpu: GpuType, local_rank: int) -> None:
        torch.cuda.set_device(local_rank)
        self.torch_device = torch.device("cuda", local_rank)
        self._nvml = NvmlReader.open(str(torch.cuda.get_device_properties(local_rank).uuid))
        self._gpu = gpu
        self._host = ProcessMemory()

    def enter(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def read_step(self) -> MemoryReading:
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        device = self._nvml.read() if self._nvml else None
        reading = MemoryReading(
            peaks=PeakMemory(
                allocated_bytes=stats["allocated_bytes.all.peak"],
                reserved_bytes=stats["reserved_bytes.all.peak"],
                device_used_bytes=device.used_bytes if device else total - free,
            ),
            capacity_bytes=min(total, self._gpu.memory_bytes),
            host_rss_bytes=self._host.resident_bytes(),
            num_alloc_retries=stats.get("num_alloc_retries", 0),
            num_ooms=stats.get("num_ooms", 0),
            utilisation=device.utilisation if device else None,
            clock_reasons=device.clock_reasons if device else None,
            ecc_errors=device.ecc_errors if device else None,
        )
        torch.cuda.reset_peak_memory_stats()
        return reading

    @contextmanager
    def host_work(self) -> Iterator[None]:
        yield

    def throttle(self, *, started_s: float, flops: float) -> float:
        return 0.0

    def is_full(self) -> bool | None:
        try:
            free, total = torch.cuda.mem_get_info()
        except Exception:  # of a device that a failed kernel left unusable
            return None
        return bool(free < _FULL_SHARE * total)


class VirtualDevice:
    """A process as a GPU: RLIMIT_DATA bounds it, the launcher and the kernel measure it.

    Usage counts from the baseline: the data memory right before the model was made, after the
    libraries, the process group and a first forward and backward pass had taken theirs. The
    launcher samples it about every millisecond; the kernel's own high-water mark, which misses
    nothing but never falls, corrects the sample in every step that raised it.
    """

    torch_device = torch.device("cpu")

    def __init__(self, gpu: GpuType, board: SharedProgress, rank: int) -> None:
        self._gpu, self._board, self._rank = gpu, board, rank
        self._memory = ProcessMemory()
        self._baseline_bytes = 0
        self._other_bytes = 0
        self._high_water_bytes = 0
        self._hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]

    def enter(self) -> None:
        (data, virtual, high) = status_bytes("VmData", "VmSize", "VmPeak")
        self._baseline_bytes = self._memory.data_bytes()
        self._limit_bytes = data + self._gpu.memory_bytes
        self._other_bytes = virtual - self._baseline_bytes
        self._high_water_bytes = high
        self._bound()
        self._board.take_peak(self._rank)
        self._board.set_measuring(self._rank, True)

    def read_step(self) -> MemoryReading:
        used = self._memory.data_bytes() - self._baseline_bytes
        peak = max(used, self._board.take_peak(self._rank) - self._baseline_bytes, self._raised_high_water())
        return MemoryReading(
            peaks=PeakMemory(allocated_bytes=peak, reserved_bytes=peak, device_used_bytes=max(0, used)),
            capacity_bytes=self._gpu.memory_bytes,
            host_rss_bytes=self._memory.resident_bytes(),
        )

    @contextmanager
    def host_work(self) -> Iterator[None]:
        self._board.set_measuring(self._rank, False)
        self.unbound()
        try:
            yield
        finally:
            self._bound()
            self._high_water_bytes = status_bytes("VmPeak")[0]
            self._board.set_measuring(self._rank, True)

    def unbound(self) -> None:
        """Lift the limit, so that a failure can be reported."""
        resource.setrlimit(resource.RLIMIT_DATA, (self._hard_limit, self._hard_limit))

    def throttle(self, *, started_s: float, flops: float) -> float:
        rest = started_s + flops / self._gpu.flops_per_s - time.monotonic()
        if rest <= 0:
            return 0.0
        time.sleep(rest)
        return rest

    def is_full(self) -> bool | None:
        return None

    def _bound(self) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (self._limit_bytes, self._hard_limit))

    def _raised_high_water(self) -> int:
        """Peak of this step if it set a new record of the process, else 0."""
        high, virtual = status_bytes("VmPeak", "VmSize")
        record = high > self._high_water_bytes
        self._high_water_bytes = high
        # Mappings other than data (files, libraries) are in the record too; they hardly change.
        other = virtual - self._memory.data_bytes()
        return high - other - self._baseline_bytes if record else 0
