"""Callbacks that the proof puts into the training loop: a profile, and an allocation that no card can give."""

from __future__ import annotations

import ctypes
import json
import mmap
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from frenzy.trainer.callbacks import Callback, StepContext

# More than any card has, and than a virtual GPU's limit lets a process have.
_TOO_MUCH_BYTES: Final = 1 << 46


class StepProfile(Callback):
    """Profiles step ``step`` and writes seconds by kernel, or by operation where there is no card, into ``file``."""

    def __init__(self, file: str, step: int) -> None:
        self._file, self._step = Path(file), step
        self._profile: profile | None = None

    def on_step_end(self, context: StepContext, model: torch.nn.Module) -> None:
        if context.step == self._step - 1:
            on_card = torch.cuda.is_available()
            self._profile = profile(activities=[ProfilerActivity.CUDA if on_card else ProfilerActivity.CPU])
            self._profile.start()
        elif self._profile is not None:
            self._profile.stop()
            self._file.write_text(json.dumps(_seconds_by_name(self._profile)), encoding="utf-8")
            self._profile = None


def _seconds_by_name(profiled: profile) -> dict[str, float]:
    events: Any = profiled.key_averages()
    on_card = torch.cuda.is_available()
    return {each.key: (each.self_device_time_total if on_card else each.self_cpu_time_total) / 1e6 for each in events}


class RawAllocation(Callback):
    """After step ``step`` asks the driver, past torch's allocator, for more than there is.

    CUDA keeps the failure for whoever asks next, which is the check after torch's next kernel: so do libraries
    fail that allocate for themselves. Without a card the process asks the kernel.
    """

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, context: StepContext, model: torch.nn.Module) -> None:
        if context.step != self._step:
            return
        if torch.cuda.is_available():
            place = ctypes.c_void_p()
            _cuda_runtime().cudaMalloc(ctypes.byref(place), ctypes.c_size_t(_TOO_MUCH_BYTES))
        else:
            mmap.mmap(-1, _TOO_MUCH_BYTES)


def _cuda_runtime() -> ctypes.CDLL:
    """The very library that torch has loaded: another copy would keep its failure for itself."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return ctypes.CDLL(next(line.split()[-1] for line in lines if "libcudart" in line))
