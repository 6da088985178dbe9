"""What other quotas and weights would do for a waiting job: tried, not argued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from frenzy.core.has.policy import Policy, queue_rules, with_queues
from frenzy.core.has.quotas import QuotaUse
from frenzy.core.values.queue import QueuedJob, SchedulingFacts
from frenzy.core.values.queue_rules import ANY_OTHER, Limit, QueueRules, Quota, TeamRule

# More than this many times the weight is no change of a share but another policy.
_WEIGHT_FACTORS: Final = (1.5, 2.0, 4.0, 8.0, 16.0)


def rule_counterfactuals(
    facts: SchedulingFacts, job: QueuedJob, policy: Policy, starts: Callable[[Policy], bool]
) -> Iterator[str]:
    """Sentences for the smallest quota, and the smallest weight, with which ``job`` would start now.

    starts: whether it would, under another policy.
    """
    rules = queue_rules(policy)
    for limit in rules.limits_of(job.queue, job.team):
        for num_gpus in _larger(facts, job, policy, limit):
            if starts(with_queues(policy, with_limit(rules, limit, num_gpus))):
                of_type = "GPUs" if limit.gpu_type is None else limit.gpu_type
                yield f"With a quota of {num_gpus} {of_type} for {limit.title} it would start now."
                break
    if any(each.name == job.queue for each in rules.queues) and len(rules.queues) > 1:
        weight = rules.weight_of(job.queue)
        for factor in _WEIGHT_FACTORS:
            if starts(with_queues(policy, with_weight(rules, job.queue, weight * factor))):
                yield f"With weight {weight * factor:g} instead of {weight:g} for queue {job.queue} it would start now."
                break


def _larger(facts: SchedulingFacts, job: QueuedJob, policy: Policy, limit: Limit) -> list[int]:
    """Quotas above ``limit`` that would let one more of the job's plans in, the smallest first."""
    held = QuotaUse.of(policy, facts.running).held(limit)
    waiting = sum(
        min((plan.num_gpus for plan in each.plans), default=0)
        for each in facts.queued
        if limit in queue_rules(policy).limits_of(each.queue, each.team) and each.run_key != job.run_key
    )
    sizes = {plan.num_gpus for plan in job.plans if limit.gpu_type in (None, plan.gpu_type)}
    # Others under the same limit may come first.
    found = {held + size for size in sizes} | {held + waiting + size for size in sizes}
    return sorted(each for each in found if each > limit.num_gpus)


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
