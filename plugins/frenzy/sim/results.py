"""What came of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One job on the same GPUs for a while.

    busy_from_s: when its steps began, the start behind it. repeated_s: time of its steps that was
    spent in vain, because a node was lost or memory ran out after the last checkpoint.
    """

    run_key: str
    gpu_type: str
    num_gpus: int
    start_s: float
    busy_from_s: float
    end_s: float
    repeated_s: float = 0.0

    @property
    def gpu_s(self) -> float:
        return self.num_gpus * (self.end_s - self.start_s)

    @property
    def lost_gpu_s(self) -> float:
        """Spent on starting, and on steps that were lost."""
        return self.num_gpus * (min(self.busy_from_s, self.end_s) - self.start_s + self.repeated_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one job. end_s: None if it never ended. best_run_s: all of it with its fastest plan.

    num_restarts: starts after the first one. waiting_s: time without GPUs. num_ooms: attempts out of memory.
    """

    run_key: str
    job_name: str
    team: str
    submitted_s: float
    first_start_s: float | None
    end_s: float | None
    best_run_s: float
    waiting_s: float
    num_restarts: int
    num_ooms: int = 0
    queue: str = "default"
    deadline_s: float | None = None

    @property
    def jct_s(self) -> float | None:
        """Job completion time: submission to end."""
        return None if self.end_s is None else self.end_s - self.submitted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """GPU-seconds on ready nodes that nobody used.

    wanted_gpu_s: of these, while a job waited that has a plan for no more GPUs of the type than were
    idle: held back for another job, or spread over nodes so that the plan does not fit.
    """

    gpu_s: float = 0.0
    wanted_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """One scenario under one policy.

    queue: (time, jobs waiting), at each change. decision_s: CPU time of every decision,
    its state made from facts. start_s: when the simulation began.
    num_gpus: GPUs of each type, those of lost nodes included.
    """

    scenario: str
    policy: str
    jobs: tuple[JobOutcome, ...]
    stays: tuple[Stay, ...]
    queue: tuple[tuple[float, int], ...]
    decision_s: tuple[float, ...]
    start_s: float = 0.0
    num_gpus: Mapping[str, int] = field(default_factory=dict)
    idle: IdleTime = IdleTime()

    @property
    def began_s(self) -> float:
        """Captured jobs were submitted, and ran, before the simulation began: what was before does not count."""
        return max(self.start_s, min((job.submitted_s for job in self.jobs), default=self.start_s))

    @property
    def scheduler_cpu_s(self) -> float:
        return sum(self.decision_s)
