"""The driver's own figures of one GPU, through NVML; None where a card or driver has no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """used_bytes counts all processes of the device; utilisation is 0..1; ecc_errors uncorrected."""

    used_bytes: int
    utilisation: float | None
    clock_reasons: int | None
    ecc_errors: int | None


class NvmlReader:
    """Reads one device. ``library`` is the module ``pynvml`` or anything of its form."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, uuid: str) -> Self | None:
        """The reader of the GPU with that UUID (with or without ``GPU-``); None without a driver."""
        try:
            import pynvml

            pynvml.nvmlInit()
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
        except Exception:  # a missing driver shows itself in many ways, and training goes on without
            return None

    def read(self) -> NvmlReading | None:
        """The device now; None when the driver does not answer."""
        memory = self._ask(lambda nvml: nvml.nvmlDeviceGetMemoryInfo(self._handle))
        if memory is None:
            return None
        utilisation = self._ask(lambda nvml: nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        return NvmlReading(
            used_bytes=int(memory.used),
            utilisation=None if utilisation is None else float(utilisation) / 100,
            clock_reasons=self._ask(lambda nvml: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))),
            ecc_errors=self._ask(self._uncorrected),
        )

    def _uncorrected(self, nvml: Any) -> int:
        return int(
            nvml.nvmlDeviceGetTotalEccErrors(
                self._handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self._library)
        except self._library.NVMLError:
            return None
