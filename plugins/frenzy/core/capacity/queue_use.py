"""What jobs hold of quotas and of shares, and what they may still take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.values.queue_rules import Limit, QueueRules
from frenzy.core.values.resource_plan import ResourcePlan


class Job(Protocol):
    """Whatever counts against limits."""

    @property
    def queue(self) -> str: ...
    @property
    def team(self) -> str: ...


class Holder(Job, Protocol):
    """A job that holds GPUs."""

    @property
    def plan(self) -> ResourcePlan: ...


@dataclass(slots=True)
class QuotaUse:
    """GPUs held against the limits of ``rules``."""

    rules: QueueRules
    _held: Counter[Limit] = field(default_factory=Counter)
    _limits: dict[tuple[str, str], tuple[Limit, ...]] = field(default_factory=dict)

    @staticmethod
    def of(rules: QueueRules, holders: Iterable[Holder]) -> QuotaUse:
        """What ``holders`` hold."""
        use = QuotaUse(rules)
        for job in holders if rules else ():
            use.add(job, job.plan.gpu_type, job.plan.num_gpus)
        return use

    def add(self, job: Job, gpu_type: str, num_gpus: int) -> None:
        """``job`` holds ``num_gpus`` more, or fewer."""
        for limit in self.limits_of(job):
            if limit.gpu_type is None or limit.gpu_type == gpu_type:
                self._held[limit] += num_gpus

    def after(self, *changes: tuple[Job, str, int]) -> QuotaUse:
        """Once each (job, GPU type, GPUs) of ``changes`` was added."""
        if not self.rules:
            return self
        use = QuotaUse(self.rules, self._held.copy(), self._limits)
        for change in changes:
            use.add(*change)
        return use

    def exceeded(self, job: Job, gpu_type: str, num_gpus: int) -> Limit | None:
        """The limit that ``job`` would break with ``num_gpus`` more; the one that lacks most, None if none."""
        broken = self.broken(job, gpu_type, num_gpus)
        return max(broken, key=lambda each: self._held[each] - each.num_gpus) if broken else None

    def broken(self, job: Job, gpu_type: str, num_gpus: int) -> list[Limit]:
        """All limits that ``job`` would break with ``num_gpus`` more."""
        return [
            limit
            for limit in self.limits_of(job)
            if (limit.gpu_type is None or limit.gpu_type == gpu_type) and self._held[limit] + num_gpus > limit.num_gpus
        ]

    def held(self, limit: Limit) -> int:
        """GPUs that count against ``limit``."""
        return self._held[limit]

    def limits_of(self, job: Job) -> tuple[Limit, ...]:
        """Found once for each queue and team."""
        key = (job.queue, job.team)
        found = self._limits.get(key)
        if found is None:
            found = self._limits[key] = self.rules.limits_of(*key)
        return found


def rights(queues: Iterable[str], rules: QueueRules, capacity: Capacity) -> dict[str, float]:
    """Effective GPUs that each of ``queues`` has a right to while all of them have jobs."""
    weights = {queue: rules.weight_of(queue) for queue in sorted(set(queues))}
    total = sum(weights.values())
    return {queue: capacity.effective * weight / total for queue, weight in weights.items()}


def held_by_queue(jobs: Iterable[Holder], capacity: Capacity) -> dict[str, float]:
    """Effective GPUs that the jobs of each queue hold."""
    held: dict[str, float] = {}
    for job in jobs:
        gpus = capacity.speed.get(job.plan.gpu_type, 0.0) * job.plan.num_gpus
        held[job.queue] = held.get(job.queue, 0.0) + gpus
    return held
