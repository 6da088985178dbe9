"""The policy ``backfill``: the pass that moves no job, under its own name."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from tests.unit.core.has_strategies import NOW_S, all_facts
from tests.unit.core.has_world import facts, held, node, plan, running, started, waiting

from frenzy.core.errors import ReasonCode
from frenzy.core.has import BackfillPolicy, schedule
from frenzy.core.queue import Hold, SchedulingFacts, Start


def test_a_short_job_passes_the_head_only_if_it_is_gone_by_the_promised_start() -> None:
    run = [running("r", plan("v100", 2), ("n1", 2), end_s=100.0)]
    head = waiting("head", plan("v100", 4), submitted_s=1)
    short = waiting("short", plan("v100", 1, run_s=90.0), submitted_s=2)
    long = waiting("long", plan("v100", 1, run_s=110.0), submitted_s=3)
    actions = schedule(facts([node("n1", "v100", 4)], [head, short, long], run), 0.0, BackfillPolicy())
    assert list(started(actions)) == ["short"]
    assert held(actions)["head"].expected_start_s == 100.0
    assert held(actions)["long"].reason.code is ReasonCode.WAITING_BEHIND_HEAD


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(all_facts())
def test_no_running_job_is_ever_touched(facts: SchedulingFacts) -> None:
    assert all(isinstance(action, Start | Hold) for action in schedule(facts, NOW_S, BackfillPolicy()))
