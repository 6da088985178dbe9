"""When a waiting job could start, if running jobs end as expected."""

from __future__ import annotations

import math

from frenzy.core.cluster import Placement
from frenzy.core.has.board import Board, Promise, Timeline
from frenzy.core.has.options import Contender, Option
from frenzy.core.has.placement import place
from frenzy.core.job import Objective


def best_promise(board: Board, contender: Contender, num_options: int, *, max_wait_share: float) -> Promise | None:
    """The promise to keep among the first ``num_options`` options of ``contender``.

    Only types without a reservation can promise anything. TIME: the earliest predicted end.
    COST: the first option that starts within the bound of its patience, else the earliest end.
    An ``ordered`` job: the earliest start. A start that is not known comes last.
    """
    job = contender.job

    def preference(promise: Promise) -> tuple[float, float, int]:
        start_s = math.inf if promise.start_s is None else promise.start_s
        if job.ordered:
            return (start_s, 0.0, promise.preference)
        if job.objective is Objective.COST and within_patience(promise, job.submitted_s, max_wait_share):
            return (-math.inf, 0.0, promise.preference)
        return (promise.end_s, start_s, promise.preference)

    return min(_promises(board, contender, num_options), key=preference, default=None)


def within_patience(promise: Promise, submitted_s: float, max_wait_share: float, run_s: float = 0.0) -> bool:
    """Whether waiting for ``promise`` keeps the whole wait of the job within its bound.

    run_s: predicted run time of the plan it could start at once, if there is one.
    """
    if promise.start_s is None:
        return False
    return promise.start_s - submitted_s <= max_wait_share * max(run_s, promise.option.plan.predicted_run_s)


def _promises(board: Board, contender: Contender, num_options: int) -> list[Promise]:
    promises = (
        earliest(board, option, preference)
        for preference, option in enumerate(contender.options[:num_options])
        if option.need.gpu_type not in board.reservations and board.fits_empty(option.need)
    )
    return [promise for promise in promises if promise is not None]


def earliest(board: Board, option: Option, preference: int) -> Promise | None:
    """``option`` at the first of the expected ends by which ``option`` fits; fitting is monotone in time."""
    timeline = board.timeline(option.need.gpu_type)
    found = _first_fit(timeline, option)
    if found is None:
        return None
    time_s, placement = found
    return Promise(
        option=option,
        preference=preference,
        placement=placement,
        start_s=time_s if time_s < math.inf else None,
        after=timeline.names_ending_at(time_s),
    )


def _first_fit(timeline: Timeline, option: Option) -> tuple[float, Placement] | None:
    low, high = 0, len(timeline.times)
    found = None
    while low < high:
        middle = (low + high) // 2
        placement = place(timeline.room_at(timeline.times[middle]), option.need)
        if placement is None:
            low = middle + 1
        else:
            found = (timeline.times[middle], placement)
            high = middle
    return found
