"""What every active job, waiting or running, could hold and what that would be worth to it."""

from __future__ import annotations

import math
from typing import NamedTuple

from frenzy.core.scheduling.engine.plan_tables import NOTHING, Capacity, PlanTable, RankedPlan, Tables
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy
from frenzy.core.values.job import Objective
from frenzy.core.values.scheduling_facts import Elasticity, QueuedJob, RunningJob


class Entry(NamedTuple):
    """One active job in a pass.

    others: what it could hold instead of what it holds. left: of the job, in multiples of its plans' ``unit_s``.
    due_s: see ``due_s``. first_s: by it the job is served among those of its priority: due_s, or earlier where its
    deadline is at risk or it is memory-constrained. by_cost: it goes by cost, not by time. in_order: its plans are in
    an order that is not one of speed; it takes the first that can be had. by_s: time until its deadline, if that can
    be met.

    Of one that runs: current: what it holds. is_fixed: it keeps that whatever happens. has_moves: others may make it
    move; without, it may only grow into idle GPUs. is_displaced: it runs on a node that takes no new work, and should
    go elsewhere. num_held: GPUs it holds on nodes that are there and take new work. moves_again_s: see
    ``_moves_again_s``.
    """

    job: QueuedJob | RunningJob
    run_key: str
    others: PlanTable
    left: float
    restart_s: float
    due_s: float
    first_s: float
    by_cost: bool
    in_order: bool = False
    by_s: float = math.inf
    current: RankedPlan | None = None
    is_fixed: bool = False
    has_moves: bool = True
    is_displaced: bool = False
    num_held: int = 0
    moves_again_s: float = 0.0

    @property
    def queued(self) -> QueuedJob:
        """The job of an entry that waits."""
        assert isinstance(self.job, QueuedJob)
        return self.job

    @property
    def place(self) -> tuple[int, float, str]:
        """Where it stands in line, ascending: by priority, then by ``first_s``."""
        return (-self.job.priority, self.first_s, self.run_key)

    def run_s(self, ranked: RankedPlan) -> float:
        """How long what is left takes with ``ranked``."""
        return self.left * ranked.unit_s

    def lost_s(self, unit_s: float, while_s: float) -> float:
        """What a job that runs loses by a move to a plan of ``unit_s``: to its end, or until it has its GPUs back.

        That is ``while_s`` later, and takes one more restart.
        """
        assert self.current is not None, "only a job that holds GPUs loses any"
        slower = unit_s / max(self.current.unit_s, 1e-9)
        if slower <= 1.0:
            return self.restart_s
        until_back_s = self.restart_s + (1.0 - 1.0 / slower) * while_s
        return self.restart_s + min(self.run_s(self.current) * (slower - 1.0), until_back_s)


def due_s(job: QueuedJob | RunningJob, work: float, policy: BackfillPolicy, capacity: Capacity) -> float:
    """When the job is due: its submission plus ``slowdown`` times what the whole cluster would take for ``work``."""
    return job.submitted_s + policy.slowdown * work / max(capacity.effective, 1e-9)


def waiting_entry(job: QueuedJob, tables: Tables, capacity: Capacity, policy: BackfillPolicy) -> Entry:
    """The entry of a waiting job, which does not depend on time."""
    table, elasticity = tables.of_waiting(job), job.elasticity
    left = believed_left(job.work_left, job.work_done, policy)
    restart_s = elasticity.restart_s if elasticity is not None and job.work_done > 0 else 0.0
    due = due_s(job, table.work(left), policy, capacity)
    return Entry(job, job.run_key, table, left, restart_s, due, due, job.objective is Objective.COST, job.ordered)


def is_settled(job: RunningJob, now_s: float) -> bool:
    """Whether ``job`` may be moved and was not moved just now."""
    return job.elasticity is not None and job.ran_s(now_s) >= max(job.elasticity.min_run_s, 1e-9)


def running_entry(job: RunningJob, now_s: float, tables: Tables, capacity: Capacity, policy: BackfillPolicy) -> Entry:
    """The entry at ``now_s`` of a job that runs."""
    allocations, elasticity = job.placement.allocations, job.elasticity
    is_displaced = any(each.node in capacity.not_ready for each in allocations) if capacity.not_ready else False
    current, others = tables.of_running(job, is_displaced=is_displaced)
    ran_s, may_move = job.ran_s(now_s), is_settled(job, now_s)
    progress = ran_s / max(current.unit_s, 1e-9)
    left = believed_left(job.work_left - progress, job.work_done + progress, policy)
    others = others if may_move else NOTHING
    work = _work_of_running(current, others, left, is_displaced=is_displaced)
    # What was given for its memory is not taken back by its equals.
    due = -math.inf if job.memory_constrained else due_s(job, work, policy, capacity)
    return Entry(
        job,
        job.run_key,
        others,
        left,
        elasticity.restart_s if elasticity is not None else 0.0,
        due,
        due,
        job.objective is Objective.COST,
        current=current,
        is_fixed=not may_move,
        has_moves=is_displaced or job.moves_left(now_s) >= 1,
        is_displaced=is_displaced,
        # What it holds on a node that has left the cluster is nobody's.
        num_held=sum([each.num_gpus for each in allocations if each.node in capacity.ready]),
        moves_again_s=0.0 if elasticity is None else _moves_again_s(elasticity, left * current.unit_s, ran_s, policy),
    )


def _moves_again_s(elasticity: Elasticity, left_s: float, ran_s: float, policy: BackfillPolicy) -> float:
    """What the moves cost that are likely to follow one that it makes of its own accord.

    As the cluster is, it kept its plan for ``ran_s``. It is believed to keep the next one ``payback`` times as long,
    which is a part of what is left: so a job that has just been moved stays, and one that was left alone moves.
    """
    return elasticity.restart_s * max(0.0, left_s / (policy.payback * max(ran_s, 1e-9)) - 1.0)


def _work_of_running(current: RankedPlan, others: PlanTable, left: float, *, is_displaced: bool) -> float:
    """A job that has to leave its GPUs is not counted with what it has, if it could have anything else."""
    own, least = left * current.unit_s * current.gpus, others.work(left)
    return own if others.least is None else least if is_displaced else min(own, least)


def believed_left(left: float, done: float, policy: BackfillPolicy) -> float:
    """What is left of a job, in multiples of its plans' run times.

    A job that outlived its estimate is believed to have a share of what it did still before it: the
    longer it ran, the longer it will (so it is with run times of heavy tail).
    """
    return left if left > 0 else max(policy.overrun_share * done, 1e-9)
