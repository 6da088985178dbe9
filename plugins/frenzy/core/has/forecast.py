"""When a waiting job could start, if running jobs end as expected."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frenzy.core.has.board import Board, Promise
from frenzy.core.has.placement import place
from frenzy.core.has.room import Need
from frenzy.core.job import Objective
from frenzy.core.plan import ResourcePlan
from frenzy.core.queue import QueuedJob


def best_promise(board: Board, job: QueuedJob, ranks: Sequence[int], *, max_wait_share: float) -> Promise | None:
    """The promise worth keeping for ``job`` among its plans at ``ranks``.

    Only types without a reservation can promise anything. TIME: the earliest predicted end.
    COST: the best rank that starts within the bound of its patience, else the earliest end.
    An ``ordered`` job: the earliest start. A start that is not known comes last.
    """
    promises = [promise for rank in _undominated(job, ranks) if (promise := _promise(board, job, rank)) is not None]

    def preference(promise: Promise) -> tuple[float, float, int]:
        start_s = math.inf if promise.start_s is None else promise.start_s
        if job.ordered:
            return (start_s, 0.0, promise.rank)
        if job.objective is Objective.COST and within_patience(board, job, promise, max_wait_share=max_wait_share):
            return (-math.inf, 0.0, promise.rank)
        return (promise.end_s, start_s, promise.rank)

    return min(promises, key=preference, default=None)


def within_patience(
    board: Board, job: QueuedJob, promise: Promise, *, max_wait_share: float, run_s: float = 0.0
) -> bool:
    """Whether waiting for ``promise`` stays within the job's share of waiting.

    run_s: predicted run time of the plan it could start at once, if there is one.
    """
    if promise.start_s is None:
        return False
    longest_s = max_wait_share * max(run_s, promise.plan.predicted_run_s)
    return promise.start_s - job.submitted_s <= longest_s


def _promise(board: Board, job: QueuedJob, rank: int) -> Promise | None:
    plan = job.plans[rank]
    empty = board.state.empty.by_type.get(plan.gpu_type)
    need = board.state.rules.need(plan, job.excluded_nodes)
    if empty is None or plan.gpu_type in board.reservations or place(empty, need) is None:
        return None
    return _earliest(board, plan, rank, need)


def _earliest(board: Board, plan: ResourcePlan, rank: int, need: Need) -> Promise | None:
    """The first of the expected ends by which ``plan`` fits; fitting is monotone in time."""
    ends = board.ends(plan.gpu_type)
    times = sorted({end_s for end_s, _ in ends if end_s < math.inf}) + [math.inf]
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        if place(board.room_at(plan.gpu_type, times[middle]), need) is None:
            low = middle + 1
        else:
            high = middle
    placement = place(board.room_at(plan.gpu_type, times[low]), need)
    if placement is None:
        return None
    return Promise(
        plan=plan,
        rank=rank,
        need=need,
        placement=placement,
        start_s=times[low] if times[low] < math.inf else None,
        after=tuple(job.job_name for end_s, job in ends if end_s == times[low]),
    )


def _undominated(job: QueuedJob, ranks: Sequence[int]) -> list[int]:
    """Ranks without the plans that need at least as much as a better one of the same type."""
    kept: list[int] = []
    for rank in ranks:
        if not any(_asks_no_more(job.plans[better], job.plans[rank]) for better in kept):
            kept.append(rank)
    return kept


def _asks_no_more(plan: ResourcePlan, other: ResourcePlan) -> bool:
    return (
        plan.gpu_type == other.gpu_type
        and plan.num_gpus <= other.num_gpus
        and other.tp % plan.tp == 0
        and plan.memory.host_bytes <= other.memory.host_bytes
    )
