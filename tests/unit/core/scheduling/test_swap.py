"""A job whose memory exceeded its GPUs gets larger ones from a job that fits elsewhere; both go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, started_before
from tests.unit.core.has_world import (
    EASY,
    by_job,
    elastic,
    facts,
    gpu_type,
    held_on,
    node,
    on,
    plan,
    running,
    started,
    team_quotas,
    waiting,
)

from frenzy.core.scheduling import BackfillPolicy, HasPolicy, SchedulingState, apply_actions, schedule
from frenzy.core.scheduling.engine.swap import served_first
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.job import Objective
from frenzy.core.values.queue_rules import QueueRules
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import (
    Elasticity,
    Hold,
    Preempt,
    QueuedJob,
    Resize,
    RunningJob,
    SchedulingFacts,
    Start,
)

HAS = HasPolicy()
TYPES = (gpu_type("big", memory_gib=40), gpu_type("mid", memory_gib=24), gpu_type("low", memory_gib=16))
ONE_EACH = [node("b", "big", 1), node("l", "low", 1)]
OFTEN = Elasticity(restart_s=10.0, moves_left=100)


def on_big(num_gpus: int = 1, *, run_s: float = 10_000.0) -> ResourcePlan:
    return plan("big", num_gpus, run_s=run_s, required_gib=20, gpu_memory_gib=40)


def on_low(num_gpus: int = 1, *, run_s: float = 10_000.0) -> ResourcePlan:
    return plan("low", num_gpus, run_s=run_s)


def pressed(name: str = "pressed", *plans: ResourcePlan, **changes: Any) -> QueuedJob:
    """A job that gave up its GPUs, and goes on only where there is more memory."""
    job = waiting(name, *(plans or (on_big(),)), submitted_s=500.0)
    return replace(job, memory_constrained=True, ordered=True, work_done=0.5, elasticity=OFTEN, **changes)


def holder(name: str = "holder", *plans: ResourcePlan, elasticity: Elasticity | None = OFTEN) -> QueuedJob:
    return replace(waiting(name, *(plans or (on_big(), on_low()))), elasticity=elasticity)


def holding(job: QueuedJob, *allocations: tuple[str, int], since_s: float = 0.0) -> RunningJob:
    return on(job, job.plans[0], *allocations, since_s=since_s)


def test_two_jobs_swap_when_the_holder_fits_on_what_was_given_up() -> None:
    there = facts(ONE_EACH, [pressed()], [holding(holder(), ("b", 1))], TYPES)
    actions = by_job(schedule(there, NOW_S, HAS))
    moved, start = actions["holder"], actions["pressed"]
    assert isinstance(moved, Resize)
    assert isinstance(start, Start)
    assert (moved.plan.gpu_type, start.plan.gpu_type) == ("low", "big")


def test_a_pressed_job_that_is_never_moved_itself_gets_its_gpus_all_the_same() -> None:
    stays = replace(pressed(), elasticity=None)
    there = facts(ONE_EACH, [stays], [holding(holder(), ("b", 1))], TYPES)
    assert set(started(schedule(there, NOW_S, HAS))) == {"pressed"}


def test_nobody_moves_when_larger_gpus_are_idle() -> None:
    nodes = [*ONE_EACH, node("b2", "big", 1)]
    there = facts(nodes, [pressed()], [holding(holder(), ("b", 1))], TYPES)
    (action,) = schedule(there, NOW_S, HAS)
    assert isinstance(action, Start)


def test_a_pressed_job_goes_before_its_equals() -> None:
    earlier = waiting("earlier", on_big(run_s=10.0))
    there = facts(ONE_EACH, [earlier, pressed()], [], TYPES)
    assert set(started(schedule(there, NOW_S, HAS))) == {"pressed"}


@pytest.mark.parametrize("policy", [HAS, BackfillPolicy()])
def test_a_pressed_job_goes_before_its_equals_where_no_job_is_moved(policy: BackfillPolicy) -> None:
    earlier = waiting("earlier", on_big(run_s=10.0))
    there = facts(ONE_EACH, [earlier, replace(pressed(), elasticity=None)], [], TYPES)
    assert set(started(schedule(there, NOW_S, policy))) == {"pressed"}


def test_a_job_waiting_with_a_higher_priority_goes_before_it() -> None:
    urgent = replace(holder("urgent", on_big(2)), priority=1)
    nodes, fixed = [node("b", "big", 2), node("l", "low", 1)], running("fixed", on_big(), ("b", 1))
    there = facts(nodes, [urgent, pressed()], [holding(holder(), ("b", 1)), fixed], TYPES)
    assert "pressed" not in started(schedule(there, NOW_S, HAS))


@pytest.mark.parametrize("quotas", [team_quotas(red=1), team_quotas()], ids=["by its quota", "by the cluster"])
def test_a_higher_priority_that_cannot_have_the_larger_gpus_bars_nobody(quotas: QueueRules) -> None:
    num_gpus = 1 if quotas else 2
    urgent = replace(holder("urgent", on_big(num_gpus)), priority=1, team="red")
    other = replace(running("other", on_low(), ("l2", 1)), team="red")
    there = facts([*ONE_EACH, node("l2", "low", 1)], [urgent, pressed()], [holding(holder(), ("b", 1)), other], TYPES)
    assert "pressed" in started(schedule(there, NOW_S, HasPolicy(queues=quotas)))


@pytest.mark.parametrize(
    "stays",
    [
        replace(holding(holder(), ("b", 1)), priority=1),
        replace(holding(holder(), ("b", 1)), elasticity=None, plans=()),
        holding(holder(elasticity=replace(OFTEN, moves_left=0)), ("b", 1)),
        holding(holder(elasticity=replace(OFTEN, min_run_s=60.0)), ("b", 1), since_s=NOW_S - 30.0),
        holding(holder("holder", on_big()), ("b", 1)),
    ],
    ids=["higher priority", "elastic: off", "no moves left", "just moved", "fits nowhere else"],
)
def test_a_holder_that_must_not_move_stays(stays: RunningJob) -> None:
    (action,) = schedule(facts(ONE_EACH, [pressed()], [stays], TYPES), NOW_S, HAS)
    assert isinstance(action, Hold)


def test_a_holder_that_would_lose_more_than_the_other_waits_stays() -> None:
    slow = holder("holder", on_big(run_s=2000.0), on_low(run_s=200_000.0))
    (action,) = schedule(facts(ONE_EACH, [pressed()], [holding(slow, ("b", 1))], TYPES), NOW_S, HAS)
    assert isinstance(action, Hold)


def test_a_much_slower_place_will_do_while_a_short_pressed_job_has_the_larger_gpus() -> None:
    slow = holder("holder", on_big(run_s=20_000.0), on_low(run_s=200_000.0))
    short = pressed("short", on_big(run_s=500.0))
    there = facts(ONE_EACH, [short], [holding(slow, ("b", 1))], TYPES)
    assert set(started(schedule(there, NOW_S, HAS))) == {"short"}


def test_a_lower_priority_moves_whatever_it_loses() -> None:
    slow = holder("holder", on_big(run_s=2000.0), on_low(run_s=200_000.0))
    there = facts(ONE_EACH, [replace(pressed(), priority=1)], [holding(slow, ("b", 1))], TYPES)
    assert set(started(schedule(there, NOW_S, HAS))) == {"pressed"}


def test_the_holder_that_loses_least_moves() -> None:
    nodes = [node("b", "big", 3), node("l", "low", 1)]
    costs = {"dear": 19_000.0, "cheap": 12_000.0, "middling": 15_000.0}
    held = [holding(holder(name, on_big(), on_low(run_s=run_s)), ("b", 1)) for name, run_s in costs.items()]
    actions = schedule(facts(nodes, [pressed()], held, TYPES), NOW_S, HAS)
    assert [each.run_key for each in actions if isinstance(each, Resize)] == ["cheap"]


def test_a_holder_of_several_gpus_may_shrink_instead() -> None:
    wide = holder("holder", on_big(2, run_s=5000.0), on_big(1, run_s=8000.0))
    there = facts([node("b", "big", 2)], [pressed()], [holding(wide, ("b", 2))], TYPES)
    actions = by_job(schedule(there, NOW_S, HAS))
    assert isinstance(actions["holder"], Resize)
    assert isinstance(actions["pressed"], Start)


def test_a_holder_may_go_to_another_node_with_the_plan_it_has() -> None:
    """Two GPUs of one node are needed; one is idle on each node, and the other type would be far too slow."""
    nodes = [node("a", "big", 2), node("b", "big", 2), node("l", "low", 1)]
    held = holding(holder("holder", on_big(), on_low(run_s=1e6)), ("a", 1))
    fixed = running("fixed", on_big(), ("b", 1), end_s=None)
    needy = pressed("pressed", plan("big", 2, tp=2, run_s=9000.0, required_gib=20, gpu_memory_gib=40))
    actions = by_job(schedule(facts(nodes, [needy], [held, fixed], TYPES), NOW_S, HAS))
    moved, start = actions["holder"], actions["pressed"]
    assert isinstance(moved, Resize)
    assert isinstance(start, Start)
    assert [each.node for each in moved.placement.allocations] == ["b"]
    assert [each.node for each in start.placement.allocations] == ["a"]


def test_a_quota_is_kept_by_both() -> None:
    there = facts(ONE_EACH, [replace(pressed(), team="red")], [holding(holder(), ("b", 1))], TYPES)
    assert started(schedule(there, NOW_S, HasPolicy(queues=team_quotas(red=0)))) == {}
    wide = holder("holder", on_big(), on_low(2))
    nodes = [node("b", "big", 1), node("l", "low", 2)]
    red = [replace(holding(wide, ("b", 1)), team="red")]
    there = facts(nodes, [pressed()], red, TYPES)
    assert started(schedule(there, NOW_S, HasPolicy(queues=team_quotas(red=1)))) == {}


def test_each_of_two_pressed_jobs_gets_a_place() -> None:
    nodes = [node("b", "big", 2), node("l", "low", 2)]
    held = [holding(holder(name), ("b", 1)) for name in ("h1", "h2")]
    there = facts(nodes, [pressed("p1"), pressed("p2")], held, TYPES)
    actions = schedule(there, NOW_S, HAS)
    assert set(started(actions)) == {"p1", "p2"}
    assert {each.run_key for each in actions if isinstance(each, Resize)} == {"h1", "h2"}


def test_what_was_given_for_memory_is_not_taken_back_by_an_equal_that_would_be_faster_there() -> None:
    quick_on_big = holder("holder", on_big(run_s=10_000.0), on_low(run_s=100_000.0))
    moved = on(quick_on_big, quick_on_big.plans[1], ("l", 1))
    there = facts(ONE_EACH, [], [moved, replace(holding(pressed(), ("b", 1)), memory_constrained=True)], TYPES)
    assert schedule(there, NOW_S, HAS) == ()


def test_a_higher_priority_still_takes_it() -> None:
    urgent = replace(holder("urgent", on_big()), priority=1)
    there = facts(ONE_EACH, [urgent], [replace(holding(pressed(), ("b", 1)), memory_constrained=True)], TYPES)
    actions = by_job(schedule(there, NOW_S, HAS))
    assert isinstance(actions["urgent"], Start)
    assert isinstance(actions["pressed"], Preempt)


def test_a_node_that_is_drained_is_left_to_its_job() -> None:
    nodes = [node("b", "big", 1, state=NodeState.DRAINING), node("l", "low", 1)]
    there = facts(nodes, [pressed()], [holding(holder(), ("b", 1))], TYPES)
    assert started(schedule(there, NOW_S, HAS)) == {}


def test_of_very_many_holders_one_is_found() -> None:
    nodes = [node(f"b{at:03}", "big", 1) for at in range(200)] + [node("l", "low", 1)]
    held = [
        holding(holder(f"h{at:03}", on_big(), on_low(run_s=19_000.0 - (at == 170) * 8000.0)), (f"b{at:03}", 1))
        for at in range(200)
    ]
    actions = schedule(facts(nodes, [pressed()], held, TYPES), NOW_S, HAS)
    assert [each.run_key for each in actions if isinstance(each, Resize)] == ["h170"]


thorough = settings(max_examples=60, deadline=None)
run_times = st.sampled_from((400.0, 2000.0, 10_000.0, 50_000.0))


@st.composite
def two_jobs(draw: st.DrawFn) -> SchedulingFacts:
    """One job under memory pressure, one that holds the larger GPUs, perhaps with idle ones and other jobs about."""
    names = ("big", "mid", "low")
    nodes = [
        node(f"n{at}", draw(st.sampled_from(names)), draw(st.integers(1, 2))) for at in range(draw(st.integers(0, 2)))
    ]
    nodes += ONE_EACH
    held = holder(
        "holder",
        plan("big", 1, run_s=draw(run_times), gpu_memory_gib=40),
        *(plan(name, 1, run_s=draw(run_times)) for name in draw(st.sampled_from((("low",), ("low", "mid"))))),
    )
    held = replace(held, submitted_s=draw(st.sampled_from((0.0, 900.0))), memory_constrained=draw(st.booleans()))
    needy = pressed("pressed", *(on_big(run_s=draw(run_times)),))
    needy = replace(needy, submitted_s=draw(st.sampled_from((0.0, 900.0))))
    more = draw(st.sampled_from(((), (holder("third", on_big(run_s=300.0), on_low(run_s=900.0)),))))
    return facts(
        nodes, [needy, *more], [replace(holding(held, ("b", 1)), memory_constrained=held.memory_constrained)], TYPES
    )


@thorough
@given(two_jobs(), st.sampled_from((20.0, 300.0, 3000.0)))
def test_two_jobs_never_change_places_back_and_forth(there: SchedulingFacts, step_s: float) -> None:
    """However often it is decided, moves cost nothing to their budget, and time goes on between decisions."""
    now_s, seen, known = NOW_S, list[str](), {job.run_key for job in there.queued}
    for _ in range(8):
        actions = schedule(there, now_s, HAS)
        there = apply_actions(there, actions, now_s=now_s)
        types = {job.run_key: job.plan.gpu_type for job in there.running}
        if "pressed" in types:
            seen.append(types["pressed"])
            assert "third" in known or "holder" in types, "a swap leaves both running"
        assert not (seen and "pressed" not in types), "what was given for memory is kept"
        now_s += step_s


@st.composite
def pressed_facts(draw: st.DrawFn) -> SchedulingFacts:
    """Jobs the policy itself started some time ago; those that have come since are all under memory pressure."""
    elasticities = st.sampled_from((None, OFTEN, OFTEN, replace(OFTEN, min_run_s=100.0)))
    after, since = draw(started_before(elasticities, (40.0, 800.0)))
    return replace(after, queued=tuple(replace(job, memory_constrained=True, ordered=True) for job in since))


@thorough
@given(pressed_facts(), st.sampled_from((HAS, HasPolicy(queues=team_quotas(red=2)))))
def test_whoever_moves_has_a_place_and_none_is_moved_for_one_of_lower_priority(
    there: SchedulingFacts, policy: HasPolicy
) -> None:
    state = SchedulingState.of(there, policy)
    actions, after = served_first(state, NOW_S)
    nodes = there.cluster.nodes_by_name
    assert all(count <= nodes[name].num_gpus for name, count in held_on(after.facts).items())
    waiting_jobs = {job.run_key: job for job in there.queued}
    holders = {job.run_key: job for job in there.running}
    before: Resize | None = None
    for action in actions:
        if isinstance(action, Resize):
            before = action
            continue
        assert isinstance(action, Start)
        assert action.placement.num_gpus == action.plan.num_gpus
        if before is not None:
            moved = holders[before.run_key]
            assert moved.priority <= waiting_jobs[action.run_key].priority
            assert moved.elasticity is not None
            assert moved.ran_s(NOW_S) >= moved.elasticity.min_run_s
        before = None
    assert before is None, "nobody moves for nothing"
    assert len({action.run_key for action in actions}) == len(actions), "nobody moves twice"
    for team, quota in ((each.name, each.quota.max_gpus or 0) for each in policy.queues.teams):
        held, held_before = (
            sum(job.plan.num_gpus for job in each.running if job.team == team) for each in (after.facts, there)
        )
        assert held <= max(quota, held_before)


def test_nothing_is_swapped_for_a_job_whose_memory_did_not_grow() -> None:
    usual = elastic(waiting("usual", on_big(), submitted_s=999.0))
    (action,) = schedule(facts(ONE_EACH, [usual], [holding(holder(), ("b", 1))], TYPES), NOW_S, HAS)
    assert isinstance(action, Hold)


def test_a_fixed_job_of_another_kind_is_no_obstacle() -> None:
    fixed = running("fixed", on_low(), ("l", 1))
    nodes = [*ONE_EACH, node("m", "mid", 1)]
    middling = holder("holder", on_big(), on_low(), plan("mid", 1, run_s=10_000.0))
    there = facts(nodes, [pressed()], [fixed, holding(middling, ("b", 1))], TYPES)
    actions = by_job(schedule(there, NOW_S, HAS))
    assert isinstance(actions["holder"], Resize)
    assert actions["holder"].plan.gpu_type == "mid"


def test_a_memory_constrained_job_that_is_to_cost_little_takes_the_cheapest_idle_plan() -> None:
    plans = (plan("big", 1, run_s=1000.0, cost=1000.0), plan("big", 8, run_s=200.0, cost=1600.0))
    job = replace(waiting("a", *plans), objective=Objective.COST, elasticity=EASY, memory_constrained=True)
    found = started(schedule(facts([node("n", "big", 8)], [job]), NOW_S, HasPolicy()))
    assert found["a"].plan.num_gpus == 1
