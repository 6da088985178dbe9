"""The policy ``has``: one pass over the queue."""

from __future__ import annotations

from frenzy.core.has.board import Board, Promise
from frenzy.core.has.forecast import best_promise, within_patience
from frenzy.core.has.policy import HasPolicy
from frenzy.core.job import Objective
from frenzy.core.plan import ResourcePlan
from frenzy.core.queue import QueuedJob


def run_pass(board: Board, policy: HasPolicy) -> None:
    """Start what can start, in queue order, and reserve for what must wait.

    A job takes its best plan among those it can start now, unless a better one is promised so
    soon that waiting pays (``HasPolicy``). The first job that a GPU type makes wait gets a
    reservation there: later jobs may use the type's GPUs only if they are gone by the promised
    start or touch none that the promise needs.
    """
    for job in board.state.waiting:
        if job.run_key not in board.state.running:
            _decide(board, job, policy)


def _decide(board: Board, job: QueuedJob, policy: HasPolicy) -> None:
    rank = _first_startable(board, job)
    better = range(len(job.plans) if rank is None else 0 if job.ordered else rank)
    promise = best_promise(board, job, better, max_wait_share=policy.max_wait_share) if better else None
    if rank is None:
        if promise is not None:
            board.reserve(job, promise)
    elif promise is not None and _worth_waiting(board, job, promise, job.plans[rank], policy):
        board.reserve(job, promise)
    else:
        _start(board, job, job.plans[rank])


def _first_startable(board: Board, job: QueuedJob) -> int | None:
    room, need = board.room, board.state.rules.need
    for rank, plan in enumerate(job.plans):
        if plan.num_gpus > room.idle_gpus(plan.gpu_type):
            continue
        if board.placement_now(plan, need(plan, job.excluded_nodes)) is not None:
            return rank
    return None


def _start(board: Board, job: QueuedJob, plan: ResourcePlan) -> None:
    need = board.state.rules.need(plan, job.excluded_nodes)
    placement = board.placement_now(plan, need)
    assert placement is not None
    board.start(job, plan, need, placement)


def _worth_waiting(board: Board, job: QueuedJob, promise: Promise, plan: ResourcePlan, policy: HasPolicy) -> bool:
    if not within_patience(board, job, promise, max_wait_share=policy.max_wait_share, run_s=plan.predicted_run_s):
        return False
    if job.objective is Objective.COST:
        return promise.plan.predicted_cost <= (1 - policy.min_gain) * plan.predicted_cost
    return promise.end_s - board.now_s <= (1 - policy.min_gain) * plan.predicted_run_s
