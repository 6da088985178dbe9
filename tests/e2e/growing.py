"""Trainings whose memory grows by what no specification tells, and what holds for every run that was moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.e2e.walker import Walker

from frenzy.core.lifecycle.reschedule import MEMORY_REASONS, Rung, rung_of
from frenzy.core.runs.protocol import RunView

SNAPSHOTS = "frenzy.trainer.callbacks:SnapshotAverage"


def growing(keep_last: int, every_steps: int = 1, start_step: int = 4, **training: Any) -> dict[str, Any]:
    """A training whose callback keeps weight snapshots in GPU memory."""
    args = {"keep_last": keep_last, "every_steps": every_steps, "start_step": start_step}
    return {"callbacks": [{"path": SNAPSHOTS, "args": args}], **training}


def plans_of(view: RunView) -> list[str]:
    return [attempt.plan.plan_id for attempt in view.attempts]


def rungs_of(view: RunView) -> list[Rung]:
    """What each attempt but the first changed in the plan of the one before it."""
    return [rung_of(one.plan, next_.plan) for one, next_ in zip(view.attempts, view.attempts[1:], strict=False)]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSlots:
    """What Airflow said while an attempt trained: its launch task's pool and slots, and how many the pool has given."""

    pool: str
    num_slots: int
    num_given: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A run that moved because its memory rose, at its end. slots: of its first two attempts, while they trained."""

    dag_id: str
    run_id: str
    view: RunView
    slots: tuple[LaunchSlots, ...]


def move_for_memory(walker: Walker) -> Moved:
    """Train a job whose memory rises from step to step, to its end."""
    dag_id, run_id = walker.start("rising", training=growing(60, max_steps=60))
    slots = []
    for attempt in (1, 2):
        walker.wait_for_step(dag_id, run_id, 1, attempt=attempt)
        slots.append(_launch_slots(walker, dag_id, run_id))
    return Moved(dag_id=dag_id, run_id=run_id, view=walker.succeed(dag_id, run_id), slots=tuple(slots))


def _launch_slots(walker: Walker, dag_id: str, run_id: str) -> LaunchSlots:
    task = walker.task(dag_id, run_id, "train.launch")
    pool = walker.airflow("GET", f"/pools/{task['pool']}")
    given = pool["occupied_slots"] + pool["deferred_slots"]
    return LaunchSlots(pool=task["pool"], num_slots=task["pool_slots"], num_given=given)
