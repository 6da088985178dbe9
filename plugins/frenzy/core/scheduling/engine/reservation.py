"""What a waiting job is promised where nobody moves: when and where it can start if running jobs end as expected."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.placement import place
from frenzy.core.scheduling.engine.plan_tables import RankedPlan
from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.scheduling.engine.room import Free, FreeOfType, Need, lesser, minus, plus
from frenzy.core.values.cluster import Placement
from frenzy.core.values.scheduling_facts import RunningJob


@dataclass(frozen=True, slots=True)
class Promise:
    """``ranked`` for the job of ``entry`` from ``start_s`` on, infinite where that hangs on an end that is not known.

    instead_of: what it could have started at once, and gave up for this. after: names of the jobs whose end it waits
    for last. at_start: of each of its nodes what is left to others then; of none for a job that waits its turn behind
    another's promise.
    """

    entry: Entry
    ranked: RankedPlan
    start_s: float
    instead_of: RankedPlan | None
    after: tuple[str, ...] = ()
    at_start: dict[str, Free] = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        """Whether GPUs are kept for it."""
        return bool(self.at_start)

    @property
    def end_s(self) -> float:
        return self.start_s + self.entry.restart_s + self.entry.run_s(self.ranked)

    def begins_after(self, end_s: float) -> bool:
        """Whether a job that ends at ``end_s`` is gone by the promised start."""
        return end_s <= self.start_s < math.inf

    def spare(self, now: FreeOfType) -> FreeOfType:
        """What a job of any length may use of ``now``."""
        return now.with_free({name: lesser(now.free[name], free) for name, free in self.at_start.items()})

    def narrow(self, need: Need, placement: Placement, sign: int) -> None:
        """A job that lasts beyond the start holds ``placement`` for ``need``, or no longer does."""
        change = minus if sign > 0 else plus
        for each in placement.allocations:
            if each.node in self.at_start:
                self.at_start[each.node] = change(self.at_start[each.node], need.on_node(each.num_gpus))


class Timeline:
    """How the room of one GPU type grows as its jobs end. A job past its expected end may end at any moment.

    before: the room now. ends: expected ends with their jobs, in order; infinite where they are not known.
    """

    def __init__(
        self, before: FreeOfType, ends: Sequence[tuple[float, RunningJob]], now_s: float, policy: Policy
    ) -> None:
        self._before, self._policy = before, policy
        grouped = groupby(ends, key=lambda end: max(now_s, end[0]))
        found = [(time_s, [job for _, job in each]) for time_s, each in grouped]
        self._times, self._jobs = [time_s for time_s, _ in found], [jobs for _, jobs in found]
        freed = accumulate(sum(job.plan.num_gpus for job in jobs) for jobs in self._jobs)
        self._at_most = [before.idle_gpus + num_gpus for num_gpus in freed]

    def soonest(self, num_gpus: int) -> float:
        """A time before which ``num_gpus`` cannot be idle; infinite if they never are."""
        at = bisect_left(self._at_most, num_gpus)
        return self._times[at] if at < len(self._times) else math.inf

    def earliest(self, need: Need) -> tuple[float, tuple[str, ...], FreeOfType, Placement] | None:
        """The first expected end by which ``need`` fits, whose it is, the room then, and where; fitting is monotone."""
        first, last = bisect_left(self._at_most, need.num_gpus), len(self._times) - 1
        if first > last:
            return None
        fits = bisect_left(range(first, last), True, key=lambda at: place(self._room(at), need) is not None)
        at = first + fits
        room = self._room(at)
        placement = place(room, need)
        if placement is None:
            return None
        names = tuple(sorted(job.job_name for job in self._jobs[at]))
        return self._times[at], names, room, placement

    def _room(self, at: int) -> FreeOfType:
        changed: dict[str, Free] = {}
        for jobs in self._jobs[: at + 1]:
            for job in jobs:
                need = self._policy.need(job.plan)
                for each in job.placement.allocations:
                    before = changed.get(each.node, self._before.free.get(each.node))
                    if before is not None:
                        changed[each.node] = plus(before, need.on_node(each.num_gpus))
        return self._before.with_free(changed)
