"""The smallest change that would start a waiting job now: tried, not argued.

The facts are changed and decided on again by the policy itself, the smallest change first. So a number that is named
is true: with it the job starts, with less it does not. "More idle GPUs" are those of one more node, which lacks
neither CPUs nor host memory. It is true before the decision's actions are done and after: where that differs, and
where trials would take long (each is a whole decision), no number is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.placement import usable_gpus
from frenzy.core.scheduling.engine.plan_tables import RankedPlan
from frenzy.core.scheduling.engine.policy_settings import Policy, queue_rules
from frenzy.core.scheduling.engine.room import Free, FreeOfType, Need
from frenzy.core.scheduling.engine.wording import host_needs
from frenzy.core.scheduling.reasons.rule_changes import least_quota
from frenzy.core.scheduling.reasons.what_if import gpus_wanted, one_for_each_type, with_idle_gpus
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Action, QueuedJob, SchedulingFacts, Start
from frenzy.core.values.units import GIB, MIB

Decide = Callable[[SchedulingFacts, float, Policy], tuple[Action, ...]]

# What all trials of one decision look at, at most: jobs, and nodes at so much less each.
MOST_LOOKS: Final = 1000
_NODES_A_LOOK: Final = 16
_UNTOLD: Final = frozenset({ReasonCode.WAITING_FOR_OLD_WORKERS, ReasonCode.WAITING_FOR_NODES})


class Untold(Exception):
    """No more trials are to be made, or they tell no clear tale."""


Change = Callable[[SchedulingFacts], SchedulingFacts]


@dataclass(slots=True)
class Trials:
    """Decisions on changed facts, as long as they look at no more than ``looks`` jobs in all.

    after: ``facts`` once what was decided is done; the same where that is nothing.
    """

    facts: SchedulingFacts
    after: SchedulingFacts
    now_s: float
    policy: Policy
    decide: Decide
    looks: int = MOST_LOOKS
    _looks_each: int = field(init=False)

    def __post_init__(self) -> None:
        facts = self.facts
        self._looks_each = len(facts.queued) + len(facts.running) + len(facts.cluster.nodes) // _NODES_A_LOOK

    def starts(self, run_key: str, change: Change | None = None, policy: Policy | None = None) -> bool:
        """Whether the job would start with facts so changed and with this policy. Raises Untold."""
        policy = replace(policy or self.policy, num_forecasts=0)
        bases = [self.facts] if self.after is self.facts else [self.facts, self.after]
        found = {self._starts(run_key, base if change is None else change(base), policy) for base in bases}
        if len(found) > 1:
            raise Untold
        return found.pop()

    def _starts(self, run_key: str, facts: SchedulingFacts, policy: Policy) -> bool:
        if self.looks < self._looks_each:
            raise Untold
        self.looks -= self._looks_each
        actions = self.decide(facts, self.now_s, policy)
        return any(isinstance(each, Start) and each.run_key == run_key for each in actions)

    def remedy(self, entry: Entry, reason: Reason, room: Callable[[str], FreeOfType]) -> str | None:
        """The smallest change that was found; None where none was, in so many trials. room: of each GPU type, now."""
        if self.looks < self._looks_each or reason.code in _UNTOLD:
            return None
        found: list[str] = []
        with suppress(Untold):
            found.extend(self._found(entry, reason, room))
        return " or ".join(found) if found else None

    def _found(self, entry: Entry, reason: Reason, room: Callable[[str], FreeOfType]) -> Iterator[str]:
        code = reason.code
        if code is ReasonCode.WAITING_FOR_QUOTA:
            yield from self.quotas(entry.queued)
            return
        if code is ReasonCode.WAITING_FOR_HOST_RESOURCES:
            host = self._host(entry, room)
            if host is not None:
                yield host
                return
        gpus = self._gpus(entry, "in the cluster" if code is ReasonCode.NEVER_FITS else "free")
        if gpus is not None:
            yield gpus
        if code is ReasonCode.WAITING_BEHIND_HEAD:
            priority = self.priority(entry.queued)
            if priority is not None:
                yield f"a priority above {priority - 1}"

    def quotas(self, job: QueuedJob) -> Iterator[str]:
        """The least quota that alone would start ``job``, for each that it is under. Raises Untold."""
        for limit in queue_rules(self.policy).limits_of(job.queue, job.team):
            found = least_quota(
                self.facts, job, self.policy, limit, lambda policy: self.starts(job.run_key, None, policy)
            )
            if found is not None:
                of_type = "GPUs" if limit.gpu_type is None else limit.gpu_type
                yield f"a quota of {found} {of_type} for {limit.title}"

    def priority(self, job: QueuedJob) -> int | None:
        """The least priority that would start ``job``. Raises Untold."""
        others = {each.priority for each in self.facts.queued} | {each.priority for each in self.facts.running}
        for priority in sorted({step for each in others for step in (each, each + 1) if step > job.priority}):
            if self.starts(job.run_key, partial(_at_priority, run_key=job.run_key, priority=priority)):
                return priority
        return None

    def _gpus(self, entry: Entry, where: str) -> str | None:
        """The fewest idle GPUs of any type that would start the job; where: they are to be."""
        options = smallest_of_each_type(entry, self.facts.cluster)
        most = {each.need.gpu_type: gpus_wanted(self.facts, each.need.gpu_type) for each in options}
        for num_gpus in range(1, max(most.values(), default=0) + 1):
            for ranked in options:
                if num_gpus <= most[ranked.gpu_type] and self.starts_with(entry, ranked, num_gpus):
                    return _more(num_gpus, entry, ranked, where)
        return None

    def starts_with(self, entry: Entry, ranked: RankedPlan, num_gpus: int) -> bool:
        """Whether the job would start with so many more idle GPUs of the type of ``ranked``. Raises Untold."""
        more = partial(with_idle_gpus, gpu_type=ranked.gpu_type, num_gpus=num_gpus)
        return self.starts(entry.job.run_key, more)

    def _host(self, entry: Entry, room: Callable[[str], FreeOfType]) -> str | None:
        """What the node that comes closest lacks of CPUs and host memory."""
        needs = [each.need for each in entry.others.listed if each.need.gpu_type in self.facts.cluster.types_by_name]
        nearest = [found for need in needs if (found := _nearest_lack(room(need.gpu_type), need)) is not None]
        for name, lack in sorted(nearest, key=_lack_order):
            shown, host_bytes = _rounded_up(lack.host_bytes)
            more = partial(_with_host, name=name, more=Free(0, host_bytes, lack.millicpus))
            if self.starts(entry.job.run_key, more):
                parts = [f"{shown} of host memory"] if lack.host_bytes else []
                parts += [f"{lack.millicpus / 1000:g} CPUs"] if lack.millicpus else []
                return f"{' and '.join(parts)} more free on {name}"
        return None


def smallest_of_each_type(entry: Entry, cluster: Cluster) -> list[RankedPlan]:
    """Of each GPU type the ranked with the fewest GPUs."""
    return one_for_each_type(sorted(entry.others.listed, key=lambda each: each.need.num_gpus), cluster)


def _more(num_gpus: int, entry: Entry, ranked: RankedPlan, where: str) -> str:
    """Where they are more than it takes itself, others are served before it."""
    need = ranked.need
    grouped = any(each.need.group_size > 1 for each in entry.others.listed if each.need.gpu_type == need.gpu_type)
    shared = " (other jobs take some of them first)" if num_gpus > need.num_gpus else ""
    host = f", with {host_needs(need)}" if need.host_bytes_per_node or need.host_bytes_per_gpu else ""
    return f"{num_gpus} more {need.gpu_type} {where}{' on one further node' if grouped else ''}{shared}{host}"


def _nearest_lack(room: FreeOfType, need: Need) -> tuple[str, Free] | None:
    """The node on which the least more of CPUs and host memory makes room for what finds none on all the others."""
    usable = usable_gpus(room, need)
    missing = need.num_gpus - sum(usable.values())

    def lack(name: str, num_gpus: int) -> Free:
        free, wanted = room.free[name], need.on_node(num_gpus)
        return Free(0, max(0, wanted.host_bytes - free.host_bytes), max(0, wanted.millicpus - free.millicpus))

    short = [
        (name, lack(name, num_gpus))
        for idle, names in enumerate(room.by_idle)
        for name in names
        if name not in need.excluded_nodes and usable.get(name, 0) < (num_gpus := usable.get(name, 0) + missing) <= idle
    ]
    return min(short, key=_lack_order, default=None)


def _lack_order(found: tuple[str, Free]) -> tuple[int, int, str]:
    name, lack = found
    return lack.host_bytes, lack.millicpus, name


def _rounded_up(num_bytes: int) -> tuple[str, int]:
    """As it is shown, to a tenth of a unit, and what that comes to."""
    unit, name = (GIB, "GiB") if num_bytes >= GIB else (MIB, "MiB")
    tenths = math.ceil(num_bytes * 10 / unit)
    return f"{tenths / 10:.1f} {name}", math.ceil(tenths * unit / 10)


def _at_priority(facts: SchedulingFacts, run_key: str, priority: int) -> SchedulingFacts:
    queued = tuple(replace(each, priority=priority) if each.run_key == run_key else each for each in facts.queued)
    return replace(facts, queued=queued)


def _with_host(facts: SchedulingFacts, name: str, more: Free) -> SchedulingFacts:
    cluster = facts.cluster
    nodes = tuple(
        replace(
            node,
            host_memory_bytes=node.host_memory_bytes + more.host_bytes,
            num_cpus=node.num_cpus + more.millicpus / 1000,
        )
        if node.name == name
        else node
        for node in cluster.nodes
    )
    return replace(facts, cluster=Cluster(cluster.gpu_types, nodes))
