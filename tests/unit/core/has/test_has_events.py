"""Decisions after events, on a state that is kept: its indices are those of one made anew, and what holds of all
decisions holds where only those jobs are looked at that an event may concern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, elastic_facts, queues
from tests.unit.core.has_world import EASY, elastic, facts, held_on, node, on, plan, scaling, team_quotas, waiting

from frenzy.core.has import HasPolicy, SchedulingState, decide, decided
from frenzy.core.has.lookup import Lookup
from frenzy.core.has.ranks import Rank, Ranks, rank_of
from frenzy.core.has.standing import Standing
from frenzy.core.has.window import window
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.queue import Action, Elasticity, Preempt, Resize, SchedulingFacts, Start

FEW = HasPolicy(num_all=0)
few_at_once = st.sampled_from((FEW, HasPolicy(num_all=0, queues=team_quotas(red=2)), HasPolicy(num_all=3)))
thorough = settings(max_examples=60, deadline=None)


def after_events(
    data: st.DataObject, there: SchedulingFacts, policy: HasPolicy
) -> Iterator[tuple[SchedulingState, float, tuple[Action, ...], SchedulingState]]:
    """State, time, decision and the state after it, of some events one after the other."""
    state, now_s = SchedulingState.of(there, policy), NOW_S
    for number in range(6):
        actions = decide(state, now_s, policy)
        after = decided(state, now_s).after(actions, now_s)
        yield state, now_s, actions, after
        state, now_s = after, now_s + data.draw(st.sampled_from((1.0, 20.0, 300.0)))
        kind = data.draw(st.sampled_from(("arrival", "arrival", "end", "withdrawal", "node")))
        if kind == "arrival":
            for job in data.draw(queues(max_size=2)):
                elasticity = data.draw(st.sampled_from((None, EASY, EASY, Elasticity(restart_s=5.0, moves_left=0))))
                team = data.draw(st.sampled_from(("red", "blue")))
                new = replace(job, run_key=f"{number}-{job.run_key}", elasticity=elasticity, team=team)
                state = state.submit(replace(new, submitted_s=now_s))
        elif kind == "end" and state.running:
            state = state.finish(data.draw(st.sampled_from(sorted(state.running))))
        elif kind == "withdrawal" and state.waiting:
            state = state.withdraw(next(iter(state.waiting)).job.run_key)
        elif kind == "node":
            name = data.draw(st.sampled_from([each.name for each in state.cluster.nodes]))
            node_state = data.draw(st.sampled_from((NodeState.READY, NodeState.DRAINING)))
            state = state.with_cluster(state.cluster.with_node_state(name, node_state))


@thorough
@given(st.data(), elastic_facts(), few_at_once)
def test_a_kept_state_equals_one_made_from_its_facts(
    data: st.DataObject, there: SchedulingFacts, policy: HasPolicy
) -> None:
    for _, _, _, after in after_events(data, there, policy):
        rebuilt = SchedulingState.of(after.facts, policy)
        assert after == rebuilt
        assert after.standing == rebuilt.standing


@thorough
@given(st.data(), elastic_facts(), few_at_once)
def test_a_second_decision_at_the_same_moment_changes_nothing(
    data: st.DataObject, there: SchedulingFacts, policy: HasPolicy
) -> None:
    for _, now_s, _, after in after_events(data, there, policy):
        assert decide(after, now_s, policy) == ()


@thorough
@given(st.data(), elastic_facts(), few_at_once)
def test_the_same_events_lead_to_the_same_decisions(
    data: st.DataObject, there: SchedulingFacts, policy: HasPolicy
) -> None:
    for state, now_s, actions, _ in after_events(data, there, policy):
        assert decide(state, now_s, policy) == actions


@thorough
@given(st.data(), elastic_facts(), few_at_once)
def test_no_gpu_is_given_twice_gangs_are_whole_and_fixed_jobs_stay(
    data: st.DataObject, there: SchedulingFacts, policy: HasPolicy
) -> None:
    for state, now_s, actions, after in after_events(data, there, policy):
        nodes = state.cluster.nodes_by_name
        assert all(count <= nodes[name].num_gpus for name, count in held_on(after.facts).items())
        assert len({each.run_key for each in actions}) == len(actions)
        for action in actions:
            if isinstance(action, Start | Resize):
                assert action.placement.num_gpus == action.plan.num_gpus
                assert all(each.num_gpus % action.plan.tp == 0 for each in action.placement.allocations)
                assert all(nodes[each.node].gpu_type == action.plan.gpu_type for each in action.placement.allocations)
                assert all(nodes[each.node].state is NodeState.READY for each in action.placement.allocations)
            if isinstance(action, Resize | Preempt):
                assert state.running[action.run_key].elasticity is not None
            if isinstance(action, Preempt):
                assert state.running[action.run_key].moves_left(now_s) >= 1


@thorough
@given(st.data(), elastic_facts())
def test_quotas_are_kept(data: st.DataObject, there: SchedulingFacts) -> None:
    policy = HasPolicy(num_all=0, queues=team_quotas(red=2))
    for state, _, _, after in after_events(data, there, policy):
        before = sum(job.plan.num_gpus for job in state.running.values() if job.team == "red")
        assert sum(job.plan.num_gpus for job in after.running.values() if job.team == "red") <= max(2, before)


def kept(there: SchedulingFacts, policy: HasPolicy = FEW) -> SchedulingState:
    """A state on which was decided before, so that the next decision looks at few jobs only."""
    return decided(SchedulingState.of(there, policy), NOW_S - 1.0)


ONE_NODE = [node("n", "g", 4)]
LONG = elastic(waiting("long", *scaling("g", 1, 2, 4, work_s=100_000.0)))


def test_a_job_that_arrives_starts_on_what_is_idle() -> None:
    state = kept(facts(ONE_NODE, [], [on(LONG, LONG.plans[1], ("n", 2))]))
    arrived = state.submit(elastic(waiting("new", *scaling("g", 1, work_s=600.0), submitted_s=NOW_S)))
    assert [(each.run_key, each.kind) for each in decide(arrived, NOW_S, FEW)] == [("new", "start")]


def test_the_last_in_line_gives_way_to_a_short_job_that_arrives() -> None:
    state = kept(facts(ONE_NODE, [], [on(LONG, LONG.plans[0], ("n", 4))]))
    arrived = state.submit(elastic(waiting("new", *scaling("g", 1, work_s=600.0), submitted_s=NOW_S)))
    actions = {each.run_key: each.kind for each in decide(arrived, NOW_S, FEW)}
    assert actions["new"] == "start"
    assert actions["long"] in ("resize", "preempt")


def test_gpus_that_become_idle_let_a_running_job_grow() -> None:
    there = facts(ONE_NODE, [], [on(LONG, LONG.plans[2], ("n", 1))])
    (action,) = decide(kept(there), NOW_S, FEW)
    assert isinstance(action, Resize)
    assert action.plan.num_gpus == 4


def test_a_job_leaves_a_node_that_was_drained_before() -> None:
    drained = node("n", "g", 4, state=NodeState.DRAINING)
    there = facts([drained, node("m", "g", 4)], [], [on(LONG, LONG.plans[0], ("n", 4))])
    (action,) = decide(kept(there), NOW_S, FEW)
    assert isinstance(action, Resize)
    assert [each.node for each in action.placement.allocations] == ["m"]


def test_however_long_the_queue_as_many_jobs_are_looked_at() -> None:
    fixed = replace(on(LONG, LONG.plans[1], ("n", 2)), elasticity=None, plans=())
    looked_at = []
    for number in (100, 2000):
        jobs = [elastic(waiting(f"q{at:04d}", plan("g", 4, run_s=9.0), submitted_s=float(at))) for at in range(number)]
        state = kept(facts(ONE_NODE, jobs, [fixed]))
        assert state.standing is not None
        looked_at.append(len(window(state, state.standing, NOW_S, 0).claims))
        assert decide(state, NOW_S, FEW) == ()
    assert looked_at[0] == looked_at[1] < 20


ranks = st.lists(
    st.builds(
        lambda priority, due_s, weight, gpus: (priority, due_s, weight, gpus),
        st.integers(-2, 2),
        st.floats(0.0, 100.0),
        st.floats(0.1, 3.0),
        st.floats(0.0, 8.0),
    ),
    max_size=200,
)


def made(drawn: list[tuple[int, float, float, float]]) -> list[Rank]:
    claim = next(iter(_standing_of_one().waiting)).claim
    return [
        rank_of(claim, weight=weight, gpus=gpus)._replace(minus_priority=-priority, due_s=due_s, run_key=f"r{at:03d}")
        for at, (priority, due_s, weight, gpus) in enumerate(drawn)
    ]


def _standing_of_one() -> Standing:
    standing = SchedulingState.of(facts(ONE_NODE, [LONG]), FEW).standing
    assert standing is not None
    return standing


@thorough
@given(ranks, st.data())
def test_ranks_are_in_order_and_know_what_is_ahead(
    drawn: list[tuple[int, float, float, float]], data: st.DataObject
) -> None:
    known = made(drawn)
    kept_ranks = Ranks.of(())
    for rank in known:
        kept_ranks = kept_ranks.put(rank)
    gone = set(data.draw(st.lists(st.sampled_from(known), unique_by=lambda rank: rank.run_key))) if known else set()
    for rank in gone:
        kept_ranks = kept_ranks.without(rank.key)
    left = sorted(rank for rank in known if rank not in gone)
    assert list(kept_ranks) == left
    assert list(reversed(kept_ranks)) == left[::-1]
    assert kept_ranks == Ranks.of(left)
    assert len(kept_ranks) == len(left)
    assert [kept_ranks.nth(at) for at in range(len(left))] == left
    for rank in known:
        ahead = [each for each in left if each.key < rank.key]
        sums = kept_ranks.ahead_of(rank.key)
        assert abs(sums.weight - sum(each.weight for each in ahead)) < 1e-9
        assert abs(sums.gpus - sum(each.gpus for each in ahead)) < 1e-9


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.integers()))))
def test_a_lookup_is_a_dictionary(changes: list[tuple[str, int | None]]) -> None:
    plain: dict[str, int] = {}
    known: Lookup[int] = Lookup.of(())
    for key, value in changes:
        before = dict(plain)
        old = known
        if value is None:
            plain.pop(key, None)
            known = known.without(key)
        else:
            plain[key] = value
            known = known.put(key, value)
        assert {each: known.get(each) for each in "abcdefgh"} == {each: plain.get(each) for each in "abcdefgh"}
        assert {each: old.get(each) for each in "abcdefgh"} == {each: before.get(each) for each in "abcdefgh"}
