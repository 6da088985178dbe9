"""Sia: the objective, restarts, placements, rigid counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from tests.unit.core.has_world import node
from tests.unit.sim.sim_world import cluster, on_large, on_small, scenario, sim_job

from frenzy.core.scheduling import SchedulingState
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, SchedulingFacts, Start
from frenzy.sim.engine import simulate
from frenzy.sim.results import JobOutcome, SimResult
from frenzy.sim.scenario_jobs import SimJob
from tools.policy_bench.sia import SiaParameters, SiaScheduler

PLANS = (on_large(2, 60), on_large(1, 100), on_small(2, 160), on_small(1, 240))


def asked(num_gpus: int, sim: SimJob) -> SimJob:
    return replace(sim, job=replace(sim.job, asked_gpus=num_gpus))


def first_round(scheduler: SiaScheduler, *jobs: QueuedJob, on: Cluster | None = None) -> dict[str, ResourcePlan]:
    facts = SchedulingFacts(cluster=on or cluster(), queued=jobs, running=())
    actions = scheduler.decide(SchedulingState.of(facts, scheduler.rules), 0.0)
    return {each.run_key: each.plan for each in actions if isinstance(each, Start)}


def published_objective(jobs: list[QueuedJob], chosen: tuple[ResourcePlan | None, ...]) -> float | None:
    """Written down again from the paper, for jobs that do not run yet; None beyond the cluster's GPUs."""
    for gpu_type in ("small", "large"):
        if sum(plan.num_gpus for plan in chosen if plan is not None and plan.gpu_type == gpu_type) > 2:
            return None
    total = 0.0
    for job, plan in zip(jobs, chosen, strict=True):
        slowest_s = max(each.predicted_run_s for each in job.plans)
        total += 1.1 if plan is None else (slowest_s / plan.predicted_run_s) ** -0.5
    return total


def test_a_round_reaches_the_least_objective_of_all_assignments() -> None:
    for extra_s in (0, 30, 75, 110):
        jobs = [
            sim_job("a", *PLANS).job,
            sim_job("b", on_large(1, 90 - extra_s / 2), on_small(1, 100 + extra_s)).job,
            sim_job("c", on_large(2, 20 + extra_s), on_small(2, 300)).job,
        ]
        every = product(*((None, *job.plans) for job in jobs))
        least = min(each for each in (published_objective(jobs, chosen) for chosen in every) if each is not None)
        plans = first_round(SiaScheduler(), *jobs)
        assert published_objective(jobs, tuple(plans.get(job.run_key) for job in jobs)) == pytest.approx(
            least, abs=2e-3
        )


def test_a_job_alone_gets_what_is_fastest_for_it() -> None:
    assert first_round(SiaScheduler(), sim_job("a", *PLANS).job) == {"a": PLANS[0]}


def outcome_of(result: SimResult, run_key: str) -> JobOutcome:
    return next(job for job in result.jobs if job.run_key == run_key)


def test_a_running_job_gives_up_the_gpus_from_which_it_gains_least() -> None:
    one, two = sim_job("one", *PLANS, work=100.0), sim_job("two", *PLANS, work=100.0, submitted_s=600.0)
    result = simulate(scenario(one, two), SiaScheduler())
    at_600 = {(stay.run_key, stay.gpu_type, stay.num_gpus) for stay in result.stays if stay.start_s == 600.0}
    # (2.4 * 600 / 610) ** -0.5 + 2.4 ** -0.5 = 1.30 is less than 4 ** -0.5 + 1.5 ** -0.5 = 1.32.
    assert at_600 == {("one", "large", 1), ("two", "large", 1)}


@pytest.mark.parametrize(("better_s", "num_restarts"), [(99.0, 0), (90.0, 1)])
def test_a_restart_has_to_gain_more_than_its_share_of_the_jobs_age(better_s: float, num_restarts: int) -> None:
    """At 540 s, when the better GPUs become free, r is 540 / 550."""
    blocker = sim_job("blocker", on_large(2, 500.0))
    other = sim_job("other", on_large(1, better_s), on_small(1, 100.0), work=8.0)
    assert outcome_of(simulate(scenario(blocker, other), SiaScheduler()), "other").num_restarts == num_restarts


def pinned(sim: SimJob) -> SimJob:
    return replace(sim, job=replace(sim.job, elasticity=None))


def test_a_job_that_may_not_be_moved_stays() -> None:
    blocker = pinned(sim_job("blocker", on_large(2, 100.0)))
    rock = sim_job("rock", on_large(2, 10.0), on_small(1, 1000.0), submitted_s=60.0)
    assert outcome_of(simulate(scenario(blocker, rock), SiaScheduler()), "rock").num_restarts == 1
    assert outcome_of(simulate(scenario(blocker, pinned(rock)), SiaScheduler()), "rock").num_restarts == 0


def test_what_finds_no_place_falls_back_on_the_next_best() -> None:
    """Two GPUs are free on two nodes, which a group of two cannot use."""
    apart = cluster(node("l1", "large", 1), node("l2", "large", 1))
    grouped = replace(on_large(2, 10.0), tp=2, dp=1)
    assert first_round(SiaScheduler(), sim_job("a", grouped, on_large(1, 50.0)).job, on=apart) == {
        "a": on_large(1, 50.0)
    }


def test_the_rigid_variant_keeps_every_job_at_its_count() -> None:
    jobs = [asked(1 + at % 2, sim_job(f"j{at}", *PLANS, submitted_s=100.0 * at, work=5.0)) for at in range(6)]
    result = simulate(scenario(*jobs), SiaScheduler(SiaParameters(rigid=True)))
    counts = {sim.job.run_key: sim.job.asked_gpus for sim in jobs}
    assert {(stay.run_key, stay.num_gpus) for stay in result.stays} == set(counts.items())
    assert SiaScheduler(SiaParameters(rigid=True)).name == "sia-rigid"


def crowd() -> list[SimJob]:
    return [sim_job(f"j{at}", *PLANS, submitted_s=37.0 * at, work=1.0 + at % 5) for at in range(25)]


@pytest.mark.parametrize("parameters", [SiaParameters(), SiaParameters(rigid=True), SiaParameters(work_power=1.0)])
def test_every_job_ends_and_a_second_run_with_the_same_scheduler_is_the_same(parameters: SiaParameters) -> None:
    scheduler = SiaScheduler(parameters)

    def outcome() -> SimResult:
        return replace(simulate(scenario(*crowd()), scheduler), decision_s=())

    first = outcome()
    assert all(job.end_s is not None for job in first.jobs)
    assert outcome() == first
