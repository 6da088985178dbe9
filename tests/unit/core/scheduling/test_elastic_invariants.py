"""What holds of every decision that may move jobs, whatever the facts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, elastic_facts
from tests.unit.core.has_world import by_job, held_on, started, team_quotas

from frenzy.core.scheduling import HasPolicy, SchedulingState, apply_actions, decide, schedule
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.job import Objective
from frenzy.core.values.scheduling_facts import Preempt, Resize, SchedulingFacts, Start

HAS = HasPolicy()
elastic_policies = st.sampled_from((HAS, HasPolicy(queues=team_quotas(red=2)), HasPolicy(urgency=2.0, hysteresis=0.95)))
thorough = settings(max_examples=40, deadline=None)


@thorough
@given(elastic_facts(), elastic_policies)
def test_no_gpu_is_given_twice_and_gangs_are_whole(there: SchedulingFacts, policy: HasPolicy) -> None:
    actions = schedule(there, NOW_S, policy)
    after = apply_actions(there, actions, now_s=NOW_S)
    nodes = there.cluster.nodes_by_name
    assert all(count <= nodes[name].num_gpus for name, count in held_on(after).items())
    for action in actions:
        if isinstance(action, Start | Resize):
            assert action.placement.num_gpus == action.plan.num_gpus
            assert all(each.num_gpus % action.plan.tp == 0 for each in action.placement.allocations)
            assert all(nodes[each.node].state is NodeState.READY for each in action.placement.allocations)
            assert all(nodes[each.node].gpu_type == action.plan.gpu_type for each in action.placement.allocations)


@thorough
@given(elastic_facts(), elastic_policies)
def test_every_job_has_at_most_one_action_and_every_waiting_one_exactly_one(
    there: SchedulingFacts, policy: HasPolicy
) -> None:
    actions = schedule(there, NOW_S, policy)
    keys = [action.run_key for action in actions]
    assert len(set(keys)) == len(keys)
    assert {job.run_key for job in there.queued} <= set(keys)


@thorough
@given(elastic_facts(), elastic_policies)
def test_a_second_pass_on_the_same_facts_changes_nothing(there: SchedulingFacts, policy: HasPolicy) -> None:
    after = apply_actions(there, schedule(there, NOW_S, policy), now_s=NOW_S)
    assert decide(after, NOW_S, policy) == ()


@thorough
@given(elastic_facts(), elastic_policies, st.randoms(use_true_random=False))
def test_the_order_in_which_facts_are_listed_does_not_matter(
    there: SchedulingFacts, policy: HasPolicy, chance: object
) -> None:
    queued, run = list(there.queued), list(there.running)
    chance.shuffle(queued)  # type: ignore[attr-defined]
    chance.shuffle(run)  # type: ignore[attr-defined]
    mixed = replace(there, queued=tuple(queued), running=tuple(run))
    assert schedule(mixed, NOW_S, policy) == schedule(there, NOW_S, policy)
    assert schedule(SchedulingState.of(there, policy), NOW_S, policy) == schedule(there, NOW_S, policy)


@thorough
@given(elastic_facts(), elastic_policies)
def test_jobs_that_may_not_be_moved_are_not(there: SchedulingFacts, policy: HasPolicy) -> None:
    fixed = {job.run_key for job in there.running if job.elasticity is None}
    spent = {job.run_key for job in there.running if job.moves_left(NOW_S) < 1}
    for action in schedule(there, NOW_S, policy):
        assert not (isinstance(action, Resize | Preempt) and action.run_key in fixed)
        assert not (isinstance(action, Preempt) and action.run_key in spent)


@thorough
@given(elastic_facts())
def test_quotas_are_kept_by_all_that_is_started_or_moved(there: SchedulingFacts) -> None:
    policy = HasPolicy(queues=team_quotas(red=2))
    before = sum(job.plan.num_gpus for job in there.running if job.team == "red")
    after = apply_actions(there, schedule(there, NOW_S, policy), now_s=NOW_S)
    assert sum(job.plan.num_gpus for job in after.running if job.team == "red") <= max(2, before)


@thorough
@given(elastic_facts(), st.integers(0, 20))
def test_more_priority_never_makes_a_job_wait(there: SchedulingFacts, which: int) -> None:
    if not there.queued:
        return
    job = there.queued[which % len(there.queued)]
    if job.objective is Objective.COST or job.ordered:
        return
    raised = replace(there, queued=tuple(replace(each, priority=9) if each is job else each for each in there.queued))
    if isinstance(by_job(schedule(there, NOW_S, HAS))[job.run_key], Start):
        assert isinstance(by_job(schedule(raised, NOW_S, HAS))[job.run_key], Start)


@thorough
@given(elastic_facts(), st.integers(2, 4))
def test_of_jobs_that_ask_alike_some_start_where_one_alone_would(there: SchedulingFacts, num_alike: int) -> None:
    for first in there.queued[:1]:
        alike = tuple(replace(first, run_key=f"alike-{at}", job_name=f"alike-{at}") for at in range(num_alike))
        alone, all_of_them = (
            schedule(replace(there, running=(), queued=queued), NOW_S, HAS) for queued in ((first,), alike)
        )
        assert bool(started(all_of_them)) == bool(started(alone))
