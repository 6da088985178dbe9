"""Schedulers by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.sim_world import on_large, on_small, scenario, sim_job

from frenzy.core.values.errors import SpecError
from frenzy.sim.engine import simulate
from frenzy.sim.registry import scheduler_named, scheduler_names
from frenzy.sim.results import SimResult
from frenzy.sim.scenario_jobs import SimJob

NAMES = {"backfill", "fifo", "frenzy-paper", "has"}
PLANS = (on_large(2, 60), on_large(1, 100), on_small(2, 160), on_small(1, 240))


def crowd() -> list[SimJob]:
    return [sim_job(f"j{at}", *PLANS, submitted_s=37.0 * at, work=1.0 + at % 5) for at in range(20)]


def test_every_policy_has_its_name_and_an_unknown_one_is_refused_with_those() -> None:
    assert set(scheduler_names()) == NAMES
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
