"""How the room of one GPU type grows as its running jobs end."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, chain
from typing import Final

from frenzy.core.scheduling.engine.options import Rules
from frenzy.core.scheduling.engine.placement import place
from frenzy.core.scheduling.engine.room import Free, Need, TypeRoom, plus
from frenzy.core.values.cluster import Placement
from frenzy.core.values.scheduling_facts import RunningJob

# Each is as large as the type's nodes are many.
_NUM_ROOMS: Final = 16


class Ends:
    """The expected ends on one GPU type, and the room there is after each; whatever time it is now.

    They are given in order, by time and run key. before: the room before all of them. times: the distinct ones; jobs
    whose end is not known come last, at infinity.
    """

    def __init__(self, room: TypeRoom, ends: Iterable[tuple[float, RunningJob]], rules: Rules) -> None:
        self.before, self._rules = room, rules
        ended: dict[float, list[RunningJob]] = {}
        for end_s, job in ends:
            ended.setdefault(end_s, []).append(job)
        ended.setdefault(math.inf, [])
        self.times = tuple(ended)
        self.jobs = tuple(ended.values())
        gpus = (sum([job.plan.num_gpus for job in jobs]) for jobs in self.jobs)
        self.idle_at_most = [room.idle_gpus + total for total in accumulate(gpus)]
        self._rooms: dict[int, TypeRoom] = {}

    def room(self, at: int) -> TypeRoom:
        """Room once every job ended that is expected to by the time at place ``at``."""
        if at not in self._rooms:
            known = max((each for each in self._rooms if each < at), default=-1)
            ended = chain.from_iterable(self.jobs[known + 1 : at + 1])
            found = released(self._rooms.get(known, self.before), self._rules, ended)
            if len(self._rooms) >= _NUM_ROOMS:
                self._rooms.clear()
            self._rooms[at] = found
        return self._rooms[at]


class Timeline:
    """Expected ends as they look at ``now_s``: a job past its expected end may end at any moment, hence now."""

    def __init__(self, ends: Ends, now_s: float) -> None:
        self._ends, self._now_s = ends, now_s
        # All that should have ended by now do so at once: the first place is that of the last of them.
        self._first = max(0, bisect_right(ends.times, now_s) - 1)

    def room_at(self, time_s: float) -> TypeRoom:
        """Room once every job ended that is expected to by ``time_s``, one of the expected ends."""
        return self._ends.room(self._place_of(time_s))

    def names_ending_at(self, time_s: float) -> tuple[str, ...]:
        """Of the jobs that are expected to end at ``time_s``, one of the expected ends."""
        at = self._place_of(time_s)
        if self._ends.times[at] > self._now_s:
            return tuple(job.job_name for job in self._ends.jobs[at])
        overdue = sorted(chain.from_iterable(self._ends.jobs[: at + 1]), key=lambda job: job.run_key)
        return tuple(job.job_name for job in overdue)

    def soonest(self, num_gpus: int) -> float:
        """A time before which ``num_gpus`` cannot be idle; infinite if they never are."""
        at = self._first_with(num_gpus)
        return self._time(at) if at < len(self._ends.times) else math.inf

    def first_fit(self, need: Need) -> tuple[float, Placement] | None:
        """The first expected end by which ``need`` fits, and where; fitting is monotone in time.

        Looks from the soonest time on in growing strides, then halves: what is near is found fast.
        """
        last = len(self._ends.times) - 1
        low = high = self._first_with(need.num_gpus)
        stride = 1
        while high < last and place(self._ends.room(high), need) is None:
            low, high, stride = high + 1, min(last, high + stride), 2 * stride
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if place(self._ends.room(middle), need) is not None else (middle + 1, high)
        placement = place(self._ends.room(low), need) if low <= last else None
        return None if placement is None else (self._time(low), placement)

    def _first_with(self, num_gpus: int) -> int:
        return max(self._first, bisect_left(self._ends.idle_at_most, num_gpus))

    def _time(self, at: int) -> float:
        return max(self._now_s, self._ends.times[at])

    def _place_of(self, time_s: float) -> int:
        return self._first if time_s <= self._now_s else bisect_left(self._ends.times, time_s)


def released(room: TypeRoom, rules: Rules, ended: Iterable[RunningJob]) -> TypeRoom:
    """``room`` once the jobs in ``ended`` are gone."""
    changed: dict[str, Free] = {}
    for job in ended:
        need = rules.need(job.plan)
        for each in job.placement.allocations:
            before = changed.get(each.node, room.free.get(each.node))
            if before is not None:
                changed[each.node] = plus(before, need.on_node(each.num_gpus))
    return room.with_free(changed)
