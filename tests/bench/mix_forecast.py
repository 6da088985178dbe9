"""What the simulator says of the mix: the same jobs and arrivals, with MARP's plans, under the same policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from tests.bench.mix_jobs import MixJob
from tests.bench.mix_runs import MIN_RUN_S, MeasuredMix

from frenzy.adapters.cluster_file import load_cluster
from frenzy.core.moves import MOVES
from frenzy.core.queue import Elasticity, QueuedJob
from frenzy.sim.engine import simulate
from frenzy.sim.jobs import Scenario, SimJob
from frenzy.sim.registry import scheduler_named


@dataclass(frozen=True, slots=True, kw_only=True)
class MixFigures:
    """Averages over the jobs of one mix, in seconds; makespan from the first submission to the last end."""

    jct_s: float
    queue_s: float
    makespan_s: float
    moves: float


def measured_figures(mix: MeasuredMix) -> MixFigures:
    """``mix`` in averages."""
    return MixFigures(
        jct_s=fmean(job.jct_s for job in mix.jobs),
        queue_s=fmean(job.queue_s for job in mix.jobs),
        makespan_s=max(job.end_s for job in mix.jobs) - min(job.submitted_s for job in mix.jobs),
        moves=fmean(job.num_moves for job in mix.jobs),
    )


def forecast(jobs: Sequence[MixJob], measured: MeasuredMix, cluster: Path) -> MixFigures:
    """The simulation of ``jobs``. Of the real run it knows when jobs came, and ``frame_s``.

    That time, taken from jobs that ran alone before, is added to every plan's run.
    """
    came_s = {job.name: job.submitted_s for job in measured.jobs}
    scenario = Scenario(
        name="mix",
        cluster=load_cluster(cluster),
        jobs=tuple(SimJob(job=_queued(job, came_s[job.name], measured.frame_s), work=1.0) for job in jobs),
        start_s=min(came_s.values()),
    )
    result = simulate(scenario, scheduler_named(_SIMULATED_AS.get(measured.policy, measured.policy)))
    ends = [job.end_s for job in result.jobs if job.end_s is not None]
    return MixFigures(
        jct_s=fmean(job.jct_s for job in result.jobs if job.jct_s is not None),
        queue_s=fmean(job.first_start_s - job.submitted_s for job in result.jobs if job.first_start_s is not None),
        makespan_s=max(ends) - scenario.start_s,
        moves=fmean(job.num_restarts for job in result.jobs),
    )


# The product starts no job on two types of GPUs, which the published algorithm may do.
_SIMULATED_AS = {"frenzy-paper": "frenzy-paper-launchable"}


def _queued(job: MixJob, submitted_s: float, frame_s: float) -> QueuedJob:
    return QueuedJob(
        run_key=job.name,
        job_name=job.name,
        submitted_s=submitted_s,
        plans=tuple(replace(plan, predicted_run_s=plan.predicted_run_s + frame_s) for plan in job.plans),
        elasticity=Elasticity(
            restart_s=MOVES.restart_s, moves_left=MOVES.max_moves, refill_s=MOVES.refill_s, min_run_s=MIN_RUN_S
        ),
    )
