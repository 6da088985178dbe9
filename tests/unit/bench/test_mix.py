"""The real mix: which jobs it has, and what the simulator makes of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench.mix_forecast import MixFigures, PolicyRuns, forecasts, measured_figures
from tests.bench.mix_jobs import SIZES, MixJob, mix, slowed_cluster
from tests.bench.mix_page import write_page
from tests.bench.mix_runs import MeasuredMix
from tests.bench.mix_times import MeasuredAttempt, MeasuredJob
from tests.e2e.walker import write_corpus

from frenzy.adapters.spec.cluster_file import load_cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mix")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Path:
    return slowed_cluster(folder, 0.5)


@pytest.fixture(scope="module")
def jobs(folder: Path, cluster: Path) -> tuple[MixJob, ...]:
    return mix(7, seed=3, corpus=write_corpus(folder), cluster=cluster)


def as_if_measured(
    jobs: tuple[MixJob, ...],
    *,
    alone_s: float = 5.0,
    together_s: float = 15.0,
    beside_s: float = 5.0,
    late_s: float = 0.0,
    slowness: float = 1.1,
    policy: str = "has",
) -> MeasuredMix:
    """Jobs of twenty steps of predicted 1 s, two seconds from trigger to queue and ``late_s`` more in the mix."""

    def one(name: str, at_s: float, beside_s: float, late_s: float) -> MeasuredJob:
        queued_s = 1e6 + at_s + 2.0 + late_s
        granted_s = queued_s + 1.0
        steps = (slowness,) * 20
        attempt = MeasuredAttempt(
            plan_id="a",
            queued_s=queued_s,
            granted_s=granted_s,
            started_s=granted_s,
            first_step_s=granted_s + beside_s + slowness,
            last_step_s=granted_s + beside_s + sum(steps),
            released_s=granted_s + beside_s + sum(steps),
            step_times_s=steps,
            predicted_step_s=1.0,
        )
        return MeasuredJob(name=name, triggered_s=1e6 + at_s, attempts=(attempt,))

    return MeasuredMix(
        policy=policy,
        alone=(one("alone", 0.0, alone_s, 0.0),),
        together=(one("one", 0.0, together_s - 5.0, 0.0), one("other", 0.0, together_s + 5.0, 8.0)),
        jobs=tuple(one(job.name, job.at_s, beside_s, late_s) for job in jobs),
    )


def near(figures: MixFigures) -> Any:
    """Equal but for rounding."""
    return pytest.approx(asdict(figures))


def as_runs(*mixes: MeasuredMix, jobs: tuple[MixJob, ...], cluster: Path) -> PolicyRuns:
    told = tuple(forecasts(jobs, mix, cluster) for mix in mixes)
    return PolicyRuns(policy=mixes[0].policy, mixes=mixes, forecasts=told)


def test_a_seed_gives_the_same_jobs_again_and_every_size_occurs(
    jobs: tuple[MixJob, ...], folder: Path, cluster: Path
) -> None:
    again = mix(7, seed=3, corpus=folder / "corpus.txt", cluster=cluster)
    assert again == jobs
    assert {job.name.split("-", 2)[2] for job in jobs} == {size.name for size in SIZES}
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
    assert all(job.plans for job in jobs)


def test_the_cluster_is_the_laptops_but_slower(cluster: Path) -> None:
    slowed = load_cluster(cluster)
    laptop = load_cluster(Path(__file__).parents[3] / "include/clusters/laptop.yaml")
    assert slowed.nodes == laptop.nodes
    for slow, kind in zip(slowed.gpu_types, laptop.gpu_types, strict=True):
        assert slow.flops_per_s == pytest.approx(kind.flops_per_s / 2)
        assert (slow.name, slow.memory_bytes) == (kind.name, kind.memory_bytes)


def test_the_prediction_takes_from_jobs_alone_what_it_knows_beside_plans_and_arrivals(
    jobs: tuple[MixJob, ...], cluster: Path
) -> None:
    calm = as_if_measured(jobs, alone_s=0.0)
    troubled = as_if_measured(jobs, alone_s=0.0, beside_s=50.0, late_s=9.0, slowness=3.0)
    assert asdict(forecasts(jobs, calm, cluster).predicted) == near(forecasts(jobs, troubled, cluster).predicted)
    slow_alone = forecasts(jobs, as_if_measured(jobs, alone_s=20.0), cluster).predicted
    assert slow_alone.jct_s >= forecasts(jobs, calm, cluster).predicted.jct_s + 20.0


def test_a_second_prediction_takes_the_same_times_from_jobs_that_ran_at_once(
    jobs: tuple[MixJob, ...], cluster: Path
) -> None:
    short, long = (forecasts(jobs, as_if_measured(jobs, together_s=each), cluster) for each in (5.0, 25.0))
    assert asdict(short.predicted) == near(long.predicted)
    assert short.crowded.jct_s == pytest.approx(short.predicted.jct_s + 4.0)  # later in the queue, on average
    assert long.crowded.jct_s >= short.crowded.jct_s + 20.0


def test_each_cause_that_the_real_run_shows_is_added_to_those_before_it(
    jobs: tuple[MixJob, ...], cluster: Path
) -> None:
    as_predicted = forecasts(jobs, as_if_measured(jobs, slowness=1.0), cluster)
    assert as_predicted.predicted.jct_s == pytest.approx(as_predicted.steps.jct_s)
    late = forecasts(jobs, as_if_measured(jobs, slowness=1.0, late_s=9.0), cluster)
    assert late.arrivals.jct_s == pytest.approx(late.predicted.jct_s + 9.0)
    assert asdict(late.steps) == near(late.beside) == asdict(late.arrivals)
    long = forecasts(jobs, as_if_measured(jobs, slowness=1.0, beside_s=30.0), cluster)
    assert asdict(long.arrivals) == near(as_predicted.arrivals)
    assert long.beside.jct_s >= long.arrivals.jct_s + 25.0
    slow = forecasts(jobs, as_if_measured(jobs, slowness=2.0), cluster)
    assert asdict(slow.beside) == near(as_predicted.beside)
    assert slow.steps.jct_s > slow.beside.jct_s


def test_times_count_from_the_trigger(jobs: tuple[MixJob, ...], cluster: Path) -> None:
    figures = measured_figures(as_if_measured(jobs))
    assert (figures.jct_s, figures.queue_s, figures.moves) == (pytest.approx(30.0), pytest.approx(3.0), 0.0)
    assert figures.makespan_s == pytest.approx(jobs[-1].at_s + 30.0)
    assert forecasts(jobs, as_if_measured(jobs), cluster).predicted.queue_s >= 2.0


def test_the_page_shows_measured_and_simulated_of_each_policy_and_what_the_error_is_made_of(
    jobs: tuple[MixJob, ...], cluster: Path, tmp_path: Path
) -> None:
    runs = as_runs(as_if_measured(jobs), jobs=jobs, cluster=cluster)
    text = write_page([runs], jobs, 3, 0.5, tmp_path).read_text()
    assert "| `has` | measured | 30.0 | 3.0 |" in text
    assert "| | simulated |" in text and "+10 % of the prediction (median of 7 attempts)" in text
    assert "| `has` | in the mix | 2.0 | 1.0 | 0.0 | 5.0 | 22.0 | 0.0 | 0.0 | 0.0 |" in text
    steps_s = runs.expected.steps.jct_s
    assert f"{steps_s:.1f} ({100 * (steps_s / 30.0 - 1):+.0f} %) |" in text
    assert "| | 3 at once | 6.0 | 1.0 | 0.0 | 15.0 |" in text
    assert "Each policy ran once" in text


def test_several_runs_of_a_policy_show_their_mean_and_how_far_they_lie_apart(
    jobs: tuple[MixJob, ...], cluster: Path, tmp_path: Path
) -> None:
    mixes = (as_if_measured(jobs), as_if_measured(jobs, late_s=4.0))
    text = write_page([as_runs(*mixes, jobs=jobs, cluster=cluster)], jobs, 3, 0.5, tmp_path).read_text()
    assert "| `has` | measured | 32.0 (30.0 to 34.0) | 5.0 (3.0 to 7.0) |" in text
    assert "Each policy ran 2 times" in text


def test_the_page_sets_the_first_policy_against_each_other_one(
    jobs: tuple[MixJob, ...], cluster: Path, tmp_path: Path
) -> None:
    one = as_runs(as_if_measured(jobs), jobs=jobs, cluster=cluster)
    doubled = replace(one.expected.predicted, jct_s=2 * one.expected.predicted.jct_s)
    other = replace(one, policy="fifo", forecasts=(replace(one.expected, predicted=doubled),))
    text = write_page([one, other], jobs, 3, 0.5, tmp_path).read_text()
    assert "- `has` against `fifo`, average completion time: +0 % measured, -50 % simulated." in text
