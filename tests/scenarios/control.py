"""The control run: the same job, never interrupted, beside the one that is moved.

It runs the first attempt's plan on virtual GPUs whose budget is all of this machine's memory and
whose speed is not held back, so nothing ever moves it. Its losses are what the moved run's must be.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.local.local_launcher import LocalLauncher
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import CheckpointSpec, TrainingJob
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.resource_plan import ResourcePlan, short_hash
from frenzy.core.values.telemetry import fold_steps
from frenzy.ports import TelemetryCursor, WorkersState

_NAME: Final = "control"
_ATTEMPT: Final = 1
_POLL_S: Final = 0.3
_UNTHROTTLED_FLOPS_PER_S: Final = 1e18


class ControlRun:
    """One control run below ``folder``; ``environ`` is what its workers inherit."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._runs = FsspecRunStore(str(folder))
        # Workers are found by their run key: no other demo on this machine may have the same.
        self._run_key = f"{_NAME}-{short_hash(str(folder.absolute()), str(os.getpid()), str(time.time()))}"
        # The run that is watched goes first where there are too few cores for both.
        command = (*_yielding(), sys.executable, "-m", "frenzy.trainer.launch")
        state = folder.absolute() / "workers"
        self._launcher = LocalLauncher(self._runs, state=state, environ=environ, trainer_command=command)
        self._spec: LaunchSpec | None = None

    @property
    def is_started(self) -> bool:
        return self._spec is not None

    def start(self, job: TrainingJob, plan: ResourcePlan) -> None:
        """Start training ``job`` with the layout of ``plan``. Raises PermanentError."""
        memory_bytes = psutil.virtual_memory().total
        self._spec = control_spec(job, plan, self._run_key, self._runs.run_dir(self._run_key), memory_bytes)
        self._runs.put_spec(self._spec)
        self._launcher.launch(self._spec)

    def wait(self, timeout_s: float) -> AttemptResult | None:
        """The result once the workers are gone; None when there is none after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.is_alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self._runs.result(self._run_key, _ATTEMPT)

    def losses(self) -> dict[int, float]:
        """The loss of each step so far."""
        page = self._runs.telemetry(self._run_key, _ATTEMPT, TelemetryCursor())
        return {each.step: each.loss for each in fold_steps(page.records) if each.loss is not None}

    def log_tail(self) -> str:
        return self._runs.log_part(self._run_key, _ATTEMPT, max_bytes=2000).text

    def stop(self) -> None:
        """End the workers if they run, and wait until they are gone."""
        if self._spec is None or not self.is_alive:
            return
        self._launcher.stop(self._spec, grace_s=0.0)
        self.wait(10.0)

    @property
    def is_alive(self) -> bool:
        """Whether its workers run."""
        return self._spec is not None and self._launcher.state(self._spec) is WorkersState.ALIVE


def control_spec(job: TrainingJob, plan: ResourcePlan, run_key: str, run_dir: str, memory_bytes: int) -> LaunchSpec:
    """The launch spec of the control run; pure. The job's mathematics is untouched."""
    gpu = GpuType(name=_NAME, memory_bytes=memory_bytes, flops_per_s=_UNTHROTTLED_FLOPS_PER_S, kind=DeviceKind.VIRTUAL)
    # Saving state does not change it: only the last step is saved.
    last_only = CheckpointSpec(every_steps=2**31 - 1, keep=1, resume="never", warm_start=job.checkpoint.warm_start)
    return LaunchSpec(
        run_key=run_key,
        attempt=_ATTEMPT,
        job=replace(job, checkpoint=last_only),
        plan=replace(plan, gpu_type=gpu.name, gpu_memory_bytes=memory_bytes),
        gpu=gpu,
        placement=Placement(allocations=(NodeAllocation(node=_NAME, num_gpus=plan.num_gpus),)),
        run_dir=run_dir,
    )


def _yielding() -> tuple[str, ...]:
    nice = shutil.which("nice")
    return (nice, "-n", "10") if nice is not None and os.name == "posix" else ()
