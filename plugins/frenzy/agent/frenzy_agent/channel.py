"""Lines of JSON to the launcher of this machine, and a file whose presence asks to stop."""

from __future__ import annotations

import atexit
import importlib
import importlib.metadata
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_STATM_DATA = 5
# What the trainer ends with when its data or settings are wrong.
_BAD_CONFIG_OR_DATA = 99
# Of a reason; the launcher passes over lines that are too long.
_LONGEST_REASON = 500
# Whose releases decide what a step takes.
_LIBRARIES = ("transformers", "deepspeed", "torch")


class Channel:
    """One rank's side. ``variables`` are the environment; without Frenzy's, nothing is said."""

    def __init__(self, variables: Any) -> None:
        self._reports = variables.get("FRENZY_AGENT_REPORTS")
        self._stop_file = variables.get("FRENZY_AGENT_STOP_FILE")
        self.resume_from = variables.get("FRENZY_RESUME_FROM") or None
        self.resume_step = int(variables.get("FRENZY_RESUME_STEP") or 0)
        self._last_step = self.resume_step
        self._stepped_s = time.monotonic()
        self._stops = False
        self._is_on_cpu = variables.get("FRENZY_DEVICE") == "cpu"
        if self.is_active:
            if self._is_on_cpu:
                _load_deepspeed()
            self.spare_compiler()
            releases = _releases()  # what it takes to look is none of the script's memory
            self._say("hello", releases=releases, data_bytes=_data_bytes() if "torch" in sys.modules else None)

    @property
    def is_active(self) -> bool:
        return bool(self._reports)

    def spare_compiler(self) -> None:
        """DeepSpeed's collectives for a CPU are compiled at their first use, which takes minutes and a compiler."""
        ops = getattr(sys.modules.get("deepspeed"), "ops", None)
        if self._is_on_cpu and ops is not None:
            ops.__compatible_ops__["deepspeed_shm_comm"] = False

    def step(self, number: int, *, loss: Any = None, **known: Any) -> None:
        if not self.is_active or number <= self._last_step:
            return
        now = time.monotonic()
        taken, self._stepped_s, self._last_step = now - self._stepped_s, now, number
        numbers = {name: _number(each) for name, each in {"loss": loss, **known}.items()}
        self._say("step", step=number, step_time_s=taken, **numbers, **_card_memory())

    def should_stop(self) -> bool:
        if self.is_active and not self._stops and _agreed(Path(self._stop_file).exists()):
            self._stops = True
            self._say("stopping", step=self._last_step)
        return self._stops

    def checkpointed(self, path: str, number: int | None = None) -> None:
        if self.is_active:
            place = path if "://" in path else str(Path(path).absolute())
            self._say("checkpoint", step=self._last_step if number is None else int(number), path=place)
            self._stepped_s = time.monotonic()

    def refuse(self, why: str) -> NoReturn:
        """The exit code counts because the reason was said."""
        if self.is_active:
            self._say("refused", why=why[:_LONGEST_REASON] or "It gave no reason.")
        sys.stderr.write(f"{why}\n")
        raise SystemExit(_BAD_CONFIG_OR_DATA)

    def leave(self) -> None:
        """The script has reached its end: what its libraries do while the interpreter goes is no failure of it."""
        if not hasattr(sys, "last_value"):
            with suppress(OSError):
                self._say("ended")

    def _say(self, kind: str, **content: Any) -> None:
        line = json.dumps({"kind": kind, **content}, allow_nan=False)
        with Path(self._reports).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _number(value: Any) -> float | None:
    """A number as it is, a tensor of one element as one; what is not finite is none."""
    if value is None:
        return None
    number = float(value)
    return number if abs(number) < float("inf") else None


def _agreed(asked: bool) -> bool:
    """Whether any rank was asked: all of them stop at the same step."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return asked
    torch = sys.modules["torch"]
    on_card = distributed.get_backend() == "nccl"
    flag = torch.tensor([float(asked)], device="cuda" if on_card else "cpu")
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item())


def _card_memory() -> dict[str, int]:
    """What torch's allocator held at most since the last step, and the device's own figures."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return {}
    stats, (free, total) = cuda.memory_stats(), cuda.mem_get_info()
    cuda.reset_peak_memory_stats()
    return {
        "allocated_bytes": stats["allocated_bytes.all.peak"],
        "reserved_bytes": stats["reserved_bytes.all.peak"],
        "device_used_bytes": total - free,
        "device_bytes": total,
        "num_alloc_retries": stats.get("num_alloc_retries", 0),
        "num_ooms": stats.get("num_ooms", 0),
    }


def _releases() -> dict[str, str]:
    """Of the libraries that are installed, as their metadata say; none is imported."""
    found = {}
    for name in _LIBRARIES:
        with suppress(Exception):  # not installed, or its metadata are broken
            found[name] = str(importlib.metadata.version(name))
    return found


def _load_deepspeed() -> None:
    """Accelerate loads it, where it is installed, with a Trainer: a virtual GPU does not count libraries.

    Not its autotuner's MLflow, which is 0.1 GiB.
    """
    if "accelerate" not in sys.modules or "deepspeed" in sys.modules:
        return
    is_hidden = "mlflow" not in sys.modules
    if is_hidden:
        sys.modules["mlflow"] = None  # type: ignore[assignment]  # how Python is told that there is none
    try:
        with suppress(Exception):  # then it fails where the script needs it
            importlib.import_module("deepspeed")
    finally:
        if is_hidden:
            del sys.modules["mlflow"]


def _data_bytes() -> int | None:
    """Private writable memory of this process (Linux), what a virtual GPU counts."""
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
        return int(fields[_STATM_DATA]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


CHANNEL = Channel(os.environ)
if CHANNEL.is_active:
    atexit.register(CHANNEL.leave)
