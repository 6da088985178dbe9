"""What an administrator sets: queues share the cluster by weight, quotas are never exceeded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, all_facts, elastic_facts
from tests.unit.core.has_world import (
    facts,
    gpu_type,
    held,
    node,
    plan,
    queue_weights,
    running,
    started,
    team_quotas,
    waiting,
)

from frenzy.app.queue_usage import usage_of
from frenzy.core.scheduling import BackfillPolicy, HasPolicy, SchedulingState, apply_actions, explain, schedule
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.queue_rules import QueueRule, QueueRules, Quota, TeamRule
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Elasticity, Preempt, QueuedJob, RunningJob, SchedulingFacts, Start

EASY = Elasticity(restart_s=10.0, moves_left=50.0)
KEEPING = (HasPolicy, BackfillPolicy)
thorough = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def job(name: str, *plans: ResourcePlan, queue: str = "a", team: str = "default", **fields: object) -> QueuedJob:
    return replace(waiting(name, *plans), queue=queue, team=team, **fields)  # type: ignore[arg-type]


def scaling(run_s: float = 3600.0, *, most: int = 8) -> tuple[ResourcePlan, ...]:
    """Plans of 1, 2, 4 ... GPUs, a little less efficient each."""
    counts = [each for each in (8, 4, 2, 1) if each <= most]
    return tuple(plan("g", each, run_s=run_s / each**0.9) for each in counts)


def backlog(queue: str, num_jobs: int, *, elastic: bool, most: int = 8) -> list[QueuedJob]:
    plans = scaling(most=most)
    return [job(f"{queue}{at:02}", *plans, queue=queue, elasticity=EASY if elastic else None) for at in range(num_jobs)]


def gpus_of(found: SchedulingFacts, queue: str) -> int:
    return sum(each.plan.num_gpus for each in found.running if each.queue == queue)


def settled(there: SchedulingFacts, policy: HasPolicy | BackfillPolicy, *, passes: int = 6) -> SchedulingFacts:
    """After some passes, a minute apart."""
    now_s = NOW_S
    for _ in range(passes):
        there = apply_actions(there, schedule(there, now_s, policy), now_s=now_s)
        now_s += 60.0
    return there


@pytest.mark.parametrize("kind", KEEPING)
@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize(("weight", "gpus"), [(1.0, 8), (3.0, 12), (7.0, 14)])
def test_backlogged_queues_hold_gpus_by_their_weights(
    kind: type[HasPolicy], elastic: bool, weight: float, gpus: int
) -> None:
    jobs = [*backlog("b", 40, elastic=elastic, most=1), *backlog("a", 40, elastic=elastic, most=1)]
    there = facts([node("n", "g", 8), node("m", "g", 8)], jobs)
    after = settled(there, kind(queues=queue_weights(a=weight, b=1.0)))
    assert gpus_of(after, "a") == gpus


@thorough
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.booleans(), st.sampled_from(KEEPING))
def test_shares_of_backlogged_queues_are_right_up_to_a_job(
    weight_a: int, weight_b: int, most: int, elastic: bool, kind: type[HasPolicy]
) -> None:
    jobs = [
        *backlog("a", 20, elastic=elastic, most=most),
        *backlog("b", 20, elastic=elastic, most=most),
        *backlog("c", 20, elastic=elastic, most=most),
    ]
    there = facts([node(f"n{at}", "g", 8) for at in range(2)], jobs)
    weights = {"a": float(weight_a), "b": float(weight_b), "c": 1.0}
    after = settled(there, kind(queues=queue_weights(**weights)))
    assert sum(gpus_of(after, name) for name in weights) == 16
    for name, weight in weights.items():
        right = 16 * weight / sum(weights.values())
        assert gpus_of(after, name) < right + most
        assert kind is BackfillPolicy or gpus_of(after, name) > right - most


def test_a_share_counts_gpus_by_the_speed_of_their_type() -> None:
    types = (gpu_type("fast", tflops=200.0), gpu_type("slow", tflops=50.0))
    nodes = [node("f", "fast", 4), node("s", "slow", 16)]
    jobs = [job(f"f{at}", plan("fast", 1), queue="a") for at in range(9)]
    jobs += [job(f"s{at:02}", plan("slow", 1), queue="b") for at in range(30)]
    there = facts(nodes, jobs, types=types)
    rules = queue_weights(a=1.0, b=1.0)
    rows = usage_of(settled(there, BackfillPolicy(queues=rules)), rules).shares
    assert {row.queue: (row.num_gpus, row.held, row.share) for row in rows} == {"a": (4, 4, 4), "b": (16, 4, 4)}


@pytest.mark.parametrize("kind", KEEPING)
def test_a_queue_borrows_what_the_other_leaves_idle(kind: type[HasPolicy]) -> None:
    there = facts([node("n", "g", 8)], backlog("a", 20, elastic=True, most=1))
    after = settled(there, kind(queues=queue_weights(a=1.0, b=99.0)))
    assert gpus_of(after, "a") == 8


def test_what_was_borrowed_is_given_back_when_its_owner_has_jobs() -> None:
    policy = HasPolicy(queues=queue_weights(a=1.0, b=3.0))
    borrowed = settled(facts([node("n", "g", 8)], backlog("a", 2, elastic=True)), policy)
    assert gpus_of(borrowed, "a") == 8
    late = tuple(replace(each, submitted_s=NOW_S + 360) for each in backlog("b", 6, elastic=True))
    now_s = NOW_S + 3600.0
    asked = replace(borrowed, queued=(*borrowed.queued, *late))
    after = apply_actions(asked, schedule(asked, now_s, policy), now_s=now_s)
    assert (gpus_of(after, "a"), gpus_of(after, "b")) == (2, 6)


def test_one_job_of_a_queue_grows_no_further_than_its_share_while_others_have_jobs() -> None:
    jobs = [*backlog("a", 1, elastic=True), *backlog("b", 20, elastic=True)]
    there = facts([node("n", "g", 8), node("m", "g", 8)], jobs)
    after = settled(there, HasPolicy(queues=queue_weights(a=1.0, b=1.0)))
    assert gpus_of(after, "a") == 8


@pytest.mark.parametrize("kind", KEEPING)
def test_a_job_that_is_larger_than_its_queues_share_starts_once_it_is_due(kind: type[HasPolicy]) -> None:
    whole = job("whole", plan("g", 8, run_s=10.0), queue="a", elasticity=EASY)
    there = facts(
        [node("n", "g", 8)], [whole, *(replace(each, submitted_s=500.0) for each in backlog("b", 4, elastic=True))]
    )
    assert "whole" in started(schedule(there, NOW_S, kind(queues=queue_weights(a=1.0, b=9.0))))


@pytest.mark.parametrize("kind", KEEPING)
def test_a_due_job_that_waits_within_its_share_may_still_borrow(kind: type[HasPolicy]) -> None:
    types = (gpu_type("fast"), gpu_type("slow", tflops=50.0))
    due = job("due", plan("fast", 4, run_s=10.0), plan("slow", 4, run_s=20.0), queue="a", submitted_s=-1e6)
    ours, theirs = (
        replace(running(name, plan(gpu, 4), (at, 4), end_s=2000.0), queue=queue)
        for name, gpu, at, queue in (("ours", "fast", "f", "a"), ("theirs", "slow", "s", "b"))
    )
    there = facts([node("f", "fast", 8), node("s", "slow", 4)], [due], [ours, theirs], types)
    assert set(started(schedule(there, NOW_S, kind(queues=queue_weights(a=1.0, b=1.0))))) == {"due"}


def test_a_due_job_that_had_better_wait_for_what_its_share_promises_says_what_it_gave_up() -> None:
    types = (gpu_type("fast"), gpu_type("slow", tflops=50.0))
    due = job("due", plan("fast", 4, run_s=90_000.0), plan("slow", 4, run_s=1000.0), queue="a", submitted_s=-50.0)
    ours = replace(running("ours", plan("fast", 4), ("f", 4), end_s=2000.0), queue="a")
    theirs = replace(running("theirs", plan("slow", 4), ("s", 4), end_s=NOW_S + 5.0), queue="b")
    there = facts([node("f", "fast", 8), node("s", "slow", 4)], [due], [ours, theirs], types)
    policy = BackfillPolicy(slowdown=0.0, queues=queue_weights(a=1.0, b=1.0))
    reason = held(schedule(there, NOW_S, policy))["due"].reason
    assert reason.code is ReasonCode.WAITING_FOR_BETTER_PLAN
    assert "slow" in reason.detail


def test_without_queues_in_the_rules_the_queue_a_job_names_means_nothing() -> None:
    jobs = [*backlog("a", 6, elastic=True), *backlog("b", 6, elastic=True)]
    there = facts([node("n", "g", 8)], jobs)
    alike = replace(there, queued=tuple(replace(each, queue="a") for each in there.queued))
    policy = HasPolicy(queues=team_quotas(red=3))
    assert schedule(there, NOW_S, policy) == schedule(alike, NOW_S, policy)


limits = st.none() | st.integers(0, 5)


@st.composite
def rules(draw: st.DrawFn) -> QueueRules:
    def quota() -> Quota:
        by_type = {name: draw(st.integers(0, 3)) for name in draw(st.sets(st.sampled_from(("big", "low"))))}
        return Quota(max_gpus=draw(limits), max_gpus_by_type=tuple(sorted(by_type.items())))

    queues = tuple(
        QueueRule(name=name, weight=draw(st.sampled_from((0.5, 1.0, 4.0))), quota=quota())
        for name in draw(st.sampled_from(((), ("a",), ("a", "b"), ("a", "b", "default"))))
    )
    teams = tuple(TeamRule(name=name, quota=quota()) for name in draw(st.sampled_from((("red",), ("red", "*"), ()))))
    return QueueRules(queues=queues, teams=teams)


@st.composite
def shared_facts(draw: st.DrawFn) -> SchedulingFacts:
    found = draw(elastic_facts() | all_facts())

    def of_someone(each: QueuedJob | RunningJob) -> dict[str, str]:
        return {"queue": draw(st.sampled_from(("a", "b", "default"))), "team": draw(st.sampled_from(("red", "blue")))}

    return replace(
        found,
        queued=tuple(replace(each, **of_someone(each)) for each in found.queued),
        running=tuple(replace(each, **of_someone(each)) for each in found.running),
    )


some_policies = st.builds(
    lambda kind, queues: kind(queues=queues), st.sampled_from((HasPolicy, HasPolicy, BackfillPolicy)), rules()
)


def use_of(found: SchedulingFacts, queues: QueueRules) -> dict[tuple[str, str, str | None], int]:
    return {(row.holder, row.name, row.gpu_type): row.held for row in usage_of(found, queues).quotas}


@thorough
@given(shared_facts(), some_policies)
def test_no_decision_brings_anyone_over_a_quota(there: SchedulingFacts, policy: HasPolicy) -> None:
    before = use_of(there, policy.queues)
    after = apply_actions(there, schedule(there, NOW_S, policy), now_s=NOW_S)
    for row in usage_of(after, policy.queues).quotas:
        key = (row.holder, row.name, row.gpu_type)
        assert row.held <= max(row.max_gpus, before.get(key, 0))


@thorough
@given(shared_facts(), some_policies)
def test_every_waiting_job_has_one_reason_with_a_remedy(there: SchedulingFacts, policy: HasPolicy) -> None:
    actions = schedule(there, NOW_S, policy)
    answered = {each.run_key for each in actions}
    assert {each.run_key for each in there.queued} <= answered
    assert len(actions) == len(answered)
    for hold in held(actions).values():
        assert hold.reason.detail.endswith(".")
        assert hold.reason.remedy or hold.reason.code is ReasonCode.WAITING_FOR_OLD_WORKERS


@thorough
@given(shared_facts(), some_policies)
def test_a_second_decision_changes_nothing(there: SchedulingFacts, policy: HasPolicy) -> None:
    """But for a job that had to give its GPUs up: what others give up later in the same sweep may serve it again."""
    actions = schedule(there, NOW_S, policy)
    preempted = {each.run_key for each in actions if isinstance(each, Preempt)}
    after = apply_actions(there, actions, now_s=NOW_S)
    assert started(schedule(after, NOW_S, policy)).keys() <= preempted


@thorough
@given(shared_facts(), some_policies, st.data())
def test_the_order_in_which_facts_are_listed_changes_nothing(
    there: SchedulingFacts, policy: HasPolicy, data: st.DataObject
) -> None:
    shuffled = replace(
        there,
        queued=tuple(data.draw(st.permutations(there.queued))),
        running=tuple(data.draw(st.permutations(there.running))),
    )
    assert schedule(shuffled, NOW_S, policy) == schedule(there, NOW_S, policy)
    assert schedule(SchedulingState.of(there, policy), NOW_S, policy) == schedule(there, NOW_S, policy)


@pytest.mark.parametrize("kind", KEEPING)
def test_more_priority_never_makes_a_job_wait_in_its_queue(kind: type[HasPolicy]) -> None:
    jobs = [*backlog("a", 9, elastic=True, most=1), *backlog("b", 9, elastic=True, most=1)]
    there = facts([node("n", "g", 8)], jobs)
    policy = kind(queues=queue_weights(a=1.0, b=1.0))
    for at, each in enumerate(jobs):
        raised = replace(there, queued=(*jobs[:at], replace(each, priority=5), *jobs[at + 1 :]))
        assert each.run_key in started(schedule(raised, NOW_S, policy))


@pytest.mark.parametrize("kind", KEEPING)
def test_a_job_over_its_quota_says_which_and_what_is_the_least_that_helps(kind: type[HasPolicy]) -> None:
    jobs = [job(f"j{at}", plan("g", 2), team="red") for at in range(3)]
    policy = kind(queues=team_quotas(red=5))
    hold = held(schedule(facts([node("n", "g", 8)], jobs), NOW_S, policy))["j2"]
    assert hold.reason.code is ReasonCode.WAITING_FOR_QUOTA
    assert "Team red may hold 5 GPUs and holds 4" in hold.reason.detail
    assert hold.reason.remedy is not None
    assert hold.reason.remedy.startswith("a quota of 6 GPUs for team red")


def test_a_job_larger_than_its_quota_is_told_so() -> None:
    hold = held(
        schedule(
            facts([node("n", "g", 8)], [job("j", plan("g", 4), team="red")]),
            NOW_S,
            HasPolicy(queues=team_quotas(red=2)),
        )
    )["j"]
    assert hold.reason.remedy == "a quota of 4 GPUs for team red"


def test_a_job_that_is_over_its_quota_keeps_nobody_else_waiting() -> None:
    jobs = [
        job("large", plan("g", 8), team="red", submitted_s=0.0),
        job("small", plan("g", 1), team="blue", submitted_s=9.0),
    ]
    for kind in KEEPING:
        there = facts([node("n", "g", 8)], jobs)
        assert set(started(schedule(there, NOW_S, kind(queues=team_quotas(red=4))))) == {"small"}


def test_a_job_whose_queue_holds_its_share_says_so() -> None:
    jobs = [*backlog("a", 9, elastic=False, most=1), *backlog("b", 9, elastic=False, most=1)]
    policy = BackfillPolicy(queues=queue_weights(a=3.0, b=1.0))
    hold = held(schedule(facts([node("n", "g", 8)], jobs), NOW_S, policy))["a08"]
    assert hold.reason.code is ReasonCode.WAITING_FOR_SHARE
    assert "Queue a holds 6 of the 8 GPUs" in hold.reason.detail


def test_explain_tells_the_quota_and_the_weight_that_would_start_it() -> None:
    there = facts([node("n", "g", 8)], [job(f"j{at}", plan("g", 2), team="red", elasticity=EASY) for at in range(3)])
    told = explain(there, "j2", NOW_S, HasPolicy(queues=team_quotas(red=5)))
    assert "With a quota of 6 GPUs for team red it would start now." in told.lines
    jobs = [*backlog("a", 9, elastic=True, most=1), *backlog("b", 9, elastic=True, most=1)]
    policy = HasPolicy(queues=queue_weights(a=1.0, b=1.0))
    there = facts([node("n", "g", 8)], jobs)
    last = next(key for key in held(schedule(there, NOW_S, policy)) if key.startswith("a"))
    told = explain(there, last, NOW_S, policy)
    assert any(each.startswith("With weight") and "queue a" in each for each in told.lines)
    assert isinstance(started(schedule(there, NOW_S, HasPolicy(queues=queue_weights(a=9.0, b=1.0))))[last], Start)


def test_those_of_a_queue_that_borrow_are_served_in_their_order() -> None:
    """What they borrow is priced as what all have left is, not as a right that is used up."""
    plans = tuple(plan("g", gpus, run_s=1000 / gpus**0.8) for gpus in (8, 4, 2, 1))
    eight = [job(f"a{at}", *plans, elasticity=EASY, submitted_s=NOW_S - 100 + at) for at in range(8)]
    one = job("b0", plan("g", 1, run_s=900.0), queue="b", elasticity=EASY, submitted_s=NOW_S - 10)
    there = facts([node("n", "g", 8), node("m", "g", 8)], [*eight, one])
    found = started(schedule(there, NOW_S, HasPolicy(queues=queue_weights(a=1.0, b=15.0))))
    gpus = {key: each.plan.num_gpus for key, each in found.items()}
    assert gpus["b0"] == 1
    assert gpus["a1"] > gpus.get("a7", 0), "the one in front, not the one behind"
