"""What is simulated: jobs with what is true of them beside what their scheduler believes."""

from __future__ import annotations

from dataclasses import dataclass

from frenzy.core.cluster import Cluster
from frenzy.core.plan import ResourcePlan
from frenzy.core.queue import QueuedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """One job of a workload.

    job: as its scheduler sees it at submission; its ``work_left`` is what is believed. work: what is
    really to be done, in multiples of each plan's ``predicted_run_s``. memory_factor: its real need of
    memory over the predicted one; an attempt on too small a card ends with an out-of-memory.
    """

    job: QueuedJob
    work: float
    memory_factor: float = 1.0

    def runs_out_of_memory(self, plan: ResourcePlan) -> bool:
        """Whether ``plan`` needs more than its card has."""
        return plan.memory.required_bytes * self.memory_factor > plan.gpu_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A node that is lost at ``at_s`` and comes back ``repair_s`` later."""

    node: str
    at_s: float
    repair_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation: a cluster, the jobs that arrive, what goes wrong.

    checkpoint_s: time between two checkpoints; what was done since the last one is lost with a node.
    oom_after_s: how long an attempt runs before it is out of memory.
    """

    name: str
    cluster: Cluster
    jobs: tuple[SimJob, ...]
    failures: tuple[NodeFailure, ...] = ()
    checkpoint_s: float = 900.0
    oom_after_s: float = 60.0
