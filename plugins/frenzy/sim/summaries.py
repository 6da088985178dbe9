"""One simulation in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from frenzy.sim.results import JobOutcome, SimResult, Stay

LEAST_RUN_S: Final = 10.0
"""Run times below this count as this in slowdowns, as usual, so that tiny jobs do not rule them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one scenario under one policy. Times in seconds; jobs that never ended count nowhere but there.

    jct: submission to end. queue_mean_s: time without GPUs, after every stop as well. makespan_s: first
    submission, or start of the simulation, to last end. gpu_hours_lost: spent on restarts and on steps
    that were lost with a node or for lack of memory, a part of gpu_hours_used. utilisation: GPU time used
    over all there was until the last end. slowdown: completion time over the run time of the fastest
    plan, at least 1. fragmentation: share of the idle GPU time during which a job waited that has a
    plan for no more GPUs of the type than were idle. decision: CPU time of the scheduler.
    """

    scenario: str
    policy: str
    num_jobs: int
    num_never_ended: int
    jct_mean_s: float
    jct_median_s: float
    jct_p99_s: float
    queue_mean_s: float
    makespan_s: float
    gpu_hours_used: float
    gpu_hours_lost: float
    utilisation: float
    fragmentation: float
    slowdown_mean: float
    slowdown_max: float
    restarts_mean: float
    restarts_max: int
    num_ooms: int
    num_decisions: int = 0
    scheduler_cpu_s: float = 0.0
    decision_mean_s: float = 0.0
    decision_p99_s: float = 0.0


CPU_TIMES: Final = ("scheduler_cpu_s", "decision_mean_s", "decision_p99_s")
"""The fields of a Summary that differ from run to run."""


def summarise(result: SimResult) -> Summary:
    """The figures of ``result``."""
    ended = [job for job in result.jobs if job.end_s is not None]
    jcts = [job.jct_s for job in ended if job.jct_s is not None]
    slowdowns = [_slowdown(job) for job in ended]
    restarts = [job.num_restarts for job in result.jobs]
    makespan_s = _makespan_s(result)
    began_s = result.began_s
    stays = [_since(began_s, stay) for stay in result.stays]
    used_s = sum(stay.gpu_s for stay in stays)
    capacity_s = makespan_s * sum(result.num_gpus.values())
    return Summary(
        scenario=result.scenario,
        policy=result.policy,
        num_jobs=len(result.jobs),
        num_never_ended=len(result.jobs) - len(ended),
        jct_mean_s=mean(jcts),
        jct_median_s=quantile(jcts, 0.5),
        jct_p99_s=quantile(jcts, 0.99),
        queue_mean_s=mean([job.waiting_s for job in ended]),
        makespan_s=makespan_s,
        gpu_hours_used=used_s / 3600,
        gpu_hours_lost=sum(stay.lost_gpu_s for stay in stays) / 3600,
        utilisation=used_s / capacity_s if capacity_s else 0.0,
        fragmentation=result.idle.wanted_gpu_s / result.idle.gpu_s if result.idle.gpu_s else 0.0,
        slowdown_mean=mean(slowdowns),
        slowdown_max=max(slowdowns, default=0.0),
        restarts_mean=mean(restarts),
        restarts_max=max(restarts, default=0),
        num_ooms=sum(job.num_ooms for job in result.jobs),
        num_decisions=len(result.decision_s),
        scheduler_cpu_s=result.scheduler_cpu_s,
        decision_mean_s=mean(result.decision_s),
        decision_p99_s=quantile(result.decision_s, 0.99),
    )


def mean(values: Sequence[float]) -> float:
    """0 for none."""
    return float(np.mean(values)) if len(values) else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two nearest values where it falls between; 0 for none."""
    return float(np.quantile(values, share)) if len(values) else 0.0


def _slowdown(job: JobOutcome) -> float:
    return max(1.0, (job.jct_s or 0.0) / max(job.best_run_s, LEAST_RUN_S))


def _since(began_s: float, stay: Stay) -> Stay:
    if stay.start_s >= began_s:
        return stay
    return replace(stay, start_s=began_s, busy_from_s=max(began_s, stay.busy_from_s), end_s=max(began_s, stay.end_s))


def _makespan_s(result: SimResult) -> float:
    began_s = result.began_s
    return max((job.end_s for job in result.jobs if job.end_s is not None), default=began_s) - began_s
