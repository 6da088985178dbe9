"""Gavel: time shares of the linear program, and rounds that hand them out."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from tests.unit.core.has_world import node
from tests.unit.sim.sim_world import cluster, on_large, on_small, scenario, sim_job

from frenzy.core.scheduling import SchedulingState
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import SchedulingFacts
from frenzy.sim.engine import simulate
from frenzy.sim.results import SimResult
from frenzy.sim.scenario_jobs import SimJob
from tools.policy_bench.active import ActiveJob, ActiveJobs
from tools.policy_bench.gavel import GavelParameters, GavelScheduler, time_shares

ONE_EACH = cluster(node("s1", "small", 1), node("l1", "large", 1))


def one_gpu(name: str, *plans: ResourcePlan, work: float = 100.0) -> SimJob:
    sim = sim_job(name, *plans, work=work)
    return replace(sim, job=replace(sim.job, asked_gpus=1))


def active(*jobs: SimJob) -> list[ActiveJob]:
    facts = SchedulingFacts(cluster=ONE_EACH, queued=tuple(sim.job for sim in jobs), running=())
    return ActiveJobs(rigid=True).of(SchedulingState.of(facts, GavelScheduler().rules), 0.0)


def test_two_equal_jobs_share_the_better_type_by_halves() -> None:
    jobs = active(*(one_gpu(name, on_large(1, 50.0), on_small(1, 100.0)) for name in "ab"))
    shares = time_shares(jobs, {"large": 1, "small": 1}, "max-min")
    assert shares == pytest.approx({("a", 0): 0.5, ("a", 1): 0.5, ("b", 0): 0.5, ("b", 1): 0.5}, abs=1e-3)


@pytest.mark.parametrize("objective", ["max-min", "max-sum"])
def test_the_job_that_gains_more_from_a_type_gets_all_of_it(objective: Literal["max-min", "max-sum"]) -> None:
    """a is ten times as fast on large, b as fast on both: a has 1.82 times, b 1.0 times an equal share."""
    a = one_gpu("a", on_large(1, 10.0), on_small(1, 100.0))
    b = one_gpu("b", on_large(1, 50.0), on_small(1, 50.0))
    shares = time_shares(active(a, b), {"large": 1, "small": 1}, objective)
    assert shares == pytest.approx({("a", 0): 1.0, ("a", 1): 0.0, ("b", 0): 0.0, ("b", 1): 1.0}, abs=1e-3)


def test_without_jobs_there_is_nothing_to_share() -> None:
    assert time_shares([], {"large": 1}, "max-min") == {}


def test_rounds_give_each_of_two_jobs_the_one_gpu_about_half_of_the_time() -> None:
    jobs = [one_gpu(name, on_large(1, 100.0)) for name in "ab"]
    result = simulate(scenario(*jobs, cluster=cluster(node("l1", "large", 1))), GavelScheduler())
    until_s = 7200.0
    on_gpu = {
        name: sum(
            min(until_s, stay.end_s) - stay.start_s
            for stay in result.stays
            if stay.run_key == name and stay.start_s < until_s
        )
        for name in "ab"
    }
    assert on_gpu["a"] == pytest.approx(on_gpu["b"], abs=400.0)
    assert all(stay.start_s % 360.0 == 0 for stay in result.stays)


@pytest.mark.parametrize("parameters", [GavelParameters(), GavelParameters(objective="max-sum", round_s=120.0)])
def test_counts_are_kept_all_jobs_end_and_a_second_run_is_the_same(parameters: GavelParameters) -> None:
    plans = (on_large(2, 60), on_large(1, 100), on_small(2, 160), on_small(1, 240))
    jobs = []
    for at in range(16):
        sim = sim_job(f"j{at}", *plans, submitted_s=61.0 * at, work=1.0 + at % 5)
        jobs.append(replace(sim, job=replace(sim.job, asked_gpus=1 + at % 2)))
    scheduler = GavelScheduler(parameters)

    def outcome() -> SimResult:
        return replace(simulate(scenario(*jobs), scheduler), decision_s=())

    first = outcome()
    assert all(job.end_s is not None for job in first.jobs)
    assert {(stay.run_key, stay.num_gpus) for stay in first.stays} == {
        (sim.job.run_key, sim.job.asked_gpus) for sim in jobs
    }
    assert outcome() == first
