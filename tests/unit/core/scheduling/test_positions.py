"""What waiting jobs are told of their turn where jobs may be moved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.has_strategies import NOW_S
from tests.unit.core.has_world import elastic, facts, held, node, plan, running, waiting

from frenzy.core.scheduling import HasPolicy, SchedulingState, explain, schedule
from frenzy.core.scheduling.engine import elastic as moves
from frenzy.core.scheduling.engine.service_order import entries_of
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.scheduling_facts import SchedulingFacts

HAS = HasPolicy()


def full_house() -> SchedulingFacts:
    """One GPU that is held for long; those that came last are served first, for a deadline or for being short."""
    long = [elastic(waiting(f"long{at}", plan("g", 1, run_s=9000.0), submitted_s=float(at))) for at in range(3)]
    short = elastic(waiting("short", plan("g", 1, run_s=10.0), submitted_s=800.0))
    late = elastic(waiting("late", plan("g", 1, run_s=1000.0), submitted_s=900.0), deadline_s=NOW_S + 1500.0)
    fixed = running("fixed", plan("g", 1), ("n", 1), end_s=NOW_S + 50_000.0)
    return facts([node("n", "g", 1)], [*long, short, late], [fixed])


def test_the_position_is_the_place_in_which_the_job_is_served() -> None:
    there = full_house()
    holds = held(schedule(there, NOW_S, HAS))
    served = [each.run_key for each in entries_of(SchedulingState.of(there, HAS), NOW_S) if each.current is None]
    assert list(holds) == served == ["late", "short", "long0", "long1", "long2"]
    assert [each.position for each in holds.values()] == [1, 2, 3, 4, 5]
    lines = explain(there, "late", NOW_S, HAS).lines
    assert lines[0] == "It is number 1 in the queue."
    assert lines[1].endswith("it is served before others of its priority.")


@pytest.fixture
def no_moves_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no sweep found a place for what it decided."""
    monkeypatch.setattr(moves, "_MAX_SWEEPS", 0)


@pytest.mark.usefixtures("no_moves_found")
def test_where_moves_find_no_place_a_job_is_told_that_it_waits_for_a_better_plan() -> None:
    soon = running("soon", plan("fast", 1), ("f", 1), end_s=NOW_S + 60.0)
    patient = elastic(
        waiting("patient", plan("fast", 1, run_s=1000.0), plan("slow", 1, run_s=9000.0), submitted_s=NOW_S)
    )
    hold = held(schedule(facts([node("f", "fast", 1), node("s", "slow", 1)], [patient], [soon]), NOW_S, HAS))["patient"]
    assert hold.reason.code is ReasonCode.WAITING_FOR_BETTER_PLAN
    assert hold.expected_start_s == NOW_S + 60.0


@pytest.mark.usefixtures("no_moves_found")
def test_where_moves_find_no_place_gpus_are_kept_for_the_first_in_line_not_for_who_matters_more() -> None:
    first = elastic(waiting("first", plan("g", 4), submitted_s=1.0))
    second = elastic(waiting("second", plan("g", 2, run_s=9000.0), submitted_s=2.0))
    held_until = running("r", plan("g", 2), ("n", 2), end_s=NOW_S + 100.0)
    there = facts([node("n", "g", 4)], [first, second], [held_until])
    reason = held(schedule(there, NOW_S, replace(HAS, slowdown=0.0)))["second"].reason
    assert reason.code is ReasonCode.WAITING_BEHIND_HEAD
    assert (
        reason.detail == "2 g are idle, but job-first is first in line for them and expected to start in about 2 min."
    )
