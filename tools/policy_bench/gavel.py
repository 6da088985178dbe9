"""Gavel (Narayanan et al., OSDI 2020): a linear program for time shares, and rounds that hand them out.

Whenever jobs have come or gone, a linear program finds for each job m and GPU type j the share X[m, j] of time
that m should spend on j, within each job's time and each type's GPUs. Each job has a fixed number of
GPUs, the one its user asked for. Its effective throughput is the mean over types weighted by X, relative
to that with the share of every type it would have if all jobs shared all GPUs equally.

* ``max-min``, the paper's default: the least of these, times the job's GPUs, is as large as it can be;
* ``max-sum``: their sum is.

Among equals ``max-min`` takes the one with the larger sum. Every round (360 s, as published) the pairs of job
and type are served in the order of X over the time received since X was made; a job never received comes first.
Ties go to where the job runs, which saves a restart. GPUs left over go to jobs whatever their X. As
published, nothing limits how often a job may be stopped: ``moves_left`` and ``min_run_s`` are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from frenzy.core.scheduling import BackfillPolicy, Policy, SchedulingState
from frenzy.core.values.scheduling_facts import Action
from tools.policy_bench.active import ActiveJob, ActiveJobs, gpus_to_give
from tools.policy_bench.placing import actions_of_round

_WEIGHT_OF_SUM = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelParameters:
    """objective: see the module's text."""

    objective: Literal["max-min", "max-sum"] = "max-min"
    round_s: float = 360.0


@dataclass
class GavelScheduler:
    """Gavel with fixed GPU counts. It keeps account of time received: one simulation after the other."""

    parameters: GavelParameters = GavelParameters()
    rules: Policy = BackfillPolicy()
    _shares: dict[tuple[str, int], float] = field(default_factory=dict)
    _received_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _known: tuple[object, ...] = ()
    _last_s: float | None = None

    def __post_init__(self) -> None:
        self._jobs = ActiveJobs(rigid=True)

    @property
    def name(self) -> str:
        return "gavel-lp"

    @property
    def round_s(self) -> float:
        return self.parameters.round_s

    def decide(self, state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        """The round at ``now_s``."""
        jobs = self._jobs.of(state, now_s)
        num_gpus = gpus_to_give(state, now_s)
        self._account(jobs, now_s)
        known = (*[job.run_key for job in jobs], tuple(sorted(num_gpus.items())))
        if known != self._known:
            self._known = known
            self._shares = time_shares(jobs, num_gpus, self.parameters.objective)
            self._received_s = {}
        return actions_of_round(state, jobs, self._chosen(jobs, num_gpus))

    def _account(self, jobs: Sequence[ActiveJob], now_s: float) -> None:
        if self._last_s is None or now_s < self._last_s:
            self._known, self._last_s = (), now_s
        for job in jobs:
            if job.current is not None:
                key = (job.run_key, job.current)
                self._received_s[key] = self._received_s.get(key, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def _chosen(self, jobs: Sequence[ActiveJob], num_gpus: Mapping[str, int]) -> list[list[int]]:
        """For each job its configuration of this round, if any: pairs in order of priority, while GPUs last."""
        left = dict(num_gpus)
        chosen: list[list[int]] = [[] for _ in jobs]
        pairs = [(number, at) for number, job in enumerate(jobs) for at in range(len(job.configurations))]
        for number, at in sorted(pairs, key=lambda pair: self._order(jobs[pair[0]], pair[1])):
            need = jobs[number].configurations[at].need
            if not chosen[number] and need.num_gpus <= left.get(need.gpu_type, 0):
                chosen[number] = [at]
                left[need.gpu_type] -= need.num_gpus
        return chosen

    def _order(self, job: ActiveJob, at: int) -> tuple[float, bool, float, float, str]:
        """Priority, descending; where it runs; of jobs without a share the oldest; the faster type; the key."""
        share = round(self._shares.get((job.run_key, at), 0.0), 6)
        received_s = self._received_s.get((job.run_key, at), 0.0)
        priority = share / received_s if received_s else share * 1e9
        run_s = job.configurations[at].plan.predicted_run_s
        return (-priority, job.current != at, job.submitted_s if not share else 0.0, run_s, job.run_key)


def time_shares(
    jobs: Sequence[ActiveJob], num_gpus: Mapping[str, int], objective: Literal["max-min", "max-sum"]
) -> dict[tuple[str, int], float]:
    """X by run key and place of the configuration."""
    pairs = [(number, at) for number, job in enumerate(jobs) for at in range(len(job.configurations))]
    if not pairs:
        return {}
    gains = np.array([_gain(jobs[number], at, num_gpus, len(jobs)) for number, at in pairs])
    limits, right = _limits(jobs, pairs, num_gpus)
    if objective == "max-sum":
        solution = linprog(-gains, A_ub=limits, b_ub=right, bounds=(0, 1))
    else:
        able = sorted({number for number, _ in pairs})
        least = np.zeros((len(able), len(pairs) + 1))
        for column, (number, at) in enumerate(pairs):
            least[able.index(number), column] = -gains[column] * jobs[number].configurations[at].need.num_gpus
        least[:, -1] = 1.0
        limits = np.vstack([np.hstack([limits, np.zeros((len(limits), 1))]), least])
        right = np.concatenate([right, np.zeros(len(able))])
        bounds = [*[(0.0, 1.0)] * len(pairs), (0.0, None)]
        solution = linprog(np.append(-_WEIGHT_OF_SUM * gains / len(jobs), -1.0), A_ub=limits, b_ub=right, bounds=bounds)
    if solution.x is None:
        raise RuntimeError(f"the solver found no time shares: {solution.message}")
    return {(jobs[number].run_key, at): float(solution.x[column]) for column, (number, at) in enumerate(pairs)}


def _gain(job: ActiveJob, at: int, num_gpus: Mapping[str, int], num_jobs: int) -> float:
    """Throughput relative to that with an equal share of all GPUs."""
    equal = sum(
        min(1.0, num_gpus.get(each.need.gpu_type, 0) / (num_jobs * each.need.num_gpus)) / each.plan.predicted_run_s
        for each in job.configurations
    )
    return 1.0 / (job.configurations[at].plan.predicted_run_s * equal) if equal else 0.0


def _limits(
    jobs: Sequence[ActiveJob], pairs: Sequence[tuple[int, int]], num_gpus: Mapping[str, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each job's time is 1, and GPU-time of each type is its number of GPUs."""
    row_of_type = {gpu_type: len(jobs) + at for at, gpu_type in enumerate(sorted(num_gpus))}
    limits = np.zeros((len(jobs) + len(row_of_type), len(pairs)))
    for column, (number, at) in enumerate(pairs):
        need = jobs[number].configurations[at].need
        limits[number, column] = 1.0
        limits[row_of_type[need.gpu_type], column] = need.num_gpus
    return limits, np.array([1.0] * len(jobs) + [float(num_gpus[gpu_type]) for gpu_type in sorted(num_gpus)])
