"""The real mix: which jobs it has, and what the simulator makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.mix_forecast import forecast, measured_figures
from tests.bench.mix_jobs import SIZES, MixJob, mix, slowed_cluster
from tests.bench.mix_page import write_page
from tests.bench.mix_runs import MeasuredJob, MeasuredMix
from tests.e2e.walker import write_corpus

from frenzy.adapters.cluster_file import load_cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mix")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Path:
    return slowed_cluster(folder, 0.5)


@pytest.fixture(scope="module")
def jobs(folder: Path, cluster: Path) -> tuple[MixJob, ...]:
    return mix(7, seed=3, corpus=write_corpus(folder), cluster=cluster)


def as_if_measured(jobs: tuple[MixJob, ...], *, frame_s: float) -> MeasuredMix:
    found = (
        MeasuredJob(
            name=job.name, submitted_s=1e6 + job.at_s, queue_s=1.0, jct_s=30.0, plans=("a", "b"), step_errors=(0.1,)
        )
        for job in jobs
    )
    return MeasuredMix(policy="has", frame_s=frame_s, jobs=tuple(found))


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


def test_a_simulated_mix_ends_later_the_longer_an_attempt_takes_beside_its_steps(
    jobs: tuple[MixJob, ...], cluster: Path
) -> None:
    short, long = (forecast(jobs, as_if_measured(jobs, frame_s=seconds), cluster) for seconds in (0.0, 20.0))
    assert long.jct_s >= short.jct_s + 20.0
    assert short.queue_s >= 0.0


def test_averages_of_what_was_measured(jobs: tuple[MixJob, ...]) -> None:
    figures = measured_figures(as_if_measured(jobs, frame_s=0.0))
    assert (figures.jct_s, figures.queue_s, figures.moves) == (30.0, 1.0, 1.0)
    assert figures.makespan_s == pytest.approx(jobs[-1].at_s + 30.0)


def test_the_page_shows_measured_and_simulated_of_each_policy(
    jobs: tuple[MixJob, ...], cluster: Path, tmp_path: Path
) -> None:
    measured = as_if_measured(jobs, frame_s=5.0)
    text = write_page([(measured, forecast(jobs, measured, cluster))], jobs, 3, 0.5, tmp_path).read_text()
    assert "| `has` | measured | 30.0 | 1.0 |" in text
    assert "| | simulated |" in text and "+10 % of the prediction (median of 7 attempts)" in text


def test_the_page_sets_the_first_policy_against_each_other_one(
    jobs: tuple[MixJob, ...], cluster: Path, tmp_path: Path
) -> None:
    measured = as_if_measured(jobs, frame_s=5.0)
    expected = forecast(jobs, measured, cluster)
    slower = replace(expected, jct_s=2 * expected.jct_s)
    pairs = [(measured, expected), (replace(measured, policy="fifo"), slower)]
    text = write_page(pairs, jobs, 3, 0.5, tmp_path).read_text()
    assert "- `has` against `fifo`, average completion time: +0 % measured, -50 % simulated." in text
