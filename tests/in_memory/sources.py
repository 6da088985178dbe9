"""A clock, an inventory and queues that play what they were given."""

from __future__ import annotations

from frenzy.core.values.cluster import Cluster
from frenzy.core.values.queue_rules import NO_RULES, QueueRules


class FakeClock:
    """A clock that stands until it is moved."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


class FixedInventory:
    """An inventory that plays what it was given."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def cluster(self) -> Cluster:
        return self._cluster

    def replace(self, cluster: Cluster) -> None:
        self._cluster = cluster


class FixedQueues:
    """Queues and quotas as they were given; by default there are none."""

    def __init__(self, rules: QueueRules = NO_RULES) -> None:
        self._rules = rules

    def rules(self) -> QueueRules:
        return self._rules

    def replace(self, rules: QueueRules) -> None:
        self._rules = rules
