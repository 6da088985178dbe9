"""What is simulated: jobs with what is true of them beside what their scheduler believes."""

from __future__ import annotations

from dataclasses import dataclass

from frenzy.core.values.cluster import Cluster
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob


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
class SimRunning:
    """One job that runs when the simulation begins.

    job: as its scheduler sees it. work: what is really to be done from ``job.ready_s`` (or
    ``started_s``) on, in multiples of each plan's ``predicted_run_s``.
    """

    job: RunningJob
    work: float

    @property
    def as_submitted(self) -> SimJob:
        """The job as it would wait if it were stopped; without other plans it keeps the one it has."""
        return SimJob(job=self.job.as_waiting(0.0), work=self.work)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A node that is lost at ``at_s`` and comes back ``repair_s`` later."""

    node: str
    at_s: float
    repair_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation: a cluster, the jobs that arrive, what goes wrong.

    checkpoint_s: time between two checkpoints; what was done since the last one is lost with a node
    or when memory runs out. oom_after_s: how long an attempt runs before it is out of memory.
    start_overhead_s: from the grant of GPUs to the next step, at least; a move may take longer.
    running: jobs that hold GPUs when the simulation begins, at ``start_s``; jobs submitted before
    then wait from the beginning on.
    """

    name: str
    cluster: Cluster
    jobs: tuple[SimJob, ...]
    failures: tuple[NodeFailure, ...] = ()
    checkpoint_s: float = 900.0
    oom_after_s: float = 60.0
    start_overhead_s: float = 0.0
    running: tuple[SimRunning, ...] = ()
    start_s: float = 0.0
