"""The policy ``backfill``: the engine with moves off."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, all_facts
from tests.unit.core.has_world import facts, held, node, plan, running, started, waiting

from frenzy.core.scheduling import BackfillPolicy, SchedulingState, schedule
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.scheduling_facts import Hold, SchedulingFacts, Start

# Each job is due when it comes.
IN_ORDER = BackfillPolicy(slowdown=0.0)


def test_a_short_job_passes_the_head_only_if_it_is_gone_by_the_promised_start() -> None:
    run = [running("r", plan("v100", 2), ("n1", 2), end_s=100.0)]
    head = waiting("head", plan("v100", 4), submitted_s=1)
    short = waiting("short", plan("v100", 1, run_s=90.0), submitted_s=2)
    long = waiting("long", plan("v100", 1, run_s=110.0), submitted_s=3)
    actions = schedule(facts([node("n1", "v100", 4)], [head, short, long], run), 0.0, IN_ORDER)
    assert list(started(actions)) == ["short"]
    assert held(actions)["head"].expected_start_s == 100.0
    assert held(actions)["long"].reason.code is ReasonCode.WAITING_BEHIND_HEAD


def test_a_short_job_is_not_kept_from_its_turn_by_a_longer_one_that_asks_for_the_same() -> None:
    run = [running("r", plan("v100", 2), ("n1", 2), end_s=100.0)]
    head = waiting("head", plan("v100", 4), submitted_s=1)
    longer = [waiting(f"long-{at}", plan("v100", 1, run_s=1000.0), submitted_s=2 + at) for at in range(3)]
    short = waiting("short", plan("v100", 1, run_s=90.0), submitted_s=5)
    actions = schedule(facts([node("n1", "v100", 4)], [head, *longer, short], run), 0.0, IN_ORDER)
    assert list(started(actions)) == ["short"]


def test_of_jobs_that_ask_for_the_same_each_is_judged_by_its_own_run_time_at_every_event() -> None:
    policy = IN_ORDER
    run = [running("r", plan("v100", 3), ("n1", 3), end_s=100.0)]
    queue = [waiting("head", plan("v100", 4), submitted_s=1), waiting("a", plan("v100", 1, run_s=80.0), submitted_s=2)]
    queue.append(waiting("b", plan("v100", 1, run_s=500.0), submitted_s=1.5))
    assert list(started(schedule(facts([node("n1", "v100", 4)], queue, run), 10.0, policy))) == ["a"]
    queue[1] = waiting("c", plan("v100", 1, run_s=91.0), submitted_s=3)
    without_a = facts([node("n1", "v100", 4)], queue, run)
    assert not started(schedule(without_a, 10.0, policy))
    assert list(started(schedule(without_a, 9.0, policy))) == ["c"]


@pytest.mark.parametrize("ahead_s", [at * 1e-7 for at in range(40)])
def test_a_job_that_is_done_just_when_a_reservation_begins_starts_whatever_the_clock_says(ahead_s: float) -> None:
    now_s = 1.8e9 + ahead_s
    run_s = 600.1
    first = waiting("first", plan("v100", 1, run_s=run_s), submitted_s=1)
    wide = waiting("wide", plan("v100", 4), submitted_s=2)
    long = waiting("long", plan("v100", 1, run_s=1200.0), submitted_s=3)
    same = waiting("same", plan("v100", 1, run_s=run_s), submitted_s=4)
    actions = schedule(facts([node("n1", "v100", 4)], [first, wide, long, same]), now_s, IN_ORDER)
    assert list(started(actions)) == ["first", "same"]


@settings(max_examples=60, deadline=None)
@given(all_facts(), st.lists(st.floats(0, 2000), min_size=1, max_size=4))
def test_a_state_asked_at_several_times_answers_as_one_made_anew(there: SchedulingFacts, times: list[float]) -> None:
    policy = BackfillPolicy()
    kept = SchedulingState.of(there, policy)
    for after_s in sorted(times):
        assert schedule(kept, NOW_S + after_s, policy) == schedule(there, NOW_S + after_s, policy)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(all_facts())
def test_no_running_job_is_ever_touched(facts: SchedulingFacts) -> None:
    assert all(isinstance(action, Start | Hold) for action in schedule(facts, NOW_S, BackfillPolicy()))
