"""What holds for every cluster, queue and moment, whatever the policy."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import (
    NOW_S,
    all_facts,
    clusters,
    elastic_facts,
    has_policies,
    policies,
    queues,
    running_on,
)
from tests.unit.core.has_world import held, started

from frenzy.core.scheduling import (
    POLICIES,
    BackfillPolicy,
    FifoPolicy,
    HasPolicy,
    Policy,
    SchedulingState,
    apply_actions,
    decide,
    explain,
    schedule,
)
from frenzy.core.values.cluster import Cluster, NodeState
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.scheduling_facts import Action, Hold, Preempt, QueuedJob, SchedulingFacts, Start

WAITING_CODES = {code for code in ReasonCode if code.startswith("WAITING_")} | {ReasonCode.NEVER_FITS}
NEVER_STARTS = {ReasonCode.NEVER_FITS, ReasonCode.WAITING_FOR_NODES, ReasonCode.WAITING_FOR_OLD_WORKERS}

thorough = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _overloaded(facts: SchedulingFacts, cpus_per_gpu: float, new: set[str]) -> list[str]:
    """Nodes on which the jobs in ``new``, with all others, hold more than there is."""
    found = []
    for node in facts.cluster.nodes:
        gpus, host_bytes, cpus, touched = 0, 0, 0.0, False
        for job in facts.running:
            for each in job.placement.allocations:
                if each.node == node.name:
                    gpus += each.num_gpus
                    host_bytes += job.plan.memory.host_bytes_of(each.num_gpus)
                    cpus += each.num_gpus * cpus_per_gpu
                    touched |= job.run_key in new and job.plan.memory.host_bytes > 0
        over_host = touched and host_bytes > node.host_memory_bytes
        if gpus > node.num_gpus or over_host:
            found.append(node.name)
    return found


@thorough
@given(all_facts(), policies)
def test_no_node_is_oversubscribed(facts: SchedulingFacts, policy: Policy) -> None:
    actions = schedule(facts, NOW_S, policy)
    after = apply_actions(facts, actions, now_s=NOW_S)
    assert _overloaded(after, policy.cpus_per_gpu, set(started(actions))) == []
    for node in facts.cluster.nodes:
        new = sum(
            each.num_gpus
            for start in started(actions).values()
            for each in start.placement.allocations
            if each.node == node.name
        )
        before = sum(
            each.num_gpus for job in facts.running for each in job.placement.allocations if each.node == node.name
        )
        assert new == 0 or (new + before) * policy.cpus_per_gpu <= node.num_cpus


@thorough
@given(all_facts(), policies)
def test_every_placement_fits_its_plan_whole(facts: SchedulingFacts, policy: Policy) -> None:
    jobs = {job.run_key: job for job in facts.queued}
    for start in started(schedule(facts, NOW_S, policy)).values():
        assert start.plan in jobs[start.run_key].plans
        assert start.placement.num_gpus == start.plan.num_gpus
        assert start.plan.memory.required_bytes <= facts.cluster.types_by_name[start.plan.gpu_type].memory_bytes
        names = [each.node for each in start.placement.allocations]
        assert len(set(names)) == len(names)
        for each in start.placement.allocations:
            node = facts.cluster.nodes_by_name[each.node]
            assert node.gpu_type == start.plan.gpu_type
            assert node.state is NodeState.READY
            assert each.num_gpus > 0
            assert each.num_gpus % start.plan.tp == 0
            assert each.node not in jobs[start.run_key].excluded_nodes


@thorough
@given(all_facts(), policies)
def test_every_waiting_job_starts_or_has_exactly_one_reason(facts: SchedulingFacts, policy: Policy) -> None:
    actions = schedule(facts, NOW_S, policy)
    assert Counter(action.run_key for action in actions) == Counter(job.run_key for job in facts.queued)
    holds = [action for action in actions if isinstance(action, Hold)]
    assert [hold.position for hold in holds] == list(range(1, len(holds) + 1))
    for hold in holds:
        assert hold.reason.code in WAITING_CODES
        assert hold.reason.detail.endswith(".")
        assert hold.reason.remedy
        assert hold.expected_start_s is None or hold.expected_start_s >= NOW_S


@thorough
@given(st.data(), policies)
def test_the_order_in_which_facts_are_listed_changes_nothing(data: st.DataObject, policy: Policy) -> None:
    facts = data.draw(all_facts())
    shuffled = SchedulingFacts(
        cluster=Cluster(
            tuple(data.draw(st.permutations(facts.cluster.gpu_types))),
            tuple(data.draw(st.permutations(facts.cluster.nodes))),
        ),
        queued=tuple(data.draw(st.permutations(facts.queued))),
        running=tuple(data.draw(st.permutations(facts.running))),
    )
    assert schedule(shuffled, NOW_S, policy) == schedule(facts, NOW_S, policy)


@thorough
@given(all_facts(), policies)
def test_a_second_pass_on_the_same_facts_changes_nothing(facts: SchedulingFacts, policy: Policy) -> None:
    actions = schedule(facts, NOW_S, policy)
    again = schedule(apply_actions(facts, actions, now_s=NOW_S), NOW_S, policy)
    assert [_without_remedy(each) for each in again] == [
        _without_remedy(action) for action in actions if isinstance(action, Hold)
    ]


def _without_remedy(action: Action) -> Action:
    """What is true before the actions are done need not be the least that helps after them, too."""
    if isinstance(action, Hold):
        return replace(action, reason=replace(action.reason, remedy=None))
    return action


@thorough
@given(all_facts(), policies.filter(lambda policy: not isinstance(policy, FifoPolicy)))
def test_a_job_said_to_lack_gpus_has_no_plan_that_fits_the_idle_ones(facts: SchedulingFacts, policy: Policy) -> None:
    actions = schedule(facts, NOW_S, policy)
    after = apply_actions(facts, actions, now_s=NOW_S)
    ample = [node for node in facts.cluster.nodes if node.num_cpus >= node.num_gpus * policy.cpus_per_gpu]
    idle = {node.name: node.num_gpus for node in ample if node.state is NodeState.READY}
    for holder in after.running:
        for each in holder.placement.allocations:
            idle[each.node] = idle.get(each.node, 0) - each.num_gpus
    lacking = {ReasonCode.WAITING_FOR_GPUS, ReasonCode.WAITING_FOR_GPU_MEMORY}
    for job in after.queued:
        if held(actions)[job.run_key].reason.code in lacking:
            for plan in (each for each in job.plans if each.memory.host_bytes == 0):
                whole_groups = sum(
                    max(0, idle[node.name]) // plan.tp * plan.tp
                    for node in ample
                    if node.gpu_type == plan.gpu_type and node.name in idle and node.name not in job.excluded_nodes
                )
                assert whole_groups < plan.num_gpus


def _first_waiting(facts: SchedulingFacts, policy: BackfillPolicy) -> Hold | None:
    holds = [action for action in schedule(facts, NOW_S, policy) if isinstance(action, Hold)]
    return next((hold for hold in holds if hold.reason.code not in NEVER_STARTS), None)


def _order(job: QueuedJob) -> tuple[int, float, str]:
    return (-job.priority, job.submitted_s, job.run_key)


@thorough
@given(all_facts(), has_policies | st.just(BackfillPolicy()))
def test_backfill_never_delays_the_first_job_that_waits(facts: SchedulingFacts, policy: BackfillPolicy) -> None:
    policy = replace(policy, slowdown=0.0)  # in order of submission
    head = _first_waiting(facts, policy)
    if head is None:
        return
    job = next(job for job in facts.queued if job.run_key == head.run_key)
    alone = replace(facts, queued=tuple(each for each in facts.queued if _order(each) <= _order(job)))
    assert held(schedule(alone, NOW_S, policy))[job.run_key].expected_start_s == head.expected_start_s


def _next_end_s(facts: SchedulingFacts, now_s: float) -> float:
    return min(
        (max(now_s, job.expected_end_s) for job in facts.running if job.expected_end_s is not None), default=math.inf
    )


@thorough
@given(all_facts(), has_policies)
def test_a_promised_start_is_kept_when_jobs_end_as_expected(facts: SchedulingFacts, policy: HasPolicy) -> None:
    head = _first_waiting(facts, policy)
    if head is None or head.expected_start_s is None:
        return
    now_s = NOW_S
    while head.run_key not in started(actions := schedule(facts, now_s, policy)):
        facts = apply_actions(facts, actions, now_s=now_s)
        now_s = _next_end_s(facts, now_s)
        assert now_s <= head.expected_start_s
        alive = tuple(job for job in facts.running if job.expected_end_s is None or job.expected_end_s > now_s)
        facts = replace(facts, running=alive)


def _predicted_end_s(facts: SchedulingFacts, run_key: str, policy: Policy) -> float:
    """Of a job that starts now; infinite for one that waits without a promise."""
    for action in schedule(facts, NOW_S, policy):
        if action.run_key == run_key and isinstance(action, Start):
            return NOW_S + action.plan.predicted_run_s
        if action.run_key == run_key and isinstance(action, Hold) and action.expected_start_s is not None:
            shortest = min(plan.predicted_run_s for job in facts.queued if job.run_key == run_key for plan in job.plans)
            return action.expected_start_s + shortest
    return math.inf


@thorough
@given(st.data(), st.integers(1, 3))
def test_a_higher_priority_never_makes_a_job_that_would_start_end_later(data: st.DataObject, by: int) -> None:
    policy = HasPolicy()
    facts = data.draw(all_facts())
    now = started(schedule(facts, NOW_S, policy))
    for job in facts.queued:
        if job.run_key in now and job.objective.value == "time" and not job.ordered:
            queued = tuple(replace(each, priority=each.priority + by) if each is job else each for each in facts.queued)
            before = NOW_S + now[job.run_key].plan.predicted_run_s
            assert _predicted_end_s(replace(facts, queued=queued), job.run_key, policy) <= before


@thorough
@given(st.data(), policies)
def test_a_state_kept_through_the_steps_of_a_decision_equals_one_made_from_facts(
    data: st.DataObject, policy: Policy
) -> None:
    facts = data.draw(all_facts() | elastic_facts())
    state = SchedulingState.of(facts, policy)
    actions = decide(state, NOW_S, policy)
    done = state.after(actions, NOW_S)
    stopped = {each.run_key for each in actions if isinstance(each, Preempt)}
    facts = apply_actions(facts, actions, now_s=NOW_S)
    facts = replace(facts, queued=tuple(job for job in facts.queued if job.run_key not in stopped))
    _assert_equal(done, SchedulingState.of(facts, policy))
    gone = data.draw(st.lists(st.sampled_from(sorted(done.running)), unique=True)) if done.running else []
    facts = replace(facts, running=tuple(job for job in facts.running if job.run_key not in gone))
    _assert_equal(done.without(gone), SchedulingState.of(facts, policy))


def _assert_equal(state: SchedulingState, rebuilt: SchedulingState) -> None:
    assert (state.room, state.running, state.ends) == (rebuilt.room, rebuilt.running, rebuilt.ends)
    assert [each.job for each in state.waiting] == [each.job for each in rebuilt.waiting]


@thorough
@given(st.data(), clusters(), st.sampled_from(list(POLICIES.values())))
def test_jobs_that_ask_for_the_same_fare_as_if_each_were_looked_at(
    data: st.DataObject, cluster: Cluster, policy: Policy
) -> None:
    """A name of no node among the excluded ones takes a job out of the line of those like it, and changes nothing."""
    classes = [(), *(job.plans for job in data.draw(queues()))]
    jobs = tuple(
        QueuedJob(
            run_key=f"q{index:02d}",
            job_name=f"q{index:02d}",
            submitted_s=float(index),
            plans=data.draw(st.sampled_from(classes)),
            work_left=data.draw(st.sampled_from((0.1, 1.0, 7.0))),
            priority=data.draw(st.sampled_from((0, 0, 1))),
        )
        for index in range(data.draw(st.integers(1, 12)))
    )
    alone = tuple(replace(job, excluded_nodes=(f"elsewhere-{job.run_key}",)) for job in jobs)
    held = data.draw(running_on(cluster))
    together, apart = (
        decide(SchedulingFacts(cluster=cluster, queued=queued, running=held), NOW_S, policy) for queued in (jobs, alone)
    )
    assert together == apart


@thorough
@given(all_facts(), policies)
def test_who_shares_plans_with_whom_changes_neither_decisions_nor_reasons(
    facts: SchedulingFacts, policy: Policy
) -> None:
    """Each job comes twice with the same plans: as one value that both share, or as one of its own."""
    twins = tuple(replace(job, run_key=f"{job.run_key}-twin") for job in facts.queued)
    shared = replace(facts, queued=facts.queued + twins)
    apart = replace(
        shared,
        cluster=Cluster(facts.cluster.gpu_types, facts.cluster.nodes),
        queued=tuple(replace(job, plans=tuple(list(job.plans))) for job in shared.queued),
    )
    assert schedule(shared, NOW_S, policy) == schedule(apart, NOW_S, policy)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(all_facts(), policies)
def test_an_explanation_agrees_with_what_is_done(facts: SchedulingFacts, policy: Policy) -> None:
    actions = schedule(facts, NOW_S, policy)
    for job in facts.queued:
        found = explain(facts, job.run_key, NOW_S, policy)
        start, hold = started(actions).get(job.run_key), held(actions).get(job.run_key)
        if start is not None:
            assert found.reason is None
            assert found.lines[0].startswith(f"It would start now as {start.plan.plan_id} on ")
        else:
            assert hold is not None
            assert (found.reason, found.lines[0]) == (hold.reason, f"It is number {hold.position} in the queue.")
        assert all(line.endswith(".") for line in found.lines)
    for running in facts.running:
        found = explain(facts, running.run_key, NOW_S, policy)
        assert found.reason is None
        assert not [each for each in found.lines if each.startswith(("It would start now", "It is number"))]
