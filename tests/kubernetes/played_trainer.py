"""A trainer for fake nodes: leaves in the run directory what the real one would, and ends as its job says.

The job's environment says how: ENDS, a list of exit codes by attempt (the last one holds for all that
follow). ``wait`` runs until it is stopped, saves a checkpoint and ends with 98.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tests.kubernetes.plays import Container, End

from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest
from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values import codec
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.telemetry import StepRecord, latest_text

WAIT: Final = "wait"
_STEPS_BEFORE_AN_END: Final = 3


def played_trainer(container: Container) -> End:
    """Body of a ``Performs``; only the pod of node 0 writes."""
    options = dict(zip(container.command[-6::2], container.command[-5::2], strict=True))
    paths, attempt = RunPaths(options["--run-dir"]), int(options["--attempt"])
    spec = codec.loads(LaunchSpec, Path(paths.spec(attempt)).read_text())
    ends = spec.job.env["ENDS"].split(",")
    how = ends[min(attempt, len(ends)) - 1]
    is_first = options["--node-rank"] == "0"
    training = _Training(spec, paths, writes=is_first)
    container.log(f"attempt {attempt} begins after step {training.begun}")
    if how == WAIT:
        code, last = _run_until_stopped(container, training)
    else:
        code = int(how)
        last = training.total if code == ExitCode.DONE else training.begun + _STEPS_BEFORE_AN_END
        training.steps_until(last)
        training.save(last)
    training.result(code, last)
    return End(exit_code=code, message=f'{{"exit_code": {code}, "last_step": {last}, "detail": "played"}}')


def _run_until_stopped(container: Container, training: _Training) -> tuple[int, int]:
    step = training.begun + 1
    training.steps_until(step)
    training.save(step)
    container.stopping.wait()
    training.save(step + 1)
    return int(ExitCode.CHECKPOINTED), step + 1


class _Training:
    """One attempt's files. begun: the step it resumed from, 0 for a fresh start."""

    def __init__(self, spec: LaunchSpec, paths: RunPaths, *, writes: bool) -> None:
        self._spec, self._paths, self._writes = spec, paths, writes
        self.total = spec.job.training.max_steps or 0
        saved = [int(each.parent.name[5:]) for each in Path(paths.checkpoints_dir).glob("step-*/manifest.json")]
        self.begun = max(saved, default=0)

    def steps_until(self, last: int) -> None:
        for node, num_gpus in enumerate(self._spec.gpus_per_node):
            first = sum(self._spec.gpus_per_node[:node])
            ranks, steps = range(first, first + num_gpus), range(self.begun + 1, last + 1)
            records = [self._record(rank, step) for rank in ranks for step in steps]
            self._put(self._paths.latest(self._spec.attempt, node), latest_text(0, records))

    def save(self, step: int) -> None:
        layout = ParallelLayout(self._spec.plan.num_gpus, self._spec.plan.zero_stage)
        manifest = CheckpointManifest(step=step, layout=layout, files=(), save_id="played")
        self._put(self._paths.checkpoint_manifest(step), codec.dumps(manifest))

    def result(self, code: int, last: int) -> None:
        result = AttemptResult(
            exit_code=code,
            last_step=last,
            total_steps=self.total,
            resumed_from_step=self.begun or None,
            checkpoint_step=last,
            final_loss=1.0,
            detail="played",
        )
        self._put(self._paths.result(self._spec.attempt), codec.dumps(result))

    def _record(self, rank: int, step: int) -> StepRecord:
        peak = self._spec.plan.memory.peak_allocated_bytes
        return StepRecord(
            rank=rank,
            step=step,
            time_s=time.time(),
            loss=2.0 - step / 1000,
            step_time_s=0.1,
            tokens_per_s=1000.0,
            peaks=PeakMemory(allocated_bytes=peak, reserved_bytes=peak, device_used_bytes=peak),
            capacity_bytes=self._spec.gpu.memory_bytes,
        )

    def _put(self, place: str, text: str) -> None:
        if self._writes:
            path = Path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.draft")
            draft.write_text(text)
            draft.replace(path)
