"""What the simulator says of the mix: the same jobs, with MARP's plans, under the same policy.

The prediction knows nothing of the real run. To tell what its error is made of, the simulation is done again
with more and more of what the real run showed; that explains, and predicts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean

from tests.bench.mix_jobs import MixJob
from tests.bench.mix_runs import MIN_RUN_S, MeasuredMix
from tests.bench.mix_times import MeasuredAttempt, MeasuredJob, Phases, average

from frenzy.adapters.spec.cluster_file import load_cluster
from frenzy.core.lifecycle.moves import MOVES
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Elasticity, QueuedJob
from frenzy.sim.engine import simulate
from frenzy.sim.registry import scheduler_named
from frenzy.sim.scenario_jobs import Scenario, SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class MixFigures:
    """Averages over the jobs of one mix, in seconds; all from the trigger, makespan from the first one."""

    jct_s: float
    queue_s: float
    makespan_s: float
    moves: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the simulation is told of one job beside its plans.

    triggered_s: from the first trigger of the mix. queued_s: the same, when the scheduler knew it. beside_s: how long
    an attempt holds its GPUs beside its steps. slowness: time of its steps over what MARP predicts.
    """

    triggered_s: float
    queued_s: float
    beside_s: float
    slowness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """The prediction, and the same with ever more of what the real run showed.

    predicted, crowded: nothing of the real run; two times from jobs that ran alone before it, or from some at once.
    arrivals: as predicted, and when the scheduler knew each job. beside: that, and what an attempt of each job took
    beside its steps. steps: that, and how long the steps of each job took.
    """

    predicted: MixFigures
    crowded: MixFigures
    arrivals: MixFigures
    beside: MixFigures
    steps: MixFigures


def measured_figures(mix: MeasuredMix) -> MixFigures:
    """``mix`` in averages."""
    return MixFigures(
        jct_s=fmean(job.jct_s for job in mix.jobs),
        queue_s=fmean(job.first_start_s for job in mix.jobs),
        makespan_s=max(job.end_s for job in mix.jobs) - min(job.triggered_s for job in mix.jobs),
        moves=fmean(job.num_moves for job in mix.jobs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRuns:
    """One policy: its real runs, each with its simulations."""

    policy: str
    mixes: tuple[MeasuredMix, ...]
    forecasts: tuple[Forecasts, ...]

    @property
    def each_measured(self) -> list[MixFigures]:
        return [measured_figures(mix) for mix in self.mixes]

    @property
    def measured(self) -> MixFigures:
        """The mean of its runs."""
        return mean_figures(self.each_measured)

    @property
    def expected(self) -> Forecasts:
        """The mean over its runs."""
        return mean_forecasts(self.forecasts)

    @property
    def phases(self) -> Phases:
        """Where the time of a job of the mix went, on average."""
        return average([job.phases for mix in self.mixes for job in mix.jobs])

    @property
    def phases_alone(self) -> Phases:
        """The same of the jobs that ran alone."""
        return average([job.phases for mix in self.mixes for job in mix.alone])

    @property
    def phases_together(self) -> Phases:
        """The same of the jobs that ran at once before the mix."""
        return average([job.phases for mix in self.mixes for job in mix.together])

    @property
    def beside_s(self) -> float:
        """How long an attempt held its GPUs beside its steps, on average."""
        return fmean(each.phases.beside_s for each in self._attempts)

    @property
    def step_errors(self) -> list[float]:
        """Measured over predicted step time less one, of each attempt that did steps."""
        return [each.step_error for each in self._attempts if each.step_error is not None]

    @property
    def _attempts(self) -> list[MeasuredAttempt]:
        return [attempt for mix in self.mixes for job in mix.jobs for attempt in job.attempts]


def mean_figures(runs: Sequence[MixFigures]) -> MixFigures:
    """The mean of each figure over ``runs``."""
    return MixFigures(**{each.name: fmean(getattr(run, each.name) for run in runs) for each in fields(MixFigures)})


def mean_forecasts(runs: Sequence[Forecasts]) -> Forecasts:
    """The mean of each forecast over ``runs``."""
    return Forecasts(
        **{each.name: mean_figures([getattr(run, each.name) for run in runs]) for each in fields(Forecasts)}
    )


def forecasts(jobs: Sequence[MixJob], measured: MeasuredMix, cluster: Path) -> Forecasts:
    """The simulations of ``jobs`` under the policy of ``measured``."""
    found = {job.name: job for job in measured.jobs}
    a_priori = {job.name: _a_priori(job, measured.alone) for job in jobs}
    crowded = {job.name: _a_priori(job, measured.together) for job in jobs}
    first_s = min(job.triggered_s for job in measured.jobs)

    def told(more: Callable[[Known, MeasuredJob], Known], before: Mapping[str, Known]) -> dict[str, Known]:
        return {name: more(known, found[name]) for name, known in before.items()}

    arrivals = told(lambda known, real: _with_arrival(known, real, first_s), a_priori)
    beside = told(lambda known, real: replace(known, beside_s=real.beside_s), arrivals)
    steps = told(lambda known, real: replace(known, slowness=real.slowness), beside)
    each = [forecast(jobs, measured.policy, cluster, known) for known in (a_priori, crowded, arrivals, beside, steps)]
    return Forecasts(predicted=each[0], crowded=each[1], arrivals=each[2], beside=each[3], steps=each[4])


def _a_priori(job: MixJob, before: Sequence[MeasuredJob]) -> Known:
    """When it is to be triggered, and two means over jobs that ran before the mix."""
    to_queue_s = fmean(each.phases.to_queue for each in before)
    beside_s = fmean(each.beside_s for each in before)
    return Known(triggered_s=job.at_s, queued_s=job.at_s + to_queue_s, beside_s=beside_s)


def _with_arrival(known: Known, real: MeasuredJob, first_s: float) -> Known:
    return replace(known, triggered_s=real.triggered_s - first_s, queued_s=real.queued_s - first_s)


def forecast(jobs: Sequence[MixJob], policy: str, cluster: Path, known: Mapping[str, Known]) -> MixFigures:
    """The simulation of ``jobs`` under ``policy``, which is told ``known`` of each by its name."""
    scenario = Scenario(
        name="mix",
        cluster=load_cluster(cluster),
        jobs=tuple(SimJob(job=_queued(job, known[job.name]), work=1.0) for job in jobs),
        start_s=min(each.queued_s for each in known.values()),
    )
    result = simulate(scenario, scheduler_named(policy))
    came_s = {name: each.triggered_s for name, each in known.items()}
    ends = {job.run_key: job.end_s for job in result.jobs if job.end_s is not None}
    starts = {job.run_key: job.first_start_s for job in result.jobs if job.first_start_s is not None}
    return MixFigures(
        jct_s=fmean(end_s - came_s[key] for key, end_s in ends.items()),
        queue_s=fmean(start_s - came_s[key] for key, start_s in starts.items()),
        makespan_s=max(ends.values()) - min(came_s.values()),
        moves=fmean(job.num_restarts for job in result.jobs),
    )


def _queued(job: MixJob, known: Known) -> QueuedJob:
    return QueuedJob(
        run_key=job.name,
        job_name=job.name,
        submitted_s=known.queued_s,
        plans=tuple(_as_it_runs(plan, known) for plan in job.plans),
        elasticity=Elasticity(
            restart_s=MOVES.restart_s, moves_left=MOVES.max_moves, refill_s=MOVES.refill_s, min_run_s=MIN_RUN_S
        ),
    )


def _as_it_runs(plan: ResourcePlan, known: Known) -> ResourcePlan:
    """``plan`` with what its run takes in all."""
    return replace(plan, predicted_run_s=known.slowness * plan.predicted_run_s + known.beside_s)
