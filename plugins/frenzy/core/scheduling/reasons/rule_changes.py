"""What other quotas and weights would do for a waiting job: tried, not argued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from frenzy.core.scheduling.engine.policy_settings import Policy, queue_rules, with_queues
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.values.queue_rules import ANY_OTHER, Limit, QueueRules, Quota, TeamRule
from frenzy.core.values.scheduling_facts import QueuedJob, SchedulingFacts

# More than this many times the weight is no change of a share but another policy.
_WEIGHT_FACTORS: Final = (1.5, 2.0, 4.0, 8.0, 16.0)
_MOST_TRIED: Final = 64


def least_weight(job: QueuedJob, policy: Policy, starts: Callable[[Policy], bool]) -> tuple[float, float] | None:
    """The weight of its queue and the least of some greater ones with which ``job`` would start now.

    starts: whether it would, under another policy.
    """
    rules = queue_rules(policy)
    if len(rules.queues) > 1 and any(each.name == job.queue for each in rules.queues):
        weight = rules.weight_of(job.queue)
        for factor in _WEIGHT_FACTORS:
            if starts(with_queues(policy, with_weight(rules, job.queue, weight * factor))):
                return weight, weight * factor
    return None


def least_quota(
    facts: SchedulingFacts, job: QueuedJob, policy: Policy, limit: Limit, starts: Callable[[Policy], bool]
) -> int | None:
    """The least number of GPUs in place of ``limit`` with which ``job`` would start now; starts: likewise."""
    rules = queue_rules(policy)
    found = _larger(facts, job, policy, limit)
    for num_gpus in found:
        if starts(with_queues(policy, with_limit(rules, limit, num_gpus))):
            return num_gpus
    return None


def _larger(facts: SchedulingFacts, job: QueuedJob, policy: Policy, limit: Limit) -> list[int]:
    """Quotas above ``limit`` to try, the smallest first: all up to what would let one more of its plans in behind all
    others, or where those are many, such as would let one in.
    """
    held = QuotaUse.of(policy, facts.running).held(limit)
    waiting = sum(
        min((plan.num_gpus for plan in each.plans), default=0)
        for each in facts.queued
        if limit in queue_rules(policy).limits_of(each.queue, each.team) and each.run_key != job.run_key
    )
    sizes = {plan.num_gpus for plan in job.plans if limit.gpu_type in (None, plan.gpu_type)}
    # Others under the same limit may come first.
    found = {held + size for size in sizes} | {held + waiting + size for size in sizes}
    larger = sorted(each for each in found if each > limit.num_gpus)
    most = max(larger, default=0)
    return list(range(limit.num_gpus + 1, most + 1)) if most - limit.num_gpus <= _MOST_TRIED else larger


def with_limit(rules: QueueRules, limit: Limit, num_gpus: int) -> QueueRules:
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


def with_weight(rules: QueueRules, queue: str, weight: float) -> QueueRules:
    """``rules`` with ``weight`` for ``queue``."""
    queues = tuple(replace(each, weight=weight) if each.name == queue else each for each in rules.queues)
    return replace(rules, queues=queues)


def _changed(quota: Quota, limit: Limit, num_gpus: int) -> Quota:
    if limit.gpu_type is None:
        return replace(quota, max_gpus=num_gpus)
    by_type = tuple((name, num_gpus if name == limit.gpu_type else most) for name, most in quota.max_gpus_by_type)
    return replace(quota, max_gpus_by_type=by_type)
