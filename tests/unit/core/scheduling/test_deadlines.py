"""Deadlines and costs decide where they matter, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, elastic_facts
from tests.unit.core.has_world import facts, held, node, plan, queue_weights, running, started, team_quotas, waiting

from frenzy.core.scheduling import BackfillPolicy, HasPolicy, apply_actions, explain, schedule
from frenzy.core.values.job import Objective
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import (
    Action,
    Elasticity,
    QueuedJob,
    Resize,
    RunningJob,
    SchedulingFacts,
    Start,
)

EASY = Elasticity(restart_s=10.0, moves_left=50.0)
POLICIES = (HasPolicy(), BackfillPolicy())
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
thorough = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])

ONE = plan("g", 1, run_s=1000.0, cost=10.0)
TWO = plan("g", 2, run_s=600.0, cost=12.0)
FOUR = plan("g", 4, run_s=400.0, cost=16.0)


def job(
    name: str, *plans: ResourcePlan, in_s: float | None = None, submitted_s: float = 0.0, **fields: object
) -> QueuedJob:
    made = waiting(name, *plans, submitted_s=submitted_s)
    deadline_s = None if in_s is None else NOW_S + in_s
    return replace(made, deadline_s=deadline_s, **{"elasticity": EASY, **fields})  # type: ignore[arg-type]


@each_policy
def test_a_job_whose_deadline_is_at_risk_is_served_before_those_that_came_first(policy: HasPolicy) -> None:
    jobs = [job(f"j{at}", ONE, submitted_s=at) for at in range(3)]
    late = job("late", ONE, in_s=1500.0, submitted_s=900.0)
    assert "late" in started(schedule(facts([node("n", "g", 1)], [*jobs, late]), NOW_S, policy))


@each_policy
def test_a_deadline_far_away_changes_nothing(policy: HasPolicy) -> None:
    jobs = [job(f"j{at}", ONE, submitted_s=at) for at in range(3)]
    calm = job("calm", ONE, in_s=1e6, submitted_s=900.0)
    without = replace(calm, deadline_s=None)
    first, second = (schedule(facts([node("n", "g", 1)], [*jobs, each]), NOW_S, policy) for each in (calm, without))
    assert first == second


@each_policy
def test_a_deadline_that_cannot_be_met_favours_nobody_and_is_told(policy: HasPolicy) -> None:
    jobs = [job(f"j{at}", ONE, submitted_s=at) for at in range(3)]
    lost = job("lost", ONE, in_s=800.0, submitted_s=900.0)
    there = facts([node("n", "g", 1)], [*jobs, lost])
    without = facts([node("n", "g", 1)], [*jobs, replace(lost, deadline_s=None)])
    actions = schedule(there, NOW_S, policy)
    assert started(actions) == started(schedule(without, NOW_S, policy))
    told = held(actions)["lost"].reason
    assert "Its deadline is in about 13 min and cannot be met: its fastest plan takes about 17 min" in told.detail
    assert held(schedule(without, NOW_S, policy))["lost"].reason.code is told.code


@each_policy
def test_the_earliest_deadline_at_risk_comes_first(policy: HasPolicy) -> None:
    jobs = [job("b", ONE, in_s=1900.0), job("a", ONE, in_s=1800.0, submitted_s=500.0)]
    assert set(started(schedule(facts([node("n", "g", 1)], jobs), NOW_S, policy))) == {"a"}


@each_policy
def test_a_higher_priority_still_comes_before_a_deadline(policy: HasPolicy) -> None:
    jobs = [job("late", ONE, in_s=1200.0), job("urgent", ONE, submitted_s=900.0, priority=1)]
    assert set(started(schedule(facts([node("n", "g", 1)], jobs), NOW_S, policy))) == {"urgent"}


@each_policy
@pytest.mark.parametrize(("in_s", "num_gpus"), [(None, 1), (5000.0, 1), (900.0, 2), (450.0, 4), (100.0, 1)])
def test_a_job_that_goes_by_cost_takes_the_cheapest_plan_that_meets_its_deadline(
    policy: HasPolicy, in_s: float | None, num_gpus: int
) -> None:
    thrifty = job("thrifty", ONE, TWO, FOUR, in_s=in_s, objective=Objective.COST)
    actions = started(schedule(facts([node("n", "g", 4)], [thrifty]), NOW_S, policy))
    assert actions["thrifty"].plan.num_gpus == num_gpus


def test_a_job_takes_enough_gpus_for_its_deadline_though_many_wait() -> None:
    many = [job(f"j{at:02}", FOUR, TWO, ONE, submitted_s=at) for at in range(12)]
    calm, late = (job("x", FOUR, TWO, ONE, submitted_s=900.0, in_s=in_s) for in_s in (None, 650.0))
    there = [facts([node("n", "g", 4)], [*many, each]) for each in (calm, late)]
    before, after = (started(schedule(each, NOW_S, HasPolicy())) for each in there)
    assert "x" not in before
    assert after["x"].plan.num_gpus >= 2


def test_a_running_job_grows_to_meet_its_deadline_and_others_make_room() -> None:
    def runs(name: str, node_name: str, deadline_s: float | None) -> RunningJob:
        there = running(name, ONE, (node_name, 1), end_s=NOW_S + 900.0, started_s=NOW_S - 100.0)
        return replace(there, plans=(FOUR, TWO, ONE), elasticity=EASY, deadline_s=deadline_s)

    jobs = [runs(f"r{at}", "n", None) for at in range(3)]
    queue = [job(f"q{at}", ONE, submitted_s=at) for at in range(4)]
    late = runs("late", "n", NOW_S + 620.0)
    actions = schedule(facts([node("n", "g", 4)], queue, [*jobs, late]), NOW_S, HasPolicy())
    moved = {each.run_key: each for each in actions if isinstance(each, Resize)}
    assert moved["late"].plan.num_gpus >= 2


@each_policy
@pytest.mark.parametrize("num_gpus", [64, 8], ids=["cluster", "quota"])
def test_a_deadline_is_judged_by_plans_that_the_job_could_have(policy: HasPolicy, num_gpus: int) -> None:
    """One that is faster on paper neither puts the deadline out of risk nor within reach."""
    slow, never = plan("g", 4, run_s=450.0), plan("g", num_gpus, run_s=10.0)
    there, rules = [node("n", "g", 8)], replace(policy, queues=team_quotas(red=4))
    others = [job(f"o{at}", plan("g", 8, run_s=1000.0), submitted_s=at) for at in range(2)]
    risky = job("risky", never, slow, in_s=600.0, submitted_s=900.0, team="red")
    assert "risky" in started(schedule(facts(there, [*others, risky]), NOW_S, rules))
    lost = replace(risky, deadline_s=NOW_S + 300.0)
    actions = schedule(facts(there, [*others, lost]), NOW_S, rules)
    plain = schedule(facts(there, [*others, replace(lost, deadline_s=None)]), NOW_S, rules)
    assert started(actions) == started(plain)
    full = facts(there, [lost], [running("r", plan("g", 8), ("n", 8))])
    assert "its fastest plan takes about 8 min" in held(schedule(full, NOW_S, rules))["risky"].reason.detail


def test_explain_says_what_a_deadline_does() -> None:
    there = facts([node("n", "g", 1)], [job("first", ONE, in_s=1500.0), job("late", ONE, in_s=1700.0)])
    told = explain(there, "late", NOW_S, HasPolicy())
    assert "Its deadline in about 28 min is at risk: it is served before others of its priority." in told.lines
    runs = replace(running("r", ONE, ("n", 1), end_s=NOW_S + 500.0), deadline_s=NOW_S + 200.0)
    told = explain(facts([node("n", "g", 1)], [], [runs]), "r", NOW_S, HasPolicy())
    assert "It is expected to miss its deadline by about 5 min." in told.lines


def test_deadlines_order_the_jobs_of_a_queue_and_take_nothing_from_another() -> None:
    mine = [job(f"a{at}", ONE, submitted_s=at, queue="a") for at in range(4)]
    theirs = [job(f"b{at}", ONE, submitted_s=at, queue="b") for at in range(4)]
    late = job("late", ONE, in_s=1500.0, submitted_s=900.0, queue="a")
    policy = HasPolicy(queues=queue_weights(a=1.0, b=1.0))
    names = set(started(schedule(facts([node("n", "g", 4)], [*mine, late, *theirs]), NOW_S, policy)))
    assert "late" in names
    assert len([each for each in names if each.startswith("b")]) == 2


def test_a_deadline_at_risk_gives_a_large_job_no_more_than_the_share_of_its_queue() -> None:
    theirs = [job(f"b{at}", ONE, submitted_s=at, queue="b") for at in range(4)]
    late = job("late", plan("g", 4), in_s=1500.0, submitted_s=900.0, queue="a")
    policy = HasPolicy(queues=queue_weights(a=1.0, b=1.0))
    names = set(started(schedule(facts([node("n", "g", 4)], [late, *theirs]), NOW_S, policy)))
    assert len(names - {"late"}) >= 2


@each_policy
def test_the_restart_of_a_job_that_goes_on_counts_where_it_waits_for_another_plan(policy: HasPolicy) -> None:
    """Cheap GPUs come free in time for the work that is left, but not for the restart, too."""
    cheap, dear = plan("cheap", 1, run_s=75.0, cost=1.0), plan("dear", 1, run_s=100.0, cost=1000.0)
    going_on = job("going-on", cheap, dear, in_s=122.0, submitted_s=NOW_S, work_done=1.0, objective=Objective.COST)
    stays = running("r", plan("cheap", 1), ("c", 1), end_s=NOW_S + 40.0)
    there = facts([node("c", "cheap", 1), node("d", "dear", 1)], [going_on], [stays])
    assert set(started(schedule(there, NOW_S, policy))) == {"going-on"}


def run_time_s(actions: tuple[Action, ...], of: QueuedJob) -> float | None:
    """Seconds to its end, if it starts now."""
    for each in actions:
        if each.run_key == of.run_key and isinstance(each, Start):
            return of.work_left * each.plan.predicted_run_s
    return None


deadlines = st.sampled_from((1.0, 40.0, 90.0, 150.0, 400.0, 2000.0, 1e6))


@thorough
@given(elastic_facts(), st.integers(0, 20), deadlines)
def test_a_deadline_never_makes_its_job_wait_or_end_later_than_both(
    there: SchedulingFacts, which: int, in_s: float
) -> None:
    """It starts if it would start without, and ends by then or by its deadline."""
    if not there.queued:
        return
    chosen = there.queued[which % len(there.queued)]
    timed = replace(chosen, deadline_s=NOW_S + in_s)
    changed = replace(there, queued=tuple(timed if each is chosen else each for each in there.queued))
    before = run_time_s(schedule(there, NOW_S, HasPolicy()), chosen)
    after = run_time_s(schedule(changed, NOW_S, HasPolicy()), timed)
    if before is not None:
        assert after is not None
        assert after <= max(before, in_s) * (1 + 1e-9)


@thorough
@given(elastic_facts(), st.lists(deadlines | st.none(), min_size=12, max_size=12), st.sampled_from(POLICIES))
def test_with_deadlines_a_second_decision_starts_nothing(
    there: SchedulingFacts, in_s: list[float | None], policy: HasPolicy
) -> None:
    queued = tuple(
        replace(each, deadline_s=None if left_s is None else NOW_S + left_s)
        for each, left_s in zip(there.queued, in_s, strict=False)
    )
    timed = replace(there, queued=queued)
    after = apply_actions(timed, schedule(timed, NOW_S, policy), now_s=NOW_S)
    assert started(schedule(after, NOW_S, policy)) == {}
