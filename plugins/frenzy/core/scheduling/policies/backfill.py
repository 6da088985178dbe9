"""The policy ``backfill``: one pass over the queue, which moves no running job."""

from __future__ import annotations

from frenzy.core.scheduling.engine.board import Board
from frenzy.core.scheduling.engine.choices import Capacity
from frenzy.core.scheduling.engine.deadlines import RiskFirst, at_risk, in_time
from frenzy.core.scheduling.engine.fair_share import QueueTurns, held_by_queue
from frenzy.core.scheduling.engine.forecast import best_promise, within_patience
from frenzy.core.scheduling.engine.options import Contender, Option
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy
from frenzy.core.scheduling.engine.queue_index import Limits, Turns
from frenzy.core.scheduling.engine.reservation import Promise
from frenzy.core.values.cluster import Placement
from frenzy.core.values.job import Objective
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob


def run_pass(board: Board, policy: BackfillPolicy) -> None:
    """Start what can start, in queue order, and reserve for what must wait.

    A job takes its first option that can start now, unless an earlier one is promised so soon
    that waiting pays (``HasPolicy``). The first job that a GPU type makes wait gets a reservation
    there: later jobs may use the type's GPUs only if they are gone by the promised start or touch
    none that the promise needs.
    """
    turns = _turns(board, policy)
    for asking in turns:
        if asking.job.run_key in board.state.running:
            continue
        contender = in_time(board.with_deadline_in_reach(board.quotas.within(asking)), board.now_s)
        if not contender.options:
            turns.close()
            continue
        found = _first_startable(board, contender)
        if found is not None:
            _take_or_wait(board, contender, found, policy)
        elif not _reserved(board, contender, policy):
            turns.keep_to(_limits(board, asking))


def _turns(board: Board, policy: BackfillPolicy) -> Turns | QueueTurns | RiskFirst:
    """In queue order, deadlines at risk before their equals.

    Where queues share the cluster, each time from the one that holds least for its weight, whatever the deadlines.
    """
    waiting = board.state.waiting
    if not policy.queues.queues:
        turns = Turns(waiting)
        timed = [board.with_deadline_in_reach(each) for each in waiting.timed]
        first = at_risk(timed, board.now_s, policy.deadline_slack)
        return RiskFirst(turns, first) if first else turns
    capacity = Capacity.of(board.state.cluster)
    held = held_by_queue(board.state.running.values(), capacity)
    return QueueTurns(board.state.waiting, policy.queues, held, board.started, capacity)


def _reserved(board: Board, contender: Contender, policy: BackfillPolicy) -> bool:
    """Reserve for ``contender``, which cannot start, if anything can be promised."""
    promise = best_promise(board, contender, len(contender.options), max_wait_share=policy.max_wait_share)
    if promise is not None:
        board.reserve(contender.job, promise)
    return promise is not None


def _limits(board: Board, asking: Contender) -> Limits:
    """What can start now of the jobs that ask for the same as ``asking``."""
    allowed = {id(each) for each in board.quotas.within(asking).options}
    found = ((at, board.must_end_by(each)) for at, each in _on_idle(board, asking) if id(each) in allowed)
    return Limits(board.now_s, tuple((at, end_s) for at, end_s in found if end_s is not None))


def _take_or_wait(board: Board, contender: Contender, found: tuple[int, Placement], policy: BackfillPolicy) -> None:
    """Start the option that was found, unless an earlier one is worth waiting for."""
    preference, placement = found
    option = contender.options[preference]
    better = _promise_worth_waiting_for(board, contender, preference, policy)
    if better is None:
        board.start(contender, option, placement)
    else:
        board.reserve(contender.job, better, instead_of=option.plan)


def _first_startable(board: Board, contender: Contender) -> tuple[int, Placement] | None:
    for preference, option in _on_idle(board, contender):
        placement = board.startable(option)
        if placement is not None:
            return preference, placement
    return None


def _on_idle(board: Board, contender: Contender) -> list[tuple[int, Option]]:
    """The options for which there are idle GPUs enough, wherever they are, and their places; mostly few."""
    if not contender.may_fit(board.room):
        return []
    idle = {gpu_type: room.idle_gpus for gpu_type, room in board.room.by_type.items()}
    return [
        (at, each) for at, each in enumerate(contender.options) if each.need.num_gpus <= idle.get(each.need.gpu_type, 0)
    ]


def _promise_worth_waiting_for(
    board: Board, contender: Contender, preference: int, policy: BackfillPolicy
) -> Promise | None:
    """What ``contender`` had better wait for than start its option at ``preference`` now, if anything.

    The ladder's order is not one of speed: an ``ordered`` job takes what it can get.
    """
    if preference == 0 or contender.job.ordered:
        return None
    promise = best_promise(board, contender, preference, max_wait_share=policy.max_wait_share)
    if promise is None:
        return None
    if not within_patience(promise, contender, policy.max_wait_share):
        return None
    deadline_s = contender.job.deadline_s
    if deadline_s is not None and board.now_s + contender.options[preference].run_s <= deadline_s < promise.end_s:
        return None
    pays = _waiting_pays(contender.job, promise, contender.options[preference].plan, board.now_s, policy)
    return promise if pays else None


def _waiting_pays(job: QueuedJob, promise: Promise, plan: ResourcePlan, now_s: float, policy: BackfillPolicy) -> bool:
    if job.objective is Objective.COST:
        total, gained = plan.predicted_cost, plan.predicted_cost - promise.option.plan.predicted_cost
    else:
        total = job.work_left * plan.predicted_run_s
        gained = now_s + total - promise.end_s
    return gained > 0 and gained >= policy.min_gain * total
