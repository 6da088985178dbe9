"""Sia (Jayaram Subramanya et al., SOSP 2023): every round an integer program over jobs and configurations.

Each round chooses at most one configuration (GPU type, count) for each active job, within the GPUs of
each type, so that the sum over jobs of

    w * (g * r) ** p   if a configuration is chosen,   w * lambda   if none is,

is least (p < 0). g is the configuration's throughput over the job's lowest one (the paper's
row-normalised goodput). r is 1 for the configuration the job has, and for all of a job that has none; for any
other it is the share of its life a job would have spent running if it restarted once more,
(age - restarts * restart_s) / (age + restart_s), 1 for a job younger than one restart. A job in the middle
of a restart stays where it is. p = -0.5, lambda = 1.1 and rounds of 60 s are the values of the paper
and of the released simulator (github.com/siasosp23/artifacts).

What differs from the released one, each to Sia's advantage: throughputs are those of the shared plans from the
beginning on (no bootstrapping with one GPU, no doubling at most in a round); counts are not limited to powers of two;
costs are not rounded; a job's own restart time is used. As there, nothing limits how often a job may be
moved: ``moves_left`` and ``min_run_s`` are ignored. Not in the paper: ``work_power`` > 0 sets w to
(median / own) ** work_power of the time that is left with the fastest plan, which makes Sia prefer short jobs;
0, as published, uses no knowledge of remaining work. A variant blind to memory, which tries GPU types that are too
small, cannot be expressed: the shared plans name none.

How the numbers were chosen: the published ones stand, since nothing near them is better by more than chance.
``python -m tests.bench.tune_sia`` on an AMD EPYC, 21 November 2026, average JCT in hours of four workloads at 44 GPUs:

    as published            0.611  0.974  0.598  1.415   mean 0.899   1.43 restarts per job
    power -1                0.614  0.984  0.612  1.442        0.913   1.46
    power -0.25             0.613  0.959  0.605  1.419        0.899   1.40
    no_allocation 4         0.611  0.993  0.605  1.421        0.907   1.63
    restart_weight 0.5      0.619  0.973  0.605  1.410        0.902   1.53
    restart_weight 2        0.613  0.974  0.608  1.436        0.908   1.46
    rounds of 30 s          0.606  0.978  0.613  1.451        0.912   1.89
    rounds of 120 s         0.608  0.969  0.618  1.420        0.904   1.12
    work_power 0.25         0.572  0.864  0.576  1.187        0.800   2.16
    work_power 0.5          0.572  0.840  0.565  1.170        0.787   3.21
    work_power 1            0.581  0.819  0.579  1.185        0.791   4.41
    rigid                   1.616  1.355  0.871  4.173        2.004   1.70
    rigid, no_allocation 2  1.589  1.331  0.767  4.059        1.936   1.58
    rigid, no_allocation 4  1.537  1.363  0.824  4.141        1.966   1.69

So ``sia-ilp`` is as published, ``sia-ilp-work`` has work_power 0.5, and ``sia-rigid`` no_allocation 2.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from frenzy.core.scheduling import BackfillPolicy, Policy, SchedulingState
from frenzy.core.values.scheduling_facts import Action, Preempt, Resize
from tools.policy_bench.active import ActiveJob, ActiveJobs, gpus_to_give
from tools.policy_bench.assignment import Choice, least_cost
from tools.policy_bench.placing import actions_of_round

_LEAST_RESTART_FACTOR = 0.01
_LEAST_TIME_LEFT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiaParameters:
    """The symbols of the module's text; restart_weight multiplies ``restart_s`` in r."""

    power: float = -0.5
    no_allocation: float = 1.1
    restart_weight: float = 1.0
    work_power: float = 0.0
    round_s: float = 60.0
    rigid: bool = False


@dataclass
class SiaScheduler:
    """Sia, elastic or rigid. It counts restarts, hence serves one simulation after the other, never two at once."""

    parameters: SiaParameters = SiaParameters()
    rules: Policy = BackfillPolicy()
    _restarts: Counter[str] = field(default_factory=Counter)
    _last_s: float = 0.0

    def __post_init__(self) -> None:
        self._jobs = ActiveJobs(rigid=self.parameters.rigid)

    @property
    def name(self) -> str:
        return f"sia-{'rigid' if self.parameters.rigid else 'ilp'}{'-work' if self.parameters.work_power else ''}"

    @property
    def round_s(self) -> float:
        return self.parameters.round_s

    def decide(self, state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        """The round at ``now_s``."""
        if now_s < self._last_s:
            self._restarts.clear()
        self._last_s = now_s
        jobs = self._jobs.of(state, now_s)
        weights = self._weights(jobs)
        costs = [self._costs(job, weight, now_s) for job, weight in zip(jobs, weights, strict=True)]
        choices = [
            [
                Choice(each.need.gpu_type, each.need.num_gpus, cost - weight * self.parameters.no_allocation)
                for each, cost in zip(job.configurations, of_job, strict=True)
            ]
            for job, of_job, weight in zip(jobs, costs, weights, strict=True)
        ]
        chosen = least_cost(choices, gpus_to_give(state, now_s))
        preferences = [_preferences(at, of_job) for at, of_job in zip(chosen, choices, strict=True)]
        actions = actions_of_round(state, jobs, preferences)
        self._restarts.update(each.run_key for each in actions if isinstance(each, Resize | Preempt))
        return actions

    def _weights(self, jobs: Sequence[ActiveJob]) -> list[float]:
        if not self.parameters.work_power or not jobs:
            return [1.0] * len(jobs)
        left_s = [max(_LEAST_TIME_LEFT_S, job.work_left * _fastest_s(job)) for job in jobs]
        median_s = statistics.median(left_s)
        return [(median_s / each) ** self.parameters.work_power for each in left_s]

    def _costs(self, job: ActiveJob, weight: float, now_s: float) -> list[float]:
        slowest_s = max((each.plan.predicted_run_s for each in job.configurations), default=1.0)
        factor = self._restart_factor(job, now_s)
        return [
            weight
            * (slowest_s / each.plan.predicted_run_s * (1.0 if at == job.current else factor)) ** self.parameters.power
            for at, each in enumerate(job.configurations)
        ]

    def _restart_factor(self, job: ActiveJob, now_s: float) -> float:
        age_s, restart_s = now_s - job.submitted_s, self.parameters.restart_weight * job.restart_s
        if job.running is None or age_s < restart_s:
            return 1.0
        running_s = max(0.0, age_s - self._restarts[job.run_key] * restart_s)
        return max(_LEAST_RESTART_FACTOR, running_s / (age_s + restart_s)) if age_s + restart_s else 1.0


def _fastest_s(job: ActiveJob) -> float:
    return min((each.plan.predicted_run_s for each in job.configurations), default=1.0)


def _preferences(chosen: int | None, choices: Sequence[Choice]) -> list[int]:
    """The chosen configuration, then all others that are better than nothing, the best first."""
    if chosen is None:
        return []
    others = [at for at, each in enumerate(choices) if at != chosen and each.cost < 0]
    return [chosen, *sorted(others, key=lambda at: choices[at].cost)]
