"""What is left to the jobs whose turn is still to come, in one sweep over all of them, and a record of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.plan_tables import Ask, Capacity, PlanTable, RankedPlan
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.service_order import ServiceOrder

Places = Mapping[tuple[str, object], int]
"""How many jobs found a place for a plan that could not be placed for all that took it: (run key, plan id) of a
running job, and ("", need) for all that wait, who ask for the same alike."""


@dataclass(frozen=True, slots=True)
class Kept:
    """GPUs that no job behind ``entry`` may take; where nobody moves, unless it is done by ``start_s``."""

    entry: Entry
    num_gpus: int
    start_s: float | None = None


@dataclass(frozen=True, slots=True)
class Missed:
    """What a waiting job found when its turn came, and took nothing of.

    left: GPUs of each type that no job before it took. kept: those of a type that are kept for one before it. quotas:
    what counted against them, if there are any.
    """

    left: Mapping[str, int]
    kept: Mapping[str, Kept]
    quotas: QuotaUse | None


@dataclass(slots=True)
class Sweep:
    """Capacity in the course of one sweep.

    left: GPUs that no entry earlier in line has; idle: of these, held by nobody. disturbance_s: what it is worth
    not to make another job move, beside what that one loses. places: for how many there are any, of a plan that
    earlier sweeps could not place for all. quotas: GPUs claimed against them, if there are any. reserved: GPU types
    of which some are kept for a job that must not be overtaken. allowance: effective GPUs that the job whose turn
    it is may have.
    missed: of each waiting job that took nothing, by run key. _placed: how many of ``places`` are taken.
    _full: asks of which nothing fits into ``left``; emptied whenever ``left`` grows.
    """

    policy: BackfillPolicy
    capacity: Capacity
    line: ServiceOrder
    left: dict[str, int]
    idle: dict[str, int]
    quotas: QuotaUse | None
    places: Places = field(default_factory=dict)
    disturbance_s: float = field(init=False)
    effective: float = field(init=False)
    allowance: float = math.inf
    reserved: dict[str, Kept] = field(default_factory=dict)
    missed: dict[str, Missed] = field(default_factory=dict)
    _placed: Counter[tuple[str, object]] = field(default_factory=Counter)
    _turn: Missed | None = None
    _full: set[Ask] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.disturbance_s = self.policy.disturbance * self.line.restart_s
        self.effective = self.capacity.effective

    def take(self, entry: Entry, ranked: RankedPlan) -> None:
        """``entry`` has ``ranked``; GPUs of nodes that take no new work are no capacity."""
        self._keep(entry, ranked, 1)

    def give_back(self, entry: Entry, ranked: RankedPlan) -> None:
        """``entry`` has ``ranked`` no more."""
        self._keep(entry, ranked, -1)
        self._full.clear()

    def _keep(self, entry: Entry, ranked: RankedPlan, sign: int) -> None:
        if self.quotas is not None:
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
            left, kept = self.found()
            self._turn = Missed(left, kept, self.quotas.after() if self.quotas is not None else None)
        for entry in entries:
            self.missed[entry.run_key] = self._turn

    def found(self) -> tuple[dict[str, int], dict[str, Kept]]:
        """What is left to a job that has its turn now, and what is kept."""
        return dict(self.left), dict(self.reserved)

    def keeps_before_borrowing(self) -> bool:
        """Whether a due job that its queue's right does not allow for has GPUs kept at its turn.

        Not where jobs move: others give GPUs up later in the sweep, which then may start it after all.
        """
        return False

    def has_place(self, entry: Entry, ranked: RankedPlan) -> bool:
        """Whether a plan for which GPUs enough are left may be placed, as far as that is known before all is."""
        if not self.places:
            return True
        asked = asked_by(entry, ranked)
        return self._placed[asked] < self.places.get(asked, math.inf)

    def is_over(self) -> bool:
        """Whether nobody has a turn any more."""
        return False

    def waits_for_better(self, _entry: Entry, _best: RankedPlan, _price: float) -> bool:
        """Whether a job had better wait than take ``best``."""
        return False

    def keep_for(self, entry: Entry, _price: float) -> None:
        """Reserve for a waiting ``entry`` that found no place, if none behind may take what it waits for."""
        if self.line.must_not_be_overtaken(entry):
            self.reserve(entry)

    def reserve(self, entry: Entry) -> None:
        """Keep what is left of the GPU type on which ``entry`` lacks fewest from all behind it.

        Nothing for what it could not have, however many jobs end: where no node has room for it, or a quota forbids
        it. One reservation for each type. Where GPUs have to lie together on a node, all of the type is kept.
        """
        possible: list[RankedPlan] = []
        for ranked in entry.others.plans:
            if self.capacity.fits_empty(ranked.need) and self.may_have(entry, ranked):
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

    def possible_of(self, table: PlanTable) -> list[RankedPlan]:
        """What of ``table`` would fit if nothing ran."""
        return [each for each in table.plans if self.capacity.fits_empty(each.need)]

    def is_full(self, ask: Ask) -> bool:
        """Whether nothing of ``ask`` fits into what is left."""
        if ask in self._full:
            return True
        left = self.left
        for gpu_type, num_gpus in ask.fewest_gpus:
            if num_gpus <= left.get(gpu_type, 0):
                return False
        self._full.add(ask)
        return True

    @property
    def num_full(self) -> int:
        """How many asks are known of which nothing fits."""
        return len(self._full)

    def may_have(self, entry: Entry, ranked: RankedPlan) -> bool:
        """Whether neither a quota nor its queue's share forbids ``ranked``."""
        if ranked.gpus > self.allowance:
            return False
        return self.quotas is None or self.quotas.exceeded(entry.job, ranked.gpu_type, ranked.num_gpus) is None


def asked_by(entry: Entry, ranked: RankedPlan) -> tuple[str, object]:
    """What ``ranked`` is among ``Places``."""
    return ("", ranked.need) if entry.current is None else (entry.run_key, ranked.plan.plan_id)
