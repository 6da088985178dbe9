"""When a waiting job could start, if running jobs end as expected."""

from __future__ import annotations

import math

from frenzy.core.scheduling.engine.board import Board
from frenzy.core.scheduling.engine.options import Contender, Option
from frenzy.core.scheduling.engine.reservation import Promise
from frenzy.core.values.job import Objective

Preference = tuple[float, float, int]


def best_promise(board: Board, contender: Contender, num_options: int, *, max_wait_share: float) -> Promise | None:
    """The promise to keep among the first ``num_options`` options of ``contender``.

    Only types without a reservation can promise anything. TIME: the earliest predicted end.
    COST: the first option that starts within the bound of its patience, else the earliest end.
    An ``ordered`` job: the earliest start. A start that is not known comes last.
    """
    if all(gpu_type in board.reservations for gpu_type, _ in contender.fewest_gpus):
        return None
    job = contender.job
    by_end = job.objective is Objective.TIME and not job.ordered
    best: tuple[Preference, Promise] | None = None
    for soonest_end_s, preference, option in _by_soonest_end(board, contender, num_options):
        if best is not None and by_end and soonest_end_s > best[1].end_s:
            break
        promise = earliest(board, option, preference)
        if promise is None:
            continue
        key = _preference(contender, promise, max_wait_share)
        if best is None or key < best[0]:
            best = (key, promise)
    return best[1] if best else None


def within_patience(promise: Promise, contender: Contender, max_wait_share: float) -> bool:
    """Whether waiting for ``promise`` keeps the job's whole wait, from its submission on, in bounds.

    The bound is a share of the longest predicted run time among its options, hence the same
    whichever of them are free at the moment: a job does not change its mind for that alone.
    """
    if promise.start_s is None:
        return False
    longest_s = max(option.run_s for option in contender.options)
    return promise.start_s - contender.job.submitted_s <= max_wait_share * longest_s


def earliest(board: Board, option: Option, preference: int) -> Promise | None:
    """``option`` at the first of the expected ends by which it fits; None if it never does."""
    timeline = board.timeline(option.need.gpu_type)
    found = timeline.first_fit(option.need)
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


def _by_soonest_end(board: Board, contender: Contender, num_options: int) -> list[tuple[float, int, Option]]:
    """Options that can be promised, by the earliest end that counting GPUs alone allows."""
    return sorted(
        (
            (_soonest_end_s(board, option), preference, option)
            for preference, option in enumerate(contender.options[:num_options])
            if option.need.gpu_type not in board.reservations and board.fits_empty(option.need)
        ),
        key=lambda each: each[:2],
    )


def _soonest_end_s(board: Board, option: Option) -> float:
    return board.timeline(option.need.gpu_type).soonest(option.need.num_gpus) + option.run_s


def _preference(contender: Contender, promise: Promise, max_wait_share: float) -> Preference:
    job = contender.job
    start_s = math.inf if promise.start_s is None else promise.start_s
    if job.ordered:
        return (start_s, 0.0, promise.preference)
    if job.objective is Objective.COST and within_patience(promise, contender, max_wait_share):
        return (-math.inf, 0.0, promise.preference)
    return (promise.end_s, start_s, promise.preference)
