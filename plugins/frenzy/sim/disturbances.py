"""What goes wrong in a workload: wrong estimates of work and of memory, nodes that fail."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final

from frenzy.core.cluster import Cluster
from frenzy.core.plan import ResourcePlan
from frenzy.sim.jobs import NodeFailure

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


def believed_work(disturbances: Disturbances, work: float, normal: float) -> float:
    """What is believed of ``work``; normal: a draw from N(0, 1)."""
    return work * math.exp(disturbances.estimate_sigma * normal)


def memory_factor(disturbances: Disturbances, plans: tuple[ResourcePlan, ...], uniform: float) -> float:
    """A job's true need of memory over the predicted one; uniform: a draw from [0, 1)."""
    share = disturbances.memory_error_share
    if uniform >= share:
        return 1.0
    factor = 1.0 + (disturbances.most_memory_factor - 1.0) * uniform / share
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
