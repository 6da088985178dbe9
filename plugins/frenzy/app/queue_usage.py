"""How queues and teams stand: what they hold of their shares and quotas."""

from __future__ import annotations

from dataclasses import dataclass

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.capacity.queue_use import QuotaUse, held_by_queue, rights
from frenzy.core.values.queue_rules import QueueRules, QuotaRow, ShareRow
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob, SchedulingFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUsage:
    """All queues and quotas, in the order in which they were set."""

    shares: tuple[ShareRow, ...] = ()
    quotas: tuple[QuotaRow, ...] = ()


def usage_of(facts: SchedulingFacts, rules: QueueRules) -> QueueUsage:
    """How all queues and teams of ``rules`` and ``facts`` stand; nothing where there are no rules."""
    return QueueUsage(shares=_shares(facts, rules), quotas=_quotas(facts, rules))


def _shares(facts: SchedulingFacts, rules: QueueRules) -> tuple[ShareRow, ...]:
    if not rules.queues:
        return ()
    capacity = Capacity.of(facts.cluster)
    held = held_by_queue(facts.running, capacity)
    active = {job.queue for job in _active(facts)}
    names = [each.name for each in rules.queues]
    return tuple(
        ShareRow(
            queue=name,
            weight=rules.weight_of(name),
            num_waiting=sum(job.queue == name for job in facts.queued),
            num_running=sum(job.queue == name for job in facts.running),
            num_gpus=sum(job.plan.num_gpus for job in facts.running if job.queue == name),
            held=held.get(name, 0.0),
            share=rights(active | {name}, rules, capacity)[name],
            total=capacity.effective,
        )
        for name in (*names, *sorted(active - set(names)))
    )


def _active(facts: SchedulingFacts) -> list[RunningJob | QueuedJob]:
    return [*facts.running, *facts.queued]


def _quotas(facts: SchedulingFacts, rules: QueueRules) -> tuple[QuotaRow, ...]:
    known = [(each.name, "") for each in rules.queues] + [("", each.name) for each in rules.teams]
    jobs = [(job.queue, job.team) for job in _active(facts)]
    limits = dict.fromkeys(limit for key in (*known, *sorted(jobs)) for limit in rules.limits_of(*key))
    held = QuotaUse.of(rules, facts.running)
    return tuple(
        QuotaRow(
            holder=limit.holder,
            name=limit.name,
            gpu_type=limit.gpu_type,
            held=held.held(limit),
            max_gpus=limit.num_gpus,
            limits_nothing=limit.gpu_type is not None and limit.gpu_type not in facts.cluster.types_by_name,
        )
        for limit in limits
        if limit.name
    )
