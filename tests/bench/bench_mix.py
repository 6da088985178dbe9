"""A real mix of trainings on the laptop's cluster under three policies, beside the simulator's prediction.

``make bench-mix``: under half an hour on two cores. Every job is a DAG of an embedded Airflow, every
virtual GPU a real process that really trains. ``--docs`` writes ``docs/real-mix.md`` as well.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from tests.bench.mix_forecast import Forecasts, PolicyRuns, forecasts
from tests.bench.mix_jobs import SPEED, MixJob, mix, slowed_cluster
from tests.bench.mix_page import write_page
from tests.bench.mix_runs import NUM_TOGETHER, MeasuredMix, run_mix
from tests.bench.mix_times import MeasuredJob
from tests.bench.report import figure, publish
from tests.e2e.walker import write_corpus

POLICIES: Final = ("has", "frenzy-paper", "fifo")
NUM_JOBS: Final = 13
SEED: Final = 1


def main(arguments: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Run, print, write ``build/bench/mix.json``; the rows of that file."""
    parser = argparse.ArgumentParser(prog="bench-mix", description=__doc__)
    parser.add_argument("--jobs", type=int, default=NUM_JOBS, help=f"number of trainings ({NUM_JOBS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of sizes, lengths and arrivals ({SEED})")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only this one; may be repeated")
    parser.add_argument("--speed", type=float, default=SPEED, help=f"of the laptop cluster's GPUs ({SPEED})")
    parser.add_argument("--runs", type=_positive, default=1, help="of each policy, in turn (1)")
    parser.add_argument("--docs", action="store_true", help="write the page")
    options = parser.parse_args(list(arguments))
    policies = options.policy or POLICIES
    with tempfile.TemporaryDirectory(prefix="frenzy-mix-") as folder:
        root = Path(folder)
        cluster, corpus = slowed_cluster(root, options.speed), write_corpus(root)
        jobs = mix(options.jobs, options.seed, corpus, cluster)
        pairs = [
            _one_run(policy, jobs, corpus, cluster, root / f"{policy}-{number}")
            for number in range(options.runs)
            for policy in policies
        ]
    results = [_all_of(policy, pairs) for policy in policies]
    if options.docs:
        print(f"written: {write_page(results, jobs, options.seed, options.speed)}")
    return publish("mix", [row for result in results for row in _rows(result)])


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: at least 1")
    return value


def _one_run(
    policy: str, jobs: Sequence[MixJob], corpus: Path, cluster: Path, home: Path
) -> tuple[MeasuredMix, Forecasts]:
    print(f"{policy}: {len(jobs)} trainings ...", flush=True)
    measured = run_mix(policy, jobs, corpus, cluster, home)
    began_s = min(job.triggered_s for job in measured.jobs)
    for job in measured.jobs:
        _print_job(job, began_s)
    return measured, forecasts(jobs, measured, cluster)


def _print_job(job: MeasuredJob, began_s: float) -> None:
    print(f"  {job.name}: triggered at {job.triggered_s - began_s:.0f} s, done after {job.jct_s:.0f} s", flush=True)
    for each in job.attempts:
        phases = each.phases
        error = "" if each.step_error is None else f" ({100 * each.step_error:+.0f} %)"
        print(
            f"    {each.plan_id}: queued at {each.queued_s - began_s:.1f}, waited {phases.waiting:.1f}, "
            f"launched {phases.launching:.1f}, started {phases.starting:.1f}, steps {phases.stepping:.1f}{error}, "
            f"between {phases.between:.1f}, left {phases.leaving:.1f} s"
        )


def _all_of(policy: str, pairs: Sequence[tuple[MeasuredMix, Forecasts]]) -> PolicyRuns:
    own = [(measured, expected) for measured, expected in pairs if measured.policy == policy]
    return PolicyRuns(
        policy=policy, mixes=tuple(measured for measured, _ in own), forecasts=tuple(expected for _, expected in own)
    )


def _rows(result: PolicyRuns) -> list[dict[str, Any]]:
    real, told, name = result.measured, result.expected, result.policy
    expected, errors = told.predicted, result.step_errors
    averages = [each.jct_s for each in result.each_measured]
    return [
        figure(f"{name}: average completion time, measured", real.jct_s, "s"),
        figure(f"{name}: the same, the least of the runs", min(averages), "s"),
        figure(f"{name}: the same, the most of the runs", max(averages), "s"),
        figure(f"{name}: average completion time, simulated", expected.jct_s, "s"),
        figure(f"{name}: error of the simulation", 100 * (expected.jct_s / real.jct_s - 1), "%"),
        figure(f"{name}: error with times of jobs that ran at once", 100 * (told.crowded.jct_s / real.jct_s - 1), "%"),
        figure(f"{name}: error with the real arrivals", 100 * (told.arrivals.jct_s / real.jct_s - 1), "%"),
        figure(f"{name}: error with the real time beside steps, too", 100 * (told.beside.jct_s / real.jct_s - 1), "%"),
        figure(f"{name}: error with the real step times, too", 100 * (told.steps.jct_s / real.jct_s - 1), "%"),
        figure(f"{name}: average time to the first start, measured", real.queue_s, "s"),
        figure(f"{name}: average time to the first start, simulated", expected.queue_s, "s"),
        figure(f"{name}: makespan, measured", real.makespan_s, "s"),
        figure(f"{name}: makespan, simulated", expected.makespan_s, "s"),
        figure(f"{name}: moves per job, measured", real.moves, ""),
        figure(f"{name}: moves per job, simulated", expected.moves, ""),
        figure(f"{name}: from trigger to queue, in the mix", result.phases.to_queue, "s"),
        figure(f"{name}: from trigger to queue, alone", result.phases_alone.to_queue, "s"),
        figure(f"{name}: an attempt beside its steps, in the mix", result.beside_s, "s"),
        figure(f"{name}: an attempt beside its steps, alone", result.phases_alone.beside_s, "s"),
        figure(f"{name}: an attempt beside its steps, {NUM_TOGETHER} at once", result.phases_together.beside_s, "s"),
        figure(f"{name}: step time against prediction, median", 100 * (median(errors) if errors else 0.0), "%"),
        figure(f"{name}: step time against prediction, mean", 100 * (fmean(errors) if errors else 0.0), "%"),
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
