"""What goes wrong in a workload: wrong estimates of work and of memory, nodes that fail."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Final

from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Violation
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob
from frenzy.sim.scenario_jobs import NodeFailure, SimJob

_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """How much goes wrong; by default nothing.

    estimate_sigma: a job's work is believed to be the true one times exp(N(0, sigma)).
    memory_error_share: share of the jobs that need more memory than predicted, by a factor drawn
    evenly from 1 to ``most_memory_factor``, but never more than one of its plans has room for.
    node_mtbf_hours: mean time from a node's repair to its next failure, exponentially distributed; None
    for no failures. node_repair_hours: how long a node is away. failures_after_hours: nodes fail from
    the beginning until so long after the last arrival.
    """

    estimate_sigma: float = 0.0
    memory_error_share: float = 0.0
    most_memory_factor: float = 1.5
    node_mtbf_hours: float | None = None
    node_repair_hours: float = 1.0
    failures_after_hours: float = 168.0

    @property
    def labels(self) -> tuple[str, ...]:
        """What the name of a workload says of them."""
        mtbf = self.node_mtbf_hours
        return (
            f"sigma{self.estimate_sigma:g}" if self.estimate_sigma else "",
            f"memory{self.memory_error_share:g}x{self.most_memory_factor:g}" if self.memory_error_share else "",
            f"mtbf{mtbf:g}h{self.node_repair_hours:g}h" if mtbf is not None else "",
        )

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Numbers that mean nothing, if there are any."""
        mtbf_hours = 1.0 if self.node_mtbf_hours is None else self.node_mtbf_hours
        rules = (
            ("estimate_sigma", self.estimate_sigma, self.estimate_sigma >= 0, "at least 0"),
            ("memory_error_share", self.memory_error_share, 0 <= self.memory_error_share <= 1, "from 0 to 1"),
            ("most_memory_factor", self.most_memory_factor, self.most_memory_factor >= 1, "at least 1"),
            ("node_mtbf_hours", mtbf_hours, mtbf_hours > 0, "more than 0, or None for no failures"),
            ("node_repair_hours", self.node_repair_hours, self.node_repair_hours > 0, "more than 0"),
            ("failures_after_hours", self.failures_after_hours, self.failures_after_hours >= 0, "at least 0"),
        )
        return tuple(
            Violation(path=f"disturbances.{name}", value=f"{value:g}", allowed=allowed)
            for name, value, holds, allowed in rules
            if not (holds and math.isfinite(value))
        )


class Disturber:
    """Sets what is believed of jobs against what is true of them.

    Each kind of error has its own stream of random numbers, with one draw for each job.
    """

    def __init__(self, disturbances: Disturbances, seed: str) -> None:
        self._disturbances = disturbances
        self._estimates, self._memory = (random.Random(f"{seed}/{purpose}") for purpose in ("estimates", "memory"))

    def disturbed(self, job: QueuedJob) -> SimJob:
        """``job``, whose ``work_left`` is true, as its scheduler will see it, with what is true of it."""
        work, error = job.work_left, self._estimates.gauss()
        believed = work * math.exp(self._disturbances.estimate_sigma * error)
        seen = job if believed == work else replace(job, work_left=believed)
        return SimJob(job=seen, work=work, memory_factor=self._memory_factor(job.plans, self._memory.random()))

    def _memory_factor(self, plans: tuple[ResourcePlan, ...], uniform: float) -> float:
        """uniform: a draw from [0, 1)."""
        share = self._disturbances.memory_error_share
        if uniform >= share:
            return 1.0
        factor = 1.0 + (self._disturbances.most_memory_factor - 1.0) * uniform / share
        roomiest = max(plan.gpu_memory_bytes / plan.memory.required_bytes for plan in plans)
        # a hair below, so that rounding does not take the last plan away
        return min(factor, max(1.0, roomiest * (1.0 - 1e-9)))


def node_failures(
    disturbances: Disturbances, seed: int, cluster: Cluster, last_arrival_s: float
) -> tuple[NodeFailure, ...]:
    """All failures in order of time; each node has its own stream of random numbers."""
    mtbf = disturbances.node_mtbf_hours
    if mtbf is None:
        return ()
    until_s = last_arrival_s + disturbances.failures_after_hours * _HOUR_S
    repair_s = disturbances.node_repair_hours * _HOUR_S
    found: list[NodeFailure] = []
    for node in cluster.nodes:
        stream = random.Random(f"{seed}/failures/{node.name}")
        at_s = stream.expovariate(1.0 / (mtbf * _HOUR_S))
        while at_s < until_s:
            found.append(NodeFailure(node=node.name, at_s=at_s, repair_s=repair_s))
            at_s += repair_s + stream.expovariate(1.0 / (mtbf * _HOUR_S))
    return tuple(sorted(found, key=lambda each: (each.at_s, each.node)))
