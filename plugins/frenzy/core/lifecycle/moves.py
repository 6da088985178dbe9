"""Elastic moves: which running jobs may be moved, what a move costs them, and what is left of them.

A move is asked for by the scheduler and happens at a checkpoint. It is nobody's fault: it has a
budget of its own, apart from ``on_memory_pressure.max_reschedules``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from frenzy.core.runs.ledger import Attempt, JobState, Lease, LeaseState, MoveTarget, RunRecord
from frenzy.core.values.cluster import Cluster, NodeState, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Elasticity
from frenzy.core.values.units import are, format_duration

MOVE_REASONS: Final = frozenset(
    {
        ReasonCode.MOVED_TO_GROW,
        ReasonCode.MOVED_TO_SHRINK,
        ReasonCode.MOVED_TO_OTHER_GPUS,
        ReasonCode.PREEMPTED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRules:
    """When running jobs may be moved.

    restart_s: what a move is taken to cost until the run's own attempts have shown it. min_run_s:
    least time between two moves. max_moves: of one run; one more for every refill_s of running.
    """

    enabled: bool = True
    restart_s: float = 30.0
    min_run_s: float = 60.0
    max_moves: int = 3
    refill_s: float = 600.0


MOVES: Final = ElasticRules()
"""The defaults of ``settings``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is left and what was done, in multiples of the predicted run time of an attempt's plans."""

    left: float
    done: float


ALL_WORK: Final = Work(left=1.0, done=0.0)


def elasticity(run: RunRecord, attempts: Sequence[Attempt], rules: ElasticRules) -> Elasticity | None:
    """What it takes to move ``run`` as of its last attempt's first step; None if it is never moved.

    attempts: those since it was registered.
    """
    if (
        not rules.enabled
        or run.job.elastic == "off"
        or not run.job.can_change_width
        or run.job.on_memory_pressure.max_reschedules == 0
    ):
        return None
    ended = [each for each in attempts if each.ended_s is not None]
    num_moves = sum(each.outcome is not None and each.outcome.code in MOVE_REASONS for each in ended)
    ran_s = sum(each.ended_s - each.first_step_s for each in ended if each.ended_s and each.first_step_s)
    return Elasticity(
        restart_s=restart_s(attempts, rules),
        moves_left=rules.max_moves - num_moves + max(0.0, ran_s) / rules.refill_s,
        refill_s=rules.refill_s,
        min_run_s=rules.min_run_s,
    )


def restart_s(attempts: Iterable[Attempt], rules: ElasticRules) -> float:
    """What a move costs: from the GPUs' grant to the first step, and from the request to stop to the end.

    As the newest attempts measured it; the rules' figure before the first step.
    """
    starts = [each.first_step_s - each.created_s for each in attempts if each.first_step_s is not None]
    stops = [each.ended_s - each.stop_asked_s for each in attempts if each.ended_s and each.stop_asked_s]
    if not starts:
        return rules.restart_s
    return max(0.0, starts[-1]) + (max(0.0, stops[-1]) if stops else 0.0)


def is_movable(run: RunRecord, attempt: Attempt, lease: Lease, cluster: Cluster) -> bool:
    """Whether ``attempt`` can be asked now to save a checkpoint and stop.

    It must have done a step, and have one left to do; must not be asked already, must be heard of, and no node of its
    may be lost.
    What was measured must leave the plan it has possible (``has_room``).
    """
    return (
        run.state is JobState.RUNNING
        and not run.cancel_requested
        and attempt.is_live
        and lease.state is LeaseState.LIVE
        and attempt.stop_reason is None
        and attempt.last_step > 0
        and attempt.last_step != run.total_steps  # beyond it the total was an estimate
        and not attempt.plan.memory.is_rehearsal
        and has_room(attempt.plan, measured_extra_bytes(attempt))
        and not _is_on_lost_node(attempt.placement, cluster)
    )


def plans_to_move_to(attempt: Attempt, plans: Iterable[ResourcePlan]) -> tuple[ResourcePlan, ...]:
    """Those of ``plans`` that ``attempt`` may be moved to; its own is among them.

    Which plan memory that grows needs is the monitor's to say. Until then the attempt keeps the one it has: it may
    give way, or leave a node.
    """
    return tuple(plan for plan in plans if attempt.growth_step is None or plan.shape == attempt.plan.shape)


def measured_extra_bytes(attempt: Attempt) -> int:
    """What ``attempt`` holds on each GPU beyond its prediction, if that is more than its plan requires; else 0.

    Other plans are taken to fall short by as much.
    """
    memory, measured = attempt.plan.memory, attempt.measured_peak_bytes or 0
    return measured - memory.peak_allocated_bytes if measured > memory.required_bytes else 0


def has_room(plan: ResourcePlan, extra_bytes: int) -> bool:
    """Whether ``plan`` fits its GPUs with so much more on each than it requires."""
    return plan.memory.required_bytes + extra_bytes <= plan.gpu_memory_bytes


def _is_on_lost_node(placement: Placement, cluster: Cluster) -> bool:
    nodes = (cluster.nodes_by_name.get(each.node) for each in placement.allocations)
    return any(node is None or node.state is NodeState.LOST for node in nodes)


def is_under_way(run: RunRecord, attempt: Attempt) -> bool:
    """Whether ``attempt`` was asked to stop for a move, or has just stopped for one."""
    reason = attempt.outcome if attempt.outcome is not None else attempt.stop_reason
    return reason is not None and reason.code in MOVE_REASONS and not run.cancel_requested


def work_left(run: RunRecord, attempt: Attempt) -> Work:
    """As of the attempt's last step. The plans were predicted for the steps behind its checkpoint."""
    before = attempt.next_attempt.checkpoint_step or 0
    planned = (run.total_steps or 0) - before
    if planned <= 0:
        return ALL_WORK
    at = max(before, attempt.last_step)
    return Work(left=max(0.0, before + planned - at) / planned, done=at / planned)


def grow_or_shrink(before: ResourcePlan, after: ResourcePlan) -> ReasonCode:
    """What a move from ``before`` to ``after`` is called."""
    if before.gpu_type != after.gpu_type or before.num_gpus == after.num_gpus:
        return ReasonCode.MOVED_TO_OTHER_GPUS
    return ReasonCode.MOVED_TO_GROW if after.num_gpus > before.num_gpus else ReasonCode.MOVED_TO_SHRINK


def predicted_change(work: Work, before: ResourcePlan, after: ResourcePlan) -> str:
    """What ``work`` takes with ``after`` instead of ``before``, restart aside."""
    then_s, now_s = (work.left * each.predicted_run_s for each in (after, before))
    return f"{format_duration(then_s)} instead of {format_duration(now_s)}"


def move_reason(
    before: ResourcePlan,
    target: MoveTarget,
    beneficiary: str | None,
    *,
    work: Work = ALL_WORK,
    its_change: str | None = None,
    for_memory: bool = False,
    drained: Sequence[str] = (),
) -> Reason:
    """Why a run that has ``work`` left goes from ``before`` to ``target``.

    beneficiary: the job that gets what it leaves; its_change: ``predicted_change`` of that, if it runs and moves, too.
    for_memory: because its memory exceeded its GPUs. drained: the nodes it has to leave.
    """
    nodes = ", ".join(f"{each.num_gpus} on {each.node}" for each in target.placement.allocations)
    own_change = predicted_change(work, before, target.plan)
    if drained:
        why = f": {', '.join(drained)} {are(len(drained))} being drained."
    elif for_memory:
        why = f": job {beneficiary} needs more memory than its GPUs had, and gets these; both go on."
    elif its_change is not None:
        why = (
            f", as job {beneficiary} moves to GPUs that it leaves. What is left is predicted to take {own_change}; "
            f"of job {beneficiary}: {its_change}."
        )
    elif target.plan.predicted_run_s < before.predicted_run_s:
        why = f", where what is left is predicted to take {own_change}."
    else:
        why = f", so that job {beneficiary} can start." if beneficiary else "."
    change = f"Moves from {before.plan_id} to {target.plan.plan_id} ({nodes}) at its next checkpoint"
    return Reason(code=grow_or_shrink(before, target.plan), detail=f"{change}{why}")
