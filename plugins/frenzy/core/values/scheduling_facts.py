"""What the scheduler sees: jobs that wait, jobs that run, and the actions it may take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from frenzy.core.values.cluster import Cluster, Placement
from frenzy.core.values.errors import Reason
from frenzy.core.values.job import Objective
from frenzy.core.values.resource_plan import ResourcePlan

_LEAST_S: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticity:
    """What it takes to move a job: to stop it at a checkpoint and go on with other GPUs, or later.

    restart_s: time a move costs it. moves_left: how often it may still be moved; refill_s: one more move
    for every so many seconds of running. min_run_s: least time between two moves.
    """

    restart_s: float
    moves_left: float
    refill_s: float = math.inf
    min_run_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is known of a run, whether it waits or runs.

    plans: what it may run with, best first for ``objective``; of a running one, what it may be moved to.
    excluded_nodes: nodes it must not use again, for example after an attempt failed there.
    work_left: what is left, as multiples of each plan's ``predicted_run_s``; work_done: what was done
    before, likewise. asked_gpus: GPUs a user of a scheduler without plans would ask for, if known.
    elasticity: None for a job that is never moved. memory_constrained: its memory exceeded GPUs it had before.
    deadline_s: when it is to have ended.
    """

    run_key: str
    job_name: str
    submitted_s: float = 0.0
    plans: tuple[ResourcePlan, ...] = ()
    priority: int = 0
    queue: str = "default"
    team: str = "default"
    objective: Objective = Objective.TIME
    excluded_nodes: tuple[str, ...] = ()
    work_left: float = 1.0
    work_done: float = 0.0
    asked_gpus: int | None = None
    elasticity: Elasticity | None = None
    memory_constrained: bool = False
    deadline_s: float | None = None


_SHARED: Final = tuple(each.name for each in fields(_Job))


def _shared(job: _Job, **changes: object) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _SHARED} | changes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob(_Job):
    """A run that waits. ordered: take the first plan that can be placed, not the best by prediction (the ladder's)."""

    submitted_s: float
    plans: tuple[ResourcePlan, ...]
    ordered: bool = False

    @property
    def restart_s(self) -> float:
        """Until its first step, where it goes on from a checkpoint."""
        return self.elasticity.restart_s if self.elasticity is not None and self.work_done > 0 else 0.0

    def started(
        self, plan: ResourcePlan, placement: Placement, *, now_s: float, restart_s: float | None = None
    ) -> RunningJob:
        """The job once started at ``now_s`` with ``plan``, expected to take as long as predicted.

        restart_s: until its first step, where that is not its own.
        """
        restart_s = self.restart_s if restart_s is None else restart_s
        return RunningJob(
            **_shared(self, plans=self.plans if self.elasticity else ()),
            plan=plan,
            placement=placement,
            started_s=now_s,
            expected_end_s=now_s + restart_s + self.work_left * plan.predicted_run_s,
            ready_s=now_s + restart_s if restart_s else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob(_Job):
    """A run that holds GPUs, also while its workers start or die.

    ready_s: when its steps begin or began, restart behind it; ``work_left`` and ``work_done`` are as of then.
    ``elasticity`` is None, and ``plans`` are none, for a job that stays where it is.
    """

    plan: ResourcePlan
    placement: Placement
    started_s: float
    expected_end_s: float | None = None
    ready_s: float | None = None

    def progress(self, now_s: float) -> float:
        """Multiples of ``plan.predicted_run_s`` that were done since ``ready_s``."""
        return self.ran_s(now_s) / max(self.plan.predicted_run_s, _LEAST_S)

    def ran_s(self, now_s: float) -> float:
        """Seconds since its steps began."""
        return max(0.0, now_s - (self.started_s if self.ready_s is None else self.ready_s))

    def moves_left(self, now_s: float) -> float:
        """How often it may be moved as of ``now_s``; 0 for a job that stays where it is."""
        if self.elasticity is None:
            return 0.0
        return self.elasticity.moves_left + self.ran_s(now_s) / self.elasticity.refill_s

    def elasticity_after(self, progress: float) -> Elasticity | None:
        """Its elasticity once ``progress`` was made, in multiples of ``plan.predicted_run_s``."""
        if self.elasticity is None:
            return None
        earned = progress * self.plan.predicted_run_s / self.elasticity.refill_s
        return replace(self.elasticity, moves_left=self.elasticity.moves_left + earned)

    def stopped(self, now_s: float) -> QueuedJob:
        """The job as it waits once it was made to stop at a checkpoint: with one move fewer left."""
        waiting = self.as_waiting(self.progress(now_s))
        elasticity = waiting.elasticity
        return replace(waiting, elasticity=elasticity and replace(elasticity, moves_left=elasticity.moves_left - 1))

    def as_waiting(self, progress: float) -> QueuedJob:
        """The job as it waits once ``progress`` of what was left is done, in multiples of ``plan.predicted_run_s``."""
        then = _shared(
            self,
            plans=self.plans or (self.plan,),
            work_left=max(0.0, self.work_left - progress),
            work_done=self.work_done + progress,
            elasticity=self.elasticity_after(progress),
        )
        return QueuedJob(**then)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingFacts:
    """One snapshot: everything ``schedule`` may know."""

    cluster: Cluster
    queued: tuple[QueuedJob, ...]
    running: tuple[RunningJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start ``run_key`` with ``plan`` on ``placement``. reason: why with that plan, where reasons were asked for."""

    run_key: str
    plan: ResourcePlan
    placement: Placement
    kind: Literal["start"] = "start"
    reason: Reason | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Move a running job to ``plan`` on ``placement`` at its next checkpoint."""

    run_key: str
    plan: ResourcePlan
    placement: Placement
    kind: Literal["resize"] = "resize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """Stop a running job at a checkpoint and queue it again."""

    run_key: str
    reason: Reason
    kind: Literal["preempt"] = "preempt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """``run_key`` keeps waiting, for one reason; ``position`` counts from 1 in queue order."""

    run_key: str
    reason: Reason
    position: int
    expected_start_s: float | None = None
    kind: Literal["hold"] = "hold"


Action = Start | Resize | Preempt | Hold


def apply_actions(facts: SchedulingFacts, actions: Iterable[Action], *, now_s: float) -> SchedulingFacts:
    """``facts`` once every action happened at ``now_s``; a job that starts again is ready its restart time later."""
    chosen = {action.run_key: action for action in actions if not isinstance(action, Hold)}
    active = facts.queued + tuple(job.stopped(now_s) for job in facts.running if job.run_key in chosen)
    started = started_of(active, chosen, now_s)
    gone = {job.run_key for job in started}
    queued = tuple(job for job in active if job.run_key not in gone)
    kept = tuple(job for job in facts.running if job.run_key not in chosen)
    return replace(facts, queued=queued, running=(*kept, *started))


def started_of(active: Iterable[QueuedJob], chosen: Mapping[str, Action], now_s: float) -> list[RunningJob]:
    """Those of ``active`` that ``chosen``, by run key, start or start again."""
    begun = ((job, chosen.get(job.run_key)) for job in active)
    return [
        job.started(each.plan, each.placement, now_s=now_s) for job, each in begun if isinstance(each, Start | Resize)
    ]
