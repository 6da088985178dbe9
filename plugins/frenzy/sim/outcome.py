"""What came of a simulation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One job on the same GPUs for a while. busy_from_s: when its steps began, a restart behind it."""

    run_key: str
    gpu_type: str
    num_gpus: int
    start_s: float
    busy_from_s: float
    end_s: float

    @property
    def gpu_s(self) -> float:
        return self.num_gpus * (self.end_s - self.start_s)

    @property
    def lost_gpu_s(self) -> float:
        """Spent on starting again."""
        return self.num_gpus * (min(self.busy_from_s, self.end_s) - self.start_s)


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

    @property
    def jct_s(self) -> float | None:
        """Job completion time: submission to end."""
        return None if self.end_s is None else self.end_s - self.submitted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """One scenario under one policy.

    queue: (time, jobs waiting), at each change. decision_s: CPU time of every decision, with the
    upkeep of the scheduler's indices since the one before.
    """

    scenario: str
    policy: str
    jobs: tuple[JobOutcome, ...]
    stays: tuple[Stay, ...]
    queue: tuple[tuple[float, int], ...]
    decision_s: tuple[float, ...]

    @property
    def scheduler_cpu_s(self) -> float:
        return sum(self.decision_s)
