"""The smallest change that would start a waiting job now: tried, not argued.

The facts are changed and decided on again, the smallest change first: with a number that is named the job starts, with
less it does not. "More idle GPUs" are those of one more node. A number is true before the decision's actions and after;
where that differs, and where trials (whole decisions) would take long, none is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from frenzy.core.capacity.free_capacity import Free, FreeCapacity, FreeOfType, Need, usable_gpus
from frenzy.core.capacity.queue_use import QuotaUse
from frenzy.core.scheduling.engine import elastic
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.policy_settings import Policy, with_queues
from frenzy.core.scheduling.engine.state import Entry, SchedulingState
from frenzy.core.scheduling.engine.wording import host_needs
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import MAX_PRIORITY
from frenzy.core.values.queue_rules import QueueRules
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob, SchedulingFacts, Start
from frenzy.core.values.units import GIB, MIB

# Of the facts, or of the queues and quotas.
Change = Callable[[SchedulingFacts], SchedulingFacts] | QueueRules
_Found = TypeVar("_Found")

# What all trials of one decision look at, at most: jobs, and nodes at so much less each.
MOST_LOOKS: Final = 1000
_NODES_A_LOOK: Final = 16
_MOST_GPUS: Final = 64
_MAX_TYPES_TRIED: Final = 4
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
    looks: int = MOST_LOOKS

    def _least(self, run_key: str, tries: Iterable[tuple[_Found, Change]]) -> _Found | None:
        """What stands beside the first of ``tries`` with which the job would start. Raises Untold."""
        return next((found for found, change in tries if self._starts(run_key, change)), None)

    def _starts(self, run_key: str, change: Change) -> bool:
        changed, policy = [self.facts] if self.after is self.facts else [self.facts, self.after], self.policy
        if isinstance(change, QueueRules):
            policy = with_queues(policy, change)
        else:
            changed = [change(each) for each in changed]
        found = set[bool]()
        for facts in changed:
            self.looks -= self._looks_each
            if self.looks < 0:
                raise Untold
            actions, _ = elastic.decide(SchedulingState.of(facts, policy), self.now_s)
            found.add(any(isinstance(each, Start) and each.run_key == run_key for each in actions))
        if len(found) > 1:
            raise Untold
        return found.pop()

    @property
    def _looks_each(self) -> int:
        facts = self.facts
        return len(facts.queued) + len(facts.running) + len(facts.cluster.nodes) // _NODES_A_LOOK

    def remedy(self, entry: Entry, reason: Reason, room: FreeCapacity) -> str | None:
        """The smallest change that was found; None where none was, in so many trials. room: what is free now."""
        if self.looks < self._looks_each or reason.code in _UNTOLD:
            return None
        found: list[str] = []
        with suppress(Untold):
            found.extend(filter(None, self._found(entry, reason.code, room)))
        return " or ".join(found) or None

    def _found(self, entry: Entry, code: ReasonCode, room: FreeCapacity) -> Iterator[str | None]:
        if code is ReasonCode.WAITING_FOR_QUOTA:
            yield from self._quotas(entry.queued)
            return
        host = self._host(entry, room) if code is ReasonCode.WAITING_FOR_HOST_RESOURCES else None
        where = "in the cluster" if code is ReasonCode.NEVER_FITS else "free"
        yield host or self._gpus(entry, _smallest_of_each_type(entry, self.facts.cluster), where)
        if code is ReasonCode.WAITING_BEHIND_HEAD:
            yield self._priority(entry.queued)

    def changes(self, entry: Entry) -> Iterator[str]:
        """Each change that would start the job, tried one at a time. Raises Untold."""
        return filter(None, self._changes(entry))

    def _changes(self, entry: Entry) -> Iterator[str | None]:
        for ranked in _smallest_of_each_type(entry, self.facts.cluster)[:_MAX_TYPES_TRIED]:
            yield self._gpus(entry, [ranked], "free")
        yield from self._quotas(entry.queued)
        yield self._weight(entry.queued)
        yield self._priority(entry.queued)

    def _quotas(self, job: QueuedJob) -> Iterator[str]:
        """The least quota that alone would start ``job``, for each that it is under. Raises Untold."""
        rules = self.policy.numbers.queues
        held = QuotaUse.of(rules, self.facts.running).held
        for limit in rules.limits_of(job.queue, job.team):
            # With more than all could take that are under it, it limits nobody.
            under = [each for each in self.facts.queued if limit in rules.limits_of(each.queue, each.team)]
            most = held(limit) + gpus_wanted(under, limit.gpu_type)
            larger = (limit._replace(num_gpus=each) for each in range(limit.num_gpus + 1, most + 1))
            least = self._least(job.run_key, ((each, rules.with_limit(each)) for each in larger))
            if least is not None:
                yield f"a quota of {least.most} for {least.title}"

    def _weight(self, job: QueuedJob) -> str | None:
        """The least of some greater weights of its queue with which ``job`` would start."""
        rules = self.policy.numbers.queues
        if len(rules.queues) < 2 or rules.queue_rule(job.queue) is None:
            return None
        weight = rules.weight_of(job.queue)
        greater = [weight * factor for factor in _WEIGHT_FACTORS]
        least = self._least(job.run_key, ((each, rules.with_queue(job.queue, weight=each)) for each in greater))
        return None if least is None else f"weight {least:g} instead of {weight:g} for queue {job.queue}"

    def _priority(self, job: QueuedJob) -> str | None:
        """The least priority that would start ``job``, of those that it may have."""
        rule, most = self.policy.numbers.queues.queue_rule(job.queue), MAX_PRIORITY
        if rule is not None and rule.max_priority is not None:
            most = rule.max_priority
        others = {each.priority for each in _active(self.facts)}
        steps = sorted({step for each in others for step in (each, each + 1) if job.priority < step <= most})
        key = job.run_key
        least = self._least(key, ((each, partial(_at_priority, run_key=key, priority=each)) for each in steps))
        return None if least is None else f"a priority above {least - 1}"

    def _gpus(self, entry: Entry, plans: Sequence[RankedPlan], where: str) -> str | None:
        """The fewest idle GPUs of the type of any of ``plans`` that would start the job; where: they are to be."""
        most = [gpus_wanted(_active(self.facts), each.gpu_type) for each in plans]
        tries = (
            (_more(num_gpus, entry, ranked, where), _more_gpus(ranked.gpu_type, num_gpus))
            for num_gpus in range(1, max(most, default=0) + 1)
            for ranked, wanted in zip(plans, most, strict=True)
            if num_gpus <= wanted
        )
        return self._least(entry.run_key, tries)

    def _host(self, entry: Entry, room: FreeCapacity) -> str | None:
        """What the node that comes closest lacks of CPUs and host memory."""
        needs = [each.need for each in entry.others.listed if each.gpu_type in room.by_type]
        nearest = {min(lacks) for need in needs if (lacks := list(_lacks(room.by_type[need.gpu_type], need)))}
        return self._least(entry.run_key, (_more_host(lack, name) for lack, name in sorted(nearest)))


def _active(facts: SchedulingFacts) -> tuple[QueuedJob | RunningJob, ...]:
    return (*facts.queued, *facts.running)


def gpus_wanted(jobs: Iterable[QueuedJob | RunningJob], gpu_type: str | None) -> int:
    """How many more GPUs of ``gpu_type`` (None: of any) to try at most: those that all ``jobs`` could take."""
    counts = ((plan.num_gpus for plan in job.plans if gpu_type in (None, plan.gpu_type)) for job in jobs)
    return min(sum(max(each, default=0) for each in counts), _MOST_GPUS)


def _smallest_of_each_type(entry: Entry, cluster: Cluster) -> list[RankedPlan]:
    """Of each GPU type the plan with the fewest GPUs."""
    return one_for_each_type(sorted(entry.others.listed, key=lambda each: each.num_gpus), cluster)


def one_for_each_type(plans: Iterable[RankedPlan], cluster: Cluster) -> list[RankedPlan]:
    """The first plan of each GPU type of ``cluster``."""
    first: dict[str, RankedPlan] = {}
    for ranked in plans:
        if ranked.gpu_type in cluster.types_by_name:
            first.setdefault(ranked.gpu_type, ranked)
    return list(first.values())


def _more_gpus(gpu_type: str, num_gpus: int) -> Change:
    return partial(with_idle_gpus, gpu_type=gpu_type, num_gpus=num_gpus)


def with_idle_gpus(facts: SchedulingFacts, gpu_type: str, num_gpus: int) -> SchedulingFacts:
    """``facts`` with one more node of ``num_gpus`` idle GPUs, which lacks neither CPUs nor host memory."""
    node = Node(name="what-if", gpu_type=gpu_type, num_gpus=num_gpus, host_memory_bytes=2**50, num_cpus=1024 * num_gpus)
    return replace(facts, cluster=facts.cluster.with_node(node))


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


def _more_host(lack: Free, name: str) -> tuple[str, Change]:
    shown, host_bytes = _rounded_up(lack.host_bytes)
    parts = [f"{shown} of host memory"] if lack.host_bytes else []
    parts += [f"{lack.millicpus / 1000:g} CPUs"] if lack.millicpus else []
    change = partial(_with_host, name=name, more=lack._replace(host_bytes=host_bytes))
    return f"{' and '.join(parts)} more free on {name}", change


def _with_host(facts: SchedulingFacts, name: str, more: Free) -> SchedulingFacts:
    node = facts.cluster.nodes_by_name[name]
    host_bytes, num_cpus = node.host_memory_bytes + more.host_bytes, node.num_cpus + more.millicpus / 1000
    larger = replace(node, host_memory_bytes=host_bytes, num_cpus=num_cpus)
    return replace(facts, cluster=facts.cluster.with_node(larger))
