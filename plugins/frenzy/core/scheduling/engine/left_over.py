"""What is left to the jobs whose turn is still to come in a sweep, its record, and promises of later starts."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import ClassVar

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.capacity.free_capacity import Free, FreeOfType, Need, place
from frenzy.core.capacity.queue_use import QuotaUse
from frenzy.core.scheduling.engine.job_plans import Ask, RankedPlan
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy, Policy
from frenzy.core.scheduling.engine.service_order import ServiceOrder
from frenzy.core.scheduling.engine.state import Entry
from frenzy.core.values.cluster import Placement
from frenzy.core.values.scheduling_facts import RunningJob

Places = Mapping[tuple[str, object], int]
"""How many jobs found a place for what could not be placed for all: (run key, plan id) of a running job, and
("", need) for all that wait."""


@dataclass(frozen=True, slots=True)
class Kept:
    """GPUs that no job behind ``entry`` may take, unless it is done by ``start_s``; infinite where nobody knows."""

    entry: Entry
    num_gpus: int
    start_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Missed:
    """What a waiting job found at its turn: GPUs of each type left, those kept for another, and quotas in use."""

    left: Mapping[str, int]
    kept: Mapping[str, Kept]
    quotas: QuotaUse


@dataclass(frozen=True, slots=True)
class Promise:
    """``ranked`` for the job of ``entry`` from ``start_s`` on, infinite where that hangs on an end that is not known.

    instead_of: what it could have started at once. after: names of the jobs whose end it waits for last. at_start: what
    is left to others then on each of its nodes; none where it waits its turn behind another's promise.
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

    def spare(self, now: FreeOfType) -> FreeOfType:
        """What a job of any length may use of ``now``."""
        return now.with_free({name: now.free[name].lesser(free) for name, free in self.at_start.items()})

    def narrow(self, need: Need, placement: Placement, sign: int) -> None:
        """A job that lasts beyond the start holds ``placement`` for ``need`` (1), or no longer does (-1)."""
        for each in placement.allocations:
            if each.node in self.at_start:
                self.at_start[each.node] = self.at_start[each.node].plus(need.on_node(each.num_gpus), -sign)


class Timeline:
    """How the room of one GPU type, ``before`` now, grows as its jobs end: ``ends``, in order, infinite if unknown."""

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

    def earliest(self, need: Need) -> tuple[float, tuple[str, ...], dict[str, Free]] | None:
        """The first expected end by which ``need`` fits, for fitting is monotone; whose end it is, by name; and what is
        left then on each node of its place.
        """
        first, last = bisect_left(self._at_most, need.num_gpus), len(self._times) - 1
        if first > last:
            return None
        fits = bisect_left(range(first, last), True, key=lambda at: place(self._room(at), need) is not None)
        room, jobs = self._room(first + fits), self._jobs[first + fits]
        placement = place(room, need)
        if placement is None:
            return None
        left = {each.node: room.free[each.node].plus(need.on_node(each.num_gpus), -1) for each in placement.allocations}
        return self._times[first + fits], tuple(sorted(job.job_name for job in jobs)), left

    def _room(self, at: int) -> FreeOfType:
        changed: dict[str, Free] = {}
        for jobs in self._jobs[: at + 1]:
            for job in jobs:
                need = self._policy.need(job.plan)
                for each in job.placement.allocations:
                    before = changed.get(each.node, self._before.free.get(each.node))
                    if before is not None:
                        changed[each.node] = before.plus(need.on_node(each.num_gpus))
        return self._before.with_free(changed)


@dataclass(slots=True)
class Sweep:
    """Capacity in the course of one sweep.

    moves: whether jobs may be moved. left: GPUs that no entry earlier in line has; idle: of these, held by nobody.
    places: for how many there are any, of what earlier sweeps could not place for all; _placed: how many are taken.
    reserved: by GPU type, for a job that must not be overtaken. allowance: effective GPUs that the job whose turn it is
    may have. missed, own_promises: of waiting jobs, by run key. head: blocks all behind. _full: asks that find nothing.
    """

    moves: ClassVar[bool] = True
    policy: BackfillPolicy
    capacity: Capacity
    line: ServiceOrder
    left: dict[str, int]
    idle: dict[str, int]
    quotas: QuotaUse
    places: Places = field(default_factory=dict)
    effective: float = field(init=False)
    _has_quotas: bool = field(init=False)
    allowance: float = math.inf
    reserved: dict[str, Kept] = field(default_factory=dict)
    missed: dict[str, Missed] = field(default_factory=dict)
    own_promises: dict[str, Promise] = field(default_factory=dict)
    head: Entry | None = None
    _placed: Counter[tuple[str, object]] = field(default_factory=Counter)
    _turn: Missed | None = None
    _full: set[Ask] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.effective, self._has_quotas = self.capacity.effective, bool(self.quotas.rules)

    def take(self, entry: Entry, ranked: RankedPlan) -> None:
        """``entry`` has ``ranked``; GPUs of nodes that take no new work are no capacity."""
        self._keep(entry, ranked, 1)

    def give_back(self, entry: Entry, ranked: RankedPlan) -> None:
        """``entry`` has ``ranked`` no more."""
        self._keep(entry, ranked, -1)
        self._full.clear()

    def _keep(self, entry: Entry, ranked: RankedPlan, sign: int) -> None:
        self.quotas.add(entry.job, ranked.gpu_type, sign * ranked.num_gpus)
        if self.places and ranked is not entry.current:
            self._placed[asked_by(entry, ranked)] += sign
        num_gpus = entry.num_held if ranked is entry.current else ranked.num_gpus
        self.left[ranked.gpu_type] = self.left.get(ranked.gpu_type, 0) - sign * num_gpus
        self.effective -= sign * ranked.gpus * num_gpus / ranked.num_gpus
        self._turn = None

    def passed(self, entries: Iterable[Entry]) -> None:
        """Waiting ``entries`` have their turn now and take nothing."""
        if self._turn is None:
            self._turn = Missed(*self.found(), self.quotas.after())
        for entry in entries:
            self.missed[entry.run_key] = self._turn

    def found(self) -> tuple[dict[str, int], dict[str, Kept]]:
        """What is left to a job that has its turn now, and what is kept."""
        return dict(self.left), dict(self.reserved)

    def has_place(self, entry: Entry, ranked: RankedPlan) -> bool:
        """Whether a plan for which GPUs enough are left may be placed, as far as that is known before all is."""
        if not self.places:
            return True
        asked = asked_by(entry, ranked)
        return self._placed[asked] < self.places.get(asked, math.inf)

    def waits_for_better(self, _entry: Entry, _best: RankedPlan, _price: float) -> bool:
        """Whether a job had better wait than take ``best``."""
        return False

    def keep_for(self, entry: Entry, _price: float) -> None:
        """Keep GPUs from all behind a waiting ``entry`` that found no place, if none may overtake it.

        Those left of the type on which it lacks fewest, once for each type; all of the type, where GPUs have to lie
        together on a node.
        """
        if not self.line.must_not_be_overtaken(entry):
            return
        possible: list[RankedPlan] = []
        for ranked in self.possible_of(entry):
            if ranked.gpu_type in self.reserved:
                return
            possible.append(ranked)
        if not possible:
            return
        nearest = min(possible, key=lambda each: (each.num_gpus - self.left.get(each.gpu_type, 0), each.unit_s))
        left = self.left.get(nearest.gpu_type, 0)
        kept = max(0, left if nearest.need.group_size > 1 else min(left, nearest.num_gpus))
        self.reserved[nearest.gpu_type] = Kept(entry, kept)
        self.left[nearest.gpu_type] = left - kept
        self._turn = None

    def possible_of(self, entry: Entry) -> Iterator[RankedPlan]:
        """What would fit if nothing ran, and it may have."""
        fits, plans = self.capacity.fits_empty, entry.others.plans
        return (each for each in plans if fits(each.need) and self.may_have(entry, each))

    def is_full(self, ask: Ask) -> bool:
        """Whether nothing of ``ask`` fits into what is left."""
        if self.head is not None or ask in self._full:
            return True
        if any(num_gpus <= self.left.get(gpu_type, 0) for gpu_type, num_gpus in ask.fewest_gpus):
            return False
        self._full.add(ask)
        return True

    @property
    def is_full_for_all(self) -> bool:
        """Whether nothing fits of what any waiting job asks."""
        return self.head is not None or len(self._full) >= self.line.num_asks

    def may_have(self, entry: Entry, ranked: RankedPlan) -> bool:
        """Whether neither a quota nor its queue's share forbids ``ranked``."""
        if ranked.gpus > self.allowance:
            return False
        return not self._has_quotas or self.quotas.exceeded(entry.job, ranked.gpu_type, ranked.num_gpus) is None


def asked_by(entry: Entry, ranked: RankedPlan) -> tuple[str, object]:
    """What ``ranked`` is among ``Places``."""
    return ("", ranked.need) if entry.current is None else (entry.run_key, ranked.plan.plan_id)
