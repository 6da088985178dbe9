"""What the scheduler sees: jobs that wait, jobs that run, and the actions it may take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal

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
class QueuedJob:
    """A run that waits. ``plans`` are its feasible plans, best first for ``objective``.

    ordered: take the first plan that can be placed, not the best by prediction (the ladder's order).
    excluded_nodes: nodes it must not use again, for example after an attempt failed there.
    work_left: what is left, as multiples of each plan's ``predicted_run_s``; work_done: what was done
    before, likewise. asked_gpus: GPUs a user of a scheduler without plans would ask for, if known.
    elasticity: None for a job that is never moved. memory_constrained: its memory exceeded the GPUs it had.
    deadline_s: when it is to have ended.
    """

    run_key: str
    job_name: str
    submitted_s: float
    plans: tuple[ResourcePlan, ...]
    priority: int = 0
    queue: str = "default"
    team: str = "default"
    ordered: bool = False
    objective: Objective = Objective.TIME
    excluded_nodes: tuple[str, ...] = ()
    work_left: float = 1.0
    work_done: float = 0.0
    asked_gpus: int | None = None
    elasticity: Elasticity | None = None
    memory_constrained: bool = False
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A run that holds GPUs, also while its workers start or die.

    ready_s: when its steps begin or began, restart behind it; work_left, work_done: as of then, in
    multiples of each plan's ``predicted_run_s``. plans: what it may be moved to, best first; as
    ``elasticity``, empty for a job that stays where it is. memory_constrained: its memory exceeded GPUs it had before.
    """

    run_key: str
    job_name: str
    plan: ResourcePlan
    placement: Placement
    started_s: float
    expected_end_s: float | None = None
    priority: int = 0
    queue: str = "default"
    team: str = "default"
    submitted_s: float = 0.0
    ready_s: float | None = None
    plans: tuple[ResourcePlan, ...] = ()
    objective: Objective = Objective.TIME
    excluded_nodes: tuple[str, ...] = ()
    work_left: float = 1.0
    work_done: float = 0.0
    asked_gpus: int | None = None
    elasticity: Elasticity | None = None
    memory_constrained: bool = False
    deadline_s: float | None = None

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
        return QueuedJob(
            run_key=self.run_key,
            job_name=self.job_name,
            submitted_s=self.submitted_s,
            plans=self.plans or (self.plan,),
            priority=self.priority,
            queue=self.queue,
            team=self.team,
            objective=self.objective,
            excluded_nodes=self.excluded_nodes,
            work_left=max(0.0, self.work_left - progress),
            work_done=self.work_done + progress,
            asked_gpus=self.asked_gpus,
            elasticity=self.elasticity_after(progress),
            memory_constrained=self.memory_constrained,
            deadline_s=self.deadline_s,
        )


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
