"""Figures of a simulation, checked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frenzy.sim.reports.intervals import interval_of_mean, paired_ratio
from frenzy.sim.results import IdleTime, JobOutcome, SimResult, Stay
from frenzy.sim.summaries import Summary, summarise


def job(key: str, *, submitted_s: float = 0.0, end_s: float | None, waiting_s: float = 0.0) -> JobOutcome:
    return JobOutcome(
        run_key=key,
        job_name=key,
        team="default",
        submitted_s=submitted_s,
        first_start_s=submitted_s + waiting_s,
        end_s=end_s,
        best_run_s=100.0,
        waiting_s=waiting_s,
        num_restarts=1 if key == "b" else 0,
    )


def stay(num_gpus: int, start_s: float, busy_from_s: float, end_s: float, repeated_s: float = 0.0) -> Stay:
    return Stay(
        run_key="a",
        gpu_type="a40",
        num_gpus=num_gpus,
        start_s=start_s,
        busy_from_s=busy_from_s,
        end_s=end_s,
        repeated_s=repeated_s,
    )


RESULT = SimResult(
    scenario="two",
    policy="has",
    jobs=(job("a", end_s=3600.0, waiting_s=100.0), job("b", submitted_s=1800.0, end_s=7200.0), job("c", end_s=None)),
    stays=(stay(2, 0, 0, 3600), stay(1, 1800, 1860, 5460, repeated_s=120.0)),
    queue=((0.0, 1), (100.0, 0)),
    decision_s=(0.001, 0.003),
    num_gpus={"a40": 4},
    idle=IdleTime(gpu_s=1000.0, wanted_gpu_s=250.0),
)


def test_figures_are_those_of_the_jobs_and_their_stays() -> None:
    figures = summarise(RESULT)
    assert (figures.num_jobs, figures.num_never_ended) == (3, 1)
    assert figures.jct_mean_s == pytest.approx(4500)
    assert figures.queue_mean_s == pytest.approx(50)
    assert figures.makespan_s == 7200
    assert figures.gpu_hours_used == pytest.approx(2 + 3660 / 3600)
    assert figures.gpu_hours_lost == pytest.approx((60 + 120) / 3600)
    assert figures.utilisation == pytest.approx((7200 + 3660) / (4 * 7200))
    assert figures.fragmentation == 0.25
    assert figures.slowdown_max == pytest.approx(54)
    assert (figures.restarts_mean, figures.restarts_max) == (pytest.approx(1 / 3), 1)
    assert (figures.num_decisions, figures.scheduler_cpu_s) == (2, pytest.approx(0.004))


def test_no_jobs_make_no_figures_but_zeros() -> None:
    nothing = SimResult(scenario="none", policy="has", jobs=(), stays=(), queue=(), decision_s=())
    assert (summarise(nothing).jct_mean_s, summarise(nothing).utilisation) == (0.0, 0.0)


def of(policy: str, *means: float) -> list[Summary]:
    base = summarise(RESULT)
    return [replace(base, policy=policy, scenario=f"s{index}", jct_mean_s=value) for index, value in enumerate(means)]


def test_interval_of_a_mean_holds_it_and_is_the_same_every_time() -> None:
    found = interval_of_mean([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == interval_of_mean([1.0, 2.0, 3.0, 4.0, 5.0])
    assert 1.0 < found.low < found.value == 3.0 < found.high < 5.0


def test_one_scenario_has_no_spread() -> None:
    found = interval_of_mean([7.0])
    assert (found.low, found.value, found.high) == (7.0, 7.0, 7.0)


def test_what_scenarios_have_in_common_cancels_in_a_paired_ratio() -> None:
    both = [*of("has", 1.0, 10.0, 100.0), *of("fifo", 2.0, 20.0, 200.0)]
    ratio = paired_ratio(both, "has", "fifo")
    for each in (ratio.of_means, ratio.per_scenario):
        assert (each.low, each.value, each.high) == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5))


def test_policies_without_a_common_scenario_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="no scenario"):
        paired_ratio(of("has", 1.0), "has", "fifo")
