"""Trainings whose memory grows by what no specification tells, and what holds for every run that was moved."""

from __future__ import annotations

from typing import Any

from frenzy.core.lifecycle.reschedule import MEMORY_REASONS
from frenzy.core.runs.protocol import RunView

SNAPSHOTS = "frenzy.trainer.callbacks:SnapshotAverage"


def growing(keep_last: int, every_steps: int = 1, start_step: int = 4, **training: Any) -> dict[str, Any]:
    """A training whose callback keeps weight snapshots in GPU memory."""
    args = {"keep_last": keep_last, "every_steps": every_steps, "start_step": start_step}
    return {"callbacks": [{"path": SNAPSHOTS, "args": args}], **training}


def plans_of(view: RunView) -> list[str]:
    return [attempt.plan.plan_id for attempt in view.attempts]


def check_moves(view: RunView) -> None:
    """What holds for every run that was moved."""
    shapes = [attempt.plan.shape for attempt in view.attempts]
    assert len(shapes) >= 2, plans_of(view)
    pressed = [a.plan.shape for a in view.attempts if a.outcome is not None and a.outcome.code in MEMORY_REASONS]
    assert len(set(pressed)) == len(pressed), "never the same plan twice"
    assert all(shapes.count(shape) == 1 for shape in pressed), "a plan that ran short is not tried again"
    assert {a.plan.global_batch_size for a in view.attempts} == {view.run.job.training.global_batch_size}
    resumed = [a.result.resumed_from_step for a in view.attempts[1:] if a.result is not None]
    assert all(step is not None and step > 0 for step in resumed), "later attempts resume"
