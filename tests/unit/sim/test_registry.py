"""Schedulers by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.has_world import node, plan
from tests.unit.sim.sim_world import cluster, on_large, on_small, scenario, sim_job

from frenzy.core.values.errors import SpecError
from frenzy.core.values.scheduling_facts import QueuedJob
from frenzy.sim.engine import simulate
from frenzy.sim.mixed import plan_as_placed
from frenzy.sim.registry import scheduler_named, scheduler_names
from frenzy.sim.results import SimResult
from frenzy.sim.scenario_jobs import SimJob

NAMES = {"backfill", "fifo", "frenzy-paper", "has"}
PLANS = (on_large(2, 60), on_large(1, 100), on_small(2, 160), on_small(1, 240))


def crowd() -> list[SimJob]:
    return [sim_job(f"j{at}", *PLANS, submitted_s=37.0 * at, work=1.0 + at % 5) for at in range(20)]


def test_every_policy_has_its_name_and_an_unknown_one_is_refused_with_those() -> None:
    assert set(scheduler_names()) >= NAMES
    assert all(scheduler_named(name).name == name for name in scheduler_names())
    with pytest.raises(SpecError, match="frenzy-paper"):
        scheduler_named("lottery")


@pytest.mark.parametrize("name", scheduler_names())
def test_every_policy_ends_all_jobs_and_does_the_same_again(name: str) -> None:
    """The engine raises SimulationError if GPUs are given to two jobs."""

    def outcome() -> SimResult:
        return replace(simulate(scenario(*crowd()), scheduler_named(name)), decision_s=())

    assert all(job.end_s is not None for job in outcome().jobs)
    assert outcome() == outcome()


def test_a_job_on_two_gpu_types_runs_as_fast_as_on_the_slower_one() -> None:
    """As published, 2 GPUs of the smaller class and 1 of the larger make up 3."""
    job = sim_job("a", on_small(3, 200.0), on_large(3, 50.0))
    few = cluster(node("s1", "small", 2), node("l1", "large", 2))
    result = simulate(scenario(job, cluster=few), scheduler_named("frenzy-paper"))
    assert result.jobs[0].end_s == 200.0
    alone = simulate(scenario(job, cluster=few), scheduler_named("frenzy-paper-launchable"))
    assert alone.jobs[0].end_s is None


def test_without_a_plan_of_the_same_settings_on_a_type_the_count_decides() -> None:
    mine, settings, other = on_large(2, 50.0), plan("small", 2, run_s=90.0, micro_batch_size=2), on_small(1, 500.0)
    job: QueuedJob = sim_job("a", mine, settings, other).job
    assert plan_as_placed(mine, job.plans, ["large"]) is mine
    assert plan_as_placed(mine, job.plans, ["large", "small"]) is settings
    assert plan_as_placed(mine, job.plans, ["small"]) is settings
    assert plan_as_placed(mine, (mine, other), ["small"]) is mine
