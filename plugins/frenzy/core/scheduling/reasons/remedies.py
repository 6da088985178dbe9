"""The smallest change that would start a waiting job now: tried, not argued.

The facts are changed and decided on again by the policy itself, the smallest change first. So a number that is named
is true: with it the job starts, with less it does not. "More idle GPUs" are those of one more node, which lacks
neither CPUs nor host memory. It is true before the decision's actions are done and after: where that differs, and
where trials would take long (each is a whole decision), no number is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.placement import usable_gpus
from frenzy.core.scheduling.engine.plan_tables import RankedPlan
from frenzy.core.scheduling.engine.policy_settings import Policy, queue_rules, with_queues
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.room import Free, FreeCapacity, FreeOfType, Need
from frenzy.core.scheduling.engine.wording import host_needs
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.queue_rules import ANY_OTHER, Limit, QueueRules, Quota, TeamRule
from frenzy.core.values.scheduling_facts import Action, QueuedJob, SchedulingFacts, Start
from frenzy.core.values.units import GIB, MIB

Decide = Callable[[SchedulingFacts, float, Policy], tuple[Action, ...]]
Change = Callable[[SchedulingFacts], SchedulingFacts]

# What all trials of one decision look at, at most: jobs, and nodes at so much less each.
MOST_LOOKS: Final = 1000
_NODES_A_LOOK: Final = 16
_MOST_GPUS: Final = 64
# More than this many times the weight is no change of a share but another policy.
_WEIGHT_FACTORS: Final = (1.5, 2.0, 4.0, 8.0, 16.0)
_UNTOLD: Final = frozenset({ReasonCode.WAITING_FOR_OLD_WORKERS, ReasonCode.WAITING_FOR_NODES})


class Untold(Exception):
    """No more trials are to be made, or they tell no clear tale."""


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

    def starts(self, run_key: str, change: Change | None = None, policy: Policy | None = None) -> bool:
        """Whether the job would start with facts so changed and with this policy. Raises Untold."""
        bases = [self.facts] if self.after is self.facts else [self.facts, self.after]
        changed = bases if change is None else [change(each) for each in bases]
        found = {self._starts(run_key, each, policy or self.policy) for each in changed}
        if len(found) > 1:
            raise Untold
        return found.pop()

    def _starts(self, run_key: str, facts: SchedulingFacts, policy: Policy) -> bool:
        if not self._may_try():
            raise Untold
        self.looks -= self._looks_each
        actions = self.decide(facts, self.now_s, policy)
        return any(isinstance(each, Start) and each.run_key == run_key for each in actions)

    @property
    def _looks_each(self) -> int:
        facts = self.facts
        return len(facts.queued) + len(facts.running) + len(facts.cluster.nodes) // _NODES_A_LOOK

    def _may_try(self) -> bool:
        return self.looks >= self._looks_each

    def remedy(self, entry: Entry, reason: Reason, room: FreeCapacity) -> str | None:
        """The smallest change that was found; None where none was, in so many trials. room: what is free now."""
        if not self._may_try() or reason.code in _UNTOLD:
            return None
        found: list[str] = []
        with suppress(Untold):
            found.extend(self._found(entry, reason, room))
        return " or ".join(found) if found else None

    def _found(self, entry: Entry, reason: Reason, room: FreeCapacity) -> Iterator[str]:
        code = reason.code
        if code is ReasonCode.WAITING_FOR_QUOTA:
            yield from self.quotas(entry.queued)
            return
        host = self._host(entry, room) if code is ReasonCode.WAITING_FOR_HOST_RESOURCES else None
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
        rules = queue_rules(self.policy)
        for limit in rules.limits_of(job.queue, job.team):
            for num_gpus in self._larger(job, limit):
                if self.starts(job.run_key, None, with_queues(self.policy, _with_limit(rules, limit, num_gpus))):
                    of_type = "GPUs" if limit.gpu_type is None else limit.gpu_type
                    yield f"a quota of {num_gpus} {of_type} for {limit.title}"
                    break

    def _larger(self, job: QueuedJob, limit: Limit) -> range:
        """Quotas above ``limit`` to try: up to what would let ``job`` in behind all others that are under it."""
        rules = queue_rules(self.policy)
        others = [each for each in self.facts.queued if limit in rules.limits_of(each.queue, each.team)]
        waiting = sum(min((plan.num_gpus for plan in each.plans), default=0) for each in others if each is not job)
        own = max((plan.num_gpus for plan in job.plans if limit.gpu_type in (None, plan.gpu_type)), default=0)
        most = QuotaUse.of(self.policy, self.facts.running).held(limit) + waiting + own
        return range(limit.num_gpus + 1, min(most, limit.num_gpus + _MOST_GPUS) + 1)

    def weight(self, job: QueuedJob) -> tuple[float, float] | None:
        """The weight of its queue, and the least of some greater ones with which ``job`` would start. Raises Untold."""
        rules = queue_rules(self.policy)
        if len(rules.queues) < 2 or rules.queue_rule(job.queue) is None:
            return None
        weight = rules.weight_of(job.queue)
        for more in (weight * factor for factor in _WEIGHT_FACTORS):
            if self.starts(job.run_key, None, with_queues(self.policy, _with_weight(rules, job.queue, more))):
                return weight, more
        return None

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
        most = {each.gpu_type: gpus_wanted(self.facts, each.gpu_type) for each in options}
        for num_gpus in range(1, max(most.values(), default=0) + 1):
            for ranked in options:
                if num_gpus <= most[ranked.gpu_type] and self.starts_with(entry, ranked.gpu_type, num_gpus):
                    return _more(num_gpus, entry, ranked, where)
        return None

    def fewest(self, entry: Entry, gpu_type: str) -> int | None:
        """The fewest more idle GPUs of ``gpu_type`` that would start the job. Raises Untold."""
        counts = range(1, gpus_wanted(self.facts, gpu_type) + 1)
        return next((each for each in counts if self.starts_with(entry, gpu_type, each)), None)

    def starts_with(self, entry: Entry, gpu_type: str, num_gpus: int) -> bool:
        """Whether the job would start with so many more idle GPUs of ``gpu_type``. Raises Untold."""
        return self.starts(entry.run_key, partial(with_idle_gpus, gpu_type=gpu_type, num_gpus=num_gpus))

    def _host(self, entry: Entry, room: FreeCapacity) -> str | None:
        """What the node that comes closest lacks of CPUs and host memory."""
        needs = [each.need for each in entry.others.listed if each.gpu_type in room.by_type]
        nearest = {min(lacks) for need in needs if (lacks := list(_lacks(room.by_type[need.gpu_type], need)))}
        for lack, name in sorted(nearest):
            shown, host_bytes = _rounded_up(lack.host_bytes)
            if self.starts(entry.run_key, partial(_with_host, name=name, more=lack._replace(host_bytes=host_bytes))):
                parts = [f"{shown} of host memory"] if lack.host_bytes else []
                parts += [f"{lack.millicpus / 1000:g} CPUs"] if lack.millicpus else []
                return f"{' and '.join(parts)} more free on {name}"
        return None


def gpus_wanted(facts: SchedulingFacts, gpu_type: str) -> int:
    """How many more GPUs of ``gpu_type`` to try at most for one job.

    Those that all jobs could take that wait or may be moved: more cannot help anyone. And not more than an answer may
    ask for that is of use to somebody.
    """
    plans = [*(job.plans for job in facts.queued), *(job.plans for job in facts.running)]
    most = sum(max((plan.num_gpus for plan in each if plan.gpu_type == gpu_type), default=0) for each in plans)
    return min(most, _MOST_GPUS)


def smallest_of_each_type(entry: Entry, cluster: Cluster) -> list[RankedPlan]:
    """Of each GPU type the ranked with the fewest GPUs."""
    return one_for_each_type(sorted(entry.others.listed, key=lambda each: each.num_gpus), cluster)


def one_for_each_type(options: Iterable[RankedPlan], cluster: Cluster) -> list[RankedPlan]:
    """The first ranked of each GPU type of ``cluster``."""
    first: dict[str, RankedPlan] = {}
    for ranked in options:
        if ranked.gpu_type in cluster.types_by_name:
            first.setdefault(ranked.gpu_type, ranked)
    return list(first.values())


def with_idle_gpus(facts: SchedulingFacts, gpu_type: str, num_gpus: int) -> SchedulingFacts:
    """``facts`` with one more node of ``num_gpus`` idle GPUs, which lacks neither CPUs nor host memory."""
    node = Node(name="what-if", gpu_type=gpu_type, num_gpus=num_gpus, host_memory_bytes=2**50, num_cpus=1024 * num_gpus)
    return replace(facts, cluster=Cluster(facts.cluster.gpu_types, (*facts.cluster.nodes, node)))


def _more(num_gpus: int, entry: Entry, ranked: RankedPlan, where: str) -> str:
    """Where they are more than it takes itself, others are served before it."""
    need = ranked.need
    grouped = any(each.need.group_size > 1 for each in entry.others.listed if each.gpu_type == need.gpu_type)
    shared = " (other jobs take some of them first)" if num_gpus > need.num_gpus else ""
    host = f", with {host_needs(need)}" if need.host_bytes_per_node or need.host_bytes_per_gpu else ""
    return f"{num_gpus} more {need.gpu_type} {where}{' on one further node' if grouped else ''}{shared}{host}"


def _lacks(room: FreeOfType, need: Need) -> Iterator[tuple[Free, str]]:
    """What more of CPUs and host memory makes room on each node for what ``need`` finds none for on all the others."""
    usable = usable_gpus(room, need)
    missing = need.num_gpus - sum(usable.values())
    for idle, names in enumerate(room.by_idle):
        for name in names:
            num_gpus = usable.get(name, 0) + missing
            if name not in need.excluded_nodes and usable.get(name, 0) < num_gpus <= idle:
                free, wanted = room.free[name], need.on_node(num_gpus)
                host_bytes = max(0, wanted.host_bytes - free.host_bytes)
                yield Free(0, host_bytes, max(0, wanted.millicpus - free.millicpus)), name


def _rounded_up(num_bytes: int) -> tuple[str, int]:
    """As it is shown, to a tenth of a unit, and what that comes to."""
    unit, name = (GIB, "GiB") if num_bytes >= GIB else (MIB, "MiB")
    tenths = math.ceil(num_bytes * 10 / unit)
    return f"{tenths / 10:.1f} {name}", math.ceil(tenths * unit / 10)


def _at_priority(facts: SchedulingFacts, run_key: str, priority: int) -> SchedulingFacts:
    queued = tuple(replace(each, priority=priority) if each.run_key == run_key else each for each in facts.queued)
    return replace(facts, queued=queued)


def _with_host(facts: SchedulingFacts, name: str, more: Free) -> SchedulingFacts:
    node = facts.cluster.nodes_by_name[name]
    host_bytes, num_cpus = node.host_memory_bytes + more.host_bytes, node.num_cpus + more.millicpus / 1000
    larger = replace(node, host_memory_bytes=host_bytes, num_cpus=num_cpus)
    nodes = tuple(larger if each is node else each for each in facts.cluster.nodes)
    return replace(facts, cluster=Cluster(facts.cluster.gpu_types, nodes))


def _with_limit(rules: QueueRules, limit: Limit, num_gpus: int) -> QueueRules:
    """``rules`` with ``num_gpus`` in place of ``limit``; a team that had none of its own gets its own."""
    if limit.holder == "queue":
        queues = tuple(
            replace(each, quota=_changed(each.quota, limit, num_gpus)) if each.name == limit.name else each
            for each in rules.queues
        )
        return replace(rules, queues=queues)
    known = {each.name: each.quota for each in rules.teams}
    quota = _changed(known.get(limit.name, known.get(ANY_OTHER, Quota())), limit, num_gpus)
    others = tuple(each for each in rules.teams if each.name != limit.name)
    return replace(rules, teams=(*others, TeamRule(name=limit.name, quota=quota)))


def _with_weight(rules: QueueRules, queue: str, weight: float) -> QueueRules:
    queues = tuple(replace(each, weight=weight) if each.name == queue else each for each in rules.queues)
    return replace(rules, queues=queues)


def _changed(quota: Quota, limit: Limit, num_gpus: int) -> Quota:
    if limit.gpu_type is None:
        return replace(quota, max_gpus=num_gpus)
    by_type = tuple((name, num_gpus if name == limit.gpu_type else most) for name, most in quota.max_gpus_by_type)
    return replace(quota, max_gpus_by_type=by_type)
