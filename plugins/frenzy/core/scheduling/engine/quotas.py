"""Quotas in a decision: GPUs held against each limit, and what a job may still take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.values.queue_rules import Limit, QueueRules
from frenzy.core.values.scheduling_facts import RunningJob


class Job(Protocol):
    """Whatever counts against limits."""

    @property
    def queue(self) -> str: ...
    @property
    def team(self) -> str: ...


@dataclass(slots=True)
class QuotaUse:
    """GPUs held against the limits of ``rules``."""

    rules: QueueRules
    _held: Counter[Limit] = field(default_factory=Counter)
    _limits: dict[tuple[str, str], tuple[Limit, ...]] = field(default_factory=dict)

    @staticmethod
    def of(policy: Policy, running: Iterable[RunningJob]) -> QuotaUse:
        """What ``running`` hold."""
        use = QuotaUse(policy.numbers.queues)
        for job in running if use.rules else ():
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
