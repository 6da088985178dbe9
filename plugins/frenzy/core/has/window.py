"""Whom a decision after one event looks at: a bounded number of jobs, found in the indices of a state.

Everybody else keeps what it has. Looked at are those who could do something with what is idle or are worth room:

- the first in line of the waiting jobs, and of those that wait for a type of which some GPUs are idle the first, if
  none may overtake it: what is idle is kept for it;
- the first of those that wait for no more GPUs of some type than are idle;
- the last in line of those that hold GPUs which one of the first waiting jobs could use, if it is before them;
- of the running jobs that idle GPUs would let run faster, those that would gain most;
- a few running jobs in turn, whose plans may have come to be too large or too small for a queue of this length.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Final

from frenzy.core.has.claims import Claim, claim_now, is_settled
from frenzy.core.has.line import Elsewhere, Line, must_not_be_overtaken
from frenzy.core.has.ranks import Key, Rank, Ranks, Sums, rank_of
from frenzy.core.has.standing import Standing
from frenzy.core.has.state import SchedulingState
from frenzy.core.values.queue import RunningJob

# Jobs of each kind that are looked at, at most; _NUM_LAST: at least, of each type, where there are so many.
_NUM_FIRST: Final = 8
_NUM_FITTING: Final = 8
_NUM_LAST: Final = 4
_NUM_GROWING: Final = 8
_NUM_IN_TURN: Final = 4
# Jobs that are passed over in the search for one that will do.
_NUM_PASSED: Final = 32


def window(state: SchedulingState, standing: Standing, now_s: float, turn: int | None) -> Line:
    """The line of the jobs to look at; turn: which running jobs have theirs, if any."""
    idle = idle_gpus(state)
    first = list(islice(_startable(standing.waiting, state), _NUM_FIRST))
    fitting, last = list(_fitting(state, standing, idle)), list(_last(standing, first, idle, now_s))
    # Where nothing is idle and nobody could make room, no waiting job can start.
    may_start = (*first, *fitting) if fitting or last else ()
    waiting = {rank.run_key: rank for rank in (*may_start, *_due(state, standing, idle, now_s))}
    found = {rank.run_key: rank for rank in (*last, *_growing(standing, idle, now_s))}
    if turn is not None:
        found |= {rank.run_key: rank for rank in _in_turn(standing.holding, turn) if _may_move(rank, now_s)}
    policy, capacity = standing.policy, standing.tables.capacity
    running = [claim_now(rank.claim, now_s, policy, capacity) for rank in found.values()]
    # Those that could grow were found by what they would gain, not by their place in line.
    holding = [rank_of(rank.claim, weight=rank.weight, gpus=rank.gpus) for rank in found.values()]
    ranks = [*waiting.values(), *holding]
    claims = sorted([*(rank.claim for rank in waiting.values()), *running], key=_place)
    return Line.of(claims, now_s, _elsewhere(state, standing, running, Ranks.of(sorted(ranks))))


def is_room_made(
    state: SchedulingState, standing: Standing, started: Container[str], idle: Mapping[str, int], now_s: float
) -> bool:
    """Whether running jobs might make room for those that are first in line once the ``started`` ones wait no more."""
    left = (rank for rank in _startable(standing.waiting, state) if rank.run_key not in started)
    return any(True for _ in _last(standing, islice(left, _NUM_FIRST), idle, now_s))


def idle_gpus(state: SchedulingState) -> dict[str, int]:
    """Of each type of which any are idle."""
    return {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items() if room.idle_gpus > 0}


def _place(claim: Claim) -> Key:
    return claim.place


def _in_turn(holding: Ranks, turn: int) -> Iterator[Rank]:
    for number in range(min(_NUM_IN_TURN, len(holding))):
        yield holding.nth((turn * _NUM_IN_TURN + number) % len(holding))


def _startable(ranks: Ranks, state: SchedulingState) -> Iterator[Rank]:
    """In order, without those of which workers of an earlier attempt are still there."""
    return (rank for rank in ranks if rank.run_key not in state.running)


def _fitting(state: SchedulingState, standing: Standing, idle: Mapping[str, int]) -> Iterator[Rank]:
    """The first of those that wait for no more GPUs of some type than are idle."""
    if not idle:
        return iter(())
    found = [
        _startable(ranks, state)
        for smallest, ranks in standing.by_need.items()
        if any(num_gpus <= idle.get(gpu_type, 0) for gpu_type, num_gpus in smallest)
    ]
    return islice(merge(*found), _NUM_FITTING)


def _due(state: SchedulingState, standing: Standing, idle: Mapping[str, int], now_s: float) -> Iterator[Rank]:
    """Of each type of which some are ``idle`` the first that waits for it, where none may overtake that one.

    However many jobs that wait for other types come before it: else small ones would take what it needs, bit by bit.
    """
    least_priority = _least_priority(standing)
    heads: dict[str, Rank] = {}
    for smallest, ranks in standing.by_need.items():
        first = next(_startable(ranks, state), None)
        # Where the first may be overtaken, so may all behind it: they matter no more and are due later.
        if first is None or not must_not_be_overtaken(first.claim, now_s, least_priority):
            continue
        for gpu_type in (each for each, _ in smallest if each in idle):
            if gpu_type not in heads or first.key < heads[gpu_type].key:
                found = _first_possible(state, ranks, gpu_type)
                if found is not None and (gpu_type not in heads or found.key < heads[gpu_type].key):
                    heads[gpu_type] = found
    return (rank for rank in heads.values() if must_not_be_overtaken(rank.claim, now_s, least_priority))


def _first_possible(state: SchedulingState, ranks: Ranks, gpu_type: str) -> Rank | None:
    """The first that could have GPUs of the type if nothing ran; None, too, where that takes long to find."""
    for rank in islice(_startable(ranks, state), _NUM_PASSED):
        if any(each.gpu_type == gpu_type and state.fits_empty(each.need) for each in rank.claim.others.choices):
            return rank
    return None


def _least_priority(standing: Standing) -> float:
    """Of all active jobs; infinite where there are none."""
    last = (ranks.last for ranks in (standing.waiting, standing.holding))
    return min((-rank.minus_priority for rank in last if rank is not None), default=math.inf)


def _last(standing: Standing, first: Iterable[Rank], idle: Mapping[str, int], now_s: float) -> Iterator[Rank]:
    """Of each type that one of ``first`` could use the last that hold it, as far as they come after that one.

    A job for which its fastest plan is idle needs nobody's room.
    """
    seen: set[str] = set()
    for rank in first:
        table = rank.claim.others
        if not table.choices or table.choices[0].num_gpus <= idle.get(table.choices[0].gpu_type, 0):
            continue
        for gpu_type, num_gpus in table.fewest_gpus:
            if gpu_type not in seen and gpu_type in standing.by_type:
                seen.add(gpu_type)
                yield from _enough(standing.by_type[gpu_type], rank.key, num_gpus, now_s)


def _enough(holding: Ranks, key: Key, num_gpus: int, now_s: float) -> Iterator[Rank]:
    """The last of ``holding`` after ``key`` that may be moved, until they hold ``num_gpus``, and a few at least."""
    held = number = 0
    for rank in islice(reversed(holding), _NUM_PASSED):
        if rank.key < key or (held >= num_gpus and number >= _NUM_LAST):
            return
        if _may_move(rank, now_s):
            held, number = held + rank.claim.num_held, number + 1
            yield rank


def _growing(standing: Standing, idle: Mapping[str, int], now_s: float) -> Iterator[Rank]:
    """Of the running jobs that idle GPUs would let run faster, those that would gain most."""
    found = [ranks for (gpu_type, more), ranks in standing.steps.items() if more <= idle.get(gpu_type, 0)]
    ready = (rank for rank in islice(merge(*found), _NUM_PASSED) if _may_move(rank, now_s))
    return islice(ready, _NUM_GROWING)


def _may_move(rank: Rank, now_s: float) -> bool:
    job = rank.claim.job
    return isinstance(job, RunningJob) and is_settled(job, now_s)


def _elsewhere(state: SchedulingState, standing: Standing, running: Iterable[Claim], inside: Ranks) -> Elsewhere:
    """All that are not ``inside`` the window, which holds the ``running`` ones."""
    rooms = state.room.by_type
    num_held = {
        gpu_type: number - rooms[gpu_type].idle_gpus for gpu_type, number in standing.tables.capacity.num_gpus.items()
    }
    for claim in running:
        assert claim.current is not None
        num_held[claim.current.gpu_type] = num_held.get(claim.current.gpu_type, 0) - claim.num_held
    waiting, holding = standing.waiting, standing.holding

    def ahead_of(key: Key) -> Sums:
        one, other, own = waiting.ahead_of(key), holding.ahead_of(key), inside.ahead_of(key)
        return Sums(one.weight + other.weight - own.weight, other.gpus - own.gpus)

    weight = waiting.sums.weight + holding.sums.weight - inside.sums.weight
    return Elsewhere(num_held, weight, _least_priority(standing), ahead_of)
