"""How the room of one GPU type grows as its running jobs end."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, chain

from frenzy.core.cluster import Placement
from frenzy.core.has.placement import place
from frenzy.core.has.room import Free, Need, TypeRoom, plus
from frenzy.core.has.state import SchedulingState
from frenzy.core.queue import RunningJob


class Timeline:
    """The room of one GPU type as its running jobs end, one expected end after the other.

    times: distinct ends, ascending; a job past its expected end may end at any moment, hence
    now; jobs whose end is not known come last, at infinity.
    """

    def __init__(self, room: TypeRoom, ends: Iterable[tuple[float, RunningJob]], state: SchedulingState) -> None:
        self._now = room
        self._state = state
        self._ended: dict[float, list[RunningJob]] = {}
        for end_s, job in sorted(ends, key=lambda end: (end[0], end[1].run_key)):
            self._ended.setdefault(end_s, []).append(job)
        self._ended.setdefault(math.inf, [])
        self.times = tuple(self._ended)
        gpus = (sum(job.plan.num_gpus for job in self._ended[time_s]) for time_s in self.times)
        self._idle_at_most = [room.idle_gpus + total for total in accumulate(gpus)]
        self._rooms: dict[int, TypeRoom] = {}

    def room_at(self, time_s: float) -> TypeRoom:
        """Room once every job ended that is expected to by ``time_s``, one of ``times``."""
        return self._room(bisect_left(self.times, time_s))

    def names_ending_at(self, time_s: float) -> tuple[str, ...]:
        return tuple(job.job_name for job in self._ended[time_s])

    def soonest(self, num_gpus: int) -> float:
        """A time before which ``num_gpus`` cannot be idle; infinite if they never are."""
        at = bisect_left(self._idle_at_most, num_gpus)
        return self.times[at] if at < len(self.times) else math.inf

    def first_fit(self, need: Need) -> tuple[float, Placement] | None:
        """The first of ``times`` by which ``need`` fits, and where; fitting is monotone in time.

        Looks from the soonest time on in growing strides, then halves: what is near is found fast.
        """
        last = len(self.times) - 1
        low = high = bisect_left(self._idle_at_most, need.num_gpus)
        stride = 1
        while high < last and place(self._room(high), need) is None:
            low, high, stride = high + 1, min(last, high + stride), 2 * stride
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if place(self._room(middle), need) is not None else (middle + 1, high)
        placement = place(self._room(low), need) if low <= last else None
        return None if placement is None else (self.times[low], placement)

    def _room(self, at: int) -> TypeRoom:
        if at not in self._rooms:
            known = max((each for each in self._rooms if each < at), default=-1)
            ended = chain.from_iterable(self._ended[time_s] for time_s in self.times[known + 1 : at + 1])
            self._rooms[at] = released(self._rooms.get(known, self._now), self._state, ended)
        return self._rooms[at]


def released(room: TypeRoom, state: SchedulingState, ended: Iterable[RunningJob]) -> TypeRoom:
    """``room`` once the jobs in ``ended`` are gone."""
    changed: dict[str, Free] = {}
    for job in ended:
        need = state.rules.need(job.plan)
        for each in job.placement.allocations:
            before = changed.get(each.node, room.free.get(each.node))
            if before is not None:
                changed[each.node] = plus(before, need.on_node(each.num_gpus))
    return room.with_free(changed)
