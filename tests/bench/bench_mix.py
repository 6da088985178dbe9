"""A real mix of trainings on the laptop's cluster under three policies, beside the simulator's prediction.

``make bench-mix``: some 25 minutes on two cores. Every job is a DAG of an embedded Airflow, every
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

from tests.bench.mix_forecast import MixFigures, forecast, measured_figures
from tests.bench.mix_jobs import SPEED, MixJob, mix, slowed_cluster
from tests.bench.mix_page import write_page
from tests.bench.mix_runs import MeasuredMix, run_mix
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
    parser.add_argument("--docs", action="store_true", help="write the page")
    options = parser.parse_args(list(arguments))
    with tempfile.TemporaryDirectory(prefix="frenzy-mix-") as folder:
        root = Path(folder)
        cluster, corpus = slowed_cluster(root, options.speed), write_corpus(root)
        jobs = mix(options.jobs, options.seed, corpus, cluster)
        pairs = [_one_policy(policy, jobs, corpus, cluster, root) for policy in options.policy or POLICIES]
    rows = [row for measured, expected in pairs for row in _rows(measured, expected)]
    if options.docs:
        print(f"written: {write_page(pairs, jobs, options.seed, options.speed)}")
    return publish("mix", rows)


def _one_policy(
    policy: str, jobs: Sequence[MixJob], corpus: Path, cluster: Path, root: Path
) -> tuple[MeasuredMix, MixFigures]:
    print(f"{policy}: {len(jobs)} trainings ...", flush=True)
    measured = run_mix(policy, jobs, corpus, cluster, root / policy)
    for job in measured.jobs:
        steps = ", ".join(f"{100 * error:+.0f} %" for error in job.step_errors)
        plans = ", ".join(job.plans)
        print(f"  {job.name}: waited {job.queue_s:.0f} s, done after {job.jct_s:.0f} s; {plans}; steps {steps}")
    return measured, forecast(jobs, measured, cluster)


def _rows(measured: MeasuredMix, expected: MixFigures) -> list[dict[str, Any]]:
    real, name = measured_figures(measured), measured.policy
    errors = [error for job in measured.jobs for error in job.step_errors]
    return [
        figure(f"{name}: average completion time, measured", real.jct_s, "s"),
        figure(f"{name}: average completion time, simulated", expected.jct_s, "s"),
        figure(f"{name}: error of the simulation", 100 * (expected.jct_s / real.jct_s - 1), "%"),
        figure(f"{name}: average time to the first start, measured", real.queue_s, "s"),
        figure(f"{name}: average time to the first start, simulated", expected.queue_s, "s"),
        figure(f"{name}: makespan, measured", real.makespan_s, "s"),
        figure(f"{name}: makespan, simulated", expected.makespan_s, "s"),
        figure(f"{name}: moves per job, measured", real.moves, ""),
        figure(f"{name}: moves per job, simulated", expected.moves, ""),
        figure(f"{name}: an attempt beside its steps, alone", measured.frame_s, "s"),
        figure(f"{name}: step time against prediction, median", 100 * (median(errors) if errors else 0.0), "%"),
        figure(f"{name}: step time against prediction, mean", 100 * (fmean(errors) if errors else 0.0), "%"),
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
