"""Rivals by name, beside the product's policies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.sim_world import on_large, on_small, scenario, sim_job

from frenzy.core.values.errors import SpecError
from frenzy.sim.engine import simulate
from frenzy.sim.registry import scheduler_names as offered_names
from frenzy.sim.results import SimResult
from frenzy.sim.scenario_jobs import SimJob
from tools.policy_bench.rivals import RIVALS, scheduler_named, scheduler_names

PLANS = (on_large(2, 60), on_large(1, 100), on_small(2, 160), on_small(1, 240))


def crowd() -> list[SimJob]:
    return [sim_job(f"j{at}", *PLANS, submitted_s=37.0 * at, work=1.0 + at % 5) for at in range(20)]


def test_rivals_stand_beside_what_users_can_simulate_and_are_not_offered_to_them() -> None:
    assert set(scheduler_names()) == {*RIVALS, *offered_names()}
    assert not set(RIVALS) & set(offered_names())
    assert all(scheduler_named(name).name == name for name in scheduler_names())
    with pytest.raises(SpecError, match="frenzy-paper"):
        scheduler_named("lottery")


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_every_rival_ends_all_jobs_and_does_the_same_again(name: str) -> None:
    """The engine raises SimulationError if GPUs are given to two jobs."""

    def outcome() -> SimResult:
        return replace(simulate(scenario(*crowd()), scheduler_named(name)), decision_s=())

    assert all(job.end_s is not None for job in outcome().jobs)
    assert outcome() == outcome()
