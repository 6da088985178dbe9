"""Moves that nothing forces: all that they change has to gain more time than it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, elastic_facts
from tests.unit.core.has_world import gpu_type, node, on, plan, waiting

from frenzy.core.scheduling import HasPolicy, decide
from frenzy.core.scheduling.engine.state import believed_left
from frenzy.core.values.cluster import Cluster, NodeState
from frenzy.core.values.job import Objective
from frenzy.core.values.queue_rules import NO_RULES, QueueRule, QueueRules
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Elasticity, Resize, RunningJob, SchedulingFacts, Start

SHARED = QueueRules(queues=(QueueRule(name="default"), QueueRule(name="research", weight=3)))
EVEN = QueueRules(queues=(QueueRule(name="default"), QueueRule(name="research")))
LAPTOP = Cluster(
    (gpu_type("v-small", tflops=20), gpu_type("v-medium", tflops=30), gpu_type("v-large", tflops=60)),
    (node("small-1", "v-small", 2), node("small-2", "v-small", 2), node("medium", "v-medium", 2))
    + (node("large", "v-large", 1),),
)
PLANS = (
    plan("v-small", 4, run_s=3.6),
    plan("v-large", 1, run_s=4.5),
    plan("v-medium", 2, run_s=4.7),
    plan("v-small", 2, run_s=6.8),
    plan("v-medium", 1, run_s=8.8),
    plan("v-small", 1, run_s=13.2),
)


def small_job(name: str, number: int, at: str, *, ran_s: float, steps_done: int) -> RunningJob:
    """A job of 40 steps, of which far fewer are done than its plan foresees for ``ran_s``."""
    chosen = PLANS[number]
    job = replace(waiting(name, *PLANS), elasticity=Elasticity(restart_s=60.0, moves_left=3, min_run_s=60.0))
    foreseen = ran_s / chosen.predicted_run_s
    held = on(job, chosen, (at, chosen.num_gpus), since_s=NOW_S - ran_s)
    return replace(held, work_left=1 - steps_done / 40 + foreseen, submitted_s=NOW_S - ran_s - 60)


def two_small_jobs(ran_s: tuple[float, float], steps_done: tuple[int, int]) -> tuple[RunningJob, ...]:
    """With a job of another queue on all other GPUs."""
    first = small_job("first", 2, "medium", ran_s=ran_s[0], steps_done=steps_done[0])
    second = small_job("second", 1, "large", ran_s=ran_s[1], steps_done=steps_done[1])
    other = on(waiting("other", PLANS[0]), PLANS[0], ("small-1", 2), ("small-2", 2), since_s=NOW_S - 500)
    return first, second, replace(other, queue="research")


@pytest.mark.parametrize("ran_s", [(61.0, 61.0), (61.0, 100.0), (100.0, 61.0), (300.0, 300.0)])
@pytest.mark.parametrize("steps_done", [(2, 2), (2, 20), (20, 2), (39, 20)])
def test_two_jobs_that_take_fifty_times_their_predictions_stay_where_they_are(
    ran_s: tuple[float, float], steps_done: tuple[int, int]
) -> None:
    there = SchedulingFacts(cluster=LAPTOP, queued=(), running=two_small_jobs(ran_s, steps_done))
    for rules in (SHARED, EVEN):
        assert decide(there, NOW_S, HasPolicy(queues=rules)) == ()


def test_a_job_still_moves_within_its_queues_right_where_another_gains_by_it() -> None:
    short = small_job("short", 2, "medium", ran_s=60.0, steps_done=20)
    fast, slow = plan("v-large", 1, run_s=10_000), plan("v-small", 1, run_s=100_000)
    long = on(replace(waiting("long", fast, slow), elasticity=short.elasticity), slow, ("small-1", 1), since_s=0.0)
    there = SchedulingFacts(cluster=LAPTOP, queued=(), running=(short, replace(long, queue="research")))
    assert {each.run_key for each in decide(there, NOW_S, HasPolicy(queues=SHARED))} >= {"long"}


def test_a_job_that_leaves_a_drained_node_lets_no_others_change_places() -> None:
    nodes = (node("medium-2", "v-medium", 1), replace(node("drained", "v-medium", 1), state=NodeState.DRAINING))
    leaving = plan("v-medium", 1, run_s=500.0)
    job = replace(waiting("leaving", leaving), elasticity=Elasticity(restart_s=60.0, moves_left=3, min_run_s=60.0))
    held = replace(on(job, leaving, ("drained", 1), since_s=NOW_S - 500), queue="research")
    running = (*two_small_jobs((61.0, 61.0), (2, 20)), held)
    there = SchedulingFacts(cluster=Cluster(LAPTOP.gpu_types, LAPTOP.nodes + nodes), queued=(), running=running)
    assert [each.run_key for each in decide(there, NOW_S, HasPolicy(queues=SHARED))] == ["leaving"]


def test_a_job_grows_into_idle_gpus_though_others_had_better_not_change() -> None:
    def job(name: str, queue: str, num_gpus: int, at: str, run_s: float) -> RunningJob:
        plans = {each: plan("v-large", each, run_s=run_s / each**0.9) for each in (1, 2, 4)}
        moving = replace(waiting(name, *plans.values()), elasticity=Elasticity(restart_s=5, moves_left=3, min_run_s=60))
        return replace(on(moving, plans[num_gpus], (at, num_gpus), since_s=NOW_S - 100), queue=queue)

    cluster = Cluster((gpu_type("v-large"),), (node("n1", "v-large", 4), node("n2", "v-large", 3)))
    wide = job("wide", "default", 4, "n1", 3000)
    growing, short = job("growing", "research", 1, "n2", 150), job("short", "research", 1, "n2", 120)
    there = SchedulingFacts(cluster=cluster, queued=(), running=(wide, growing, short))
    moves = decide(there, NOW_S, HasPolicy(queues=SHARED))
    assert [(each.run_key, each.plan.num_gpus) for each in moves if isinstance(each, Resize)] == [("growing", 2)]
    assert len(moves) == 1


@st.composite
def worlds_in_which_nothing_waits(draw: st.DrawFn) -> SchedulingFacts:
    """Jobs that go by time, of two queues, on nodes of which none is drained."""
    there = draw(elastic_facts())
    nodes = tuple(replace(each, state=NodeState.READY) for each in there.cluster.nodes)
    running = tuple(
        replace(each, queue=draw(st.sampled_from(("default", "research"))), objective=Objective.TIME)
        for each in there.running
    )
    return SchedulingFacts(cluster=Cluster(there.cluster.gpu_types, nodes), queued=(), running=running)


@st.composite
def small_jobs(draw: st.DrawFn) -> SchedulingFacts:
    ages_s, steps = st.sampled_from((61.0, 100.0, 300.0)), st.integers(1, 39)
    running = two_small_jobs(draw(st.tuples(ages_s, ages_s)), draw(st.tuples(steps, steps)))
    return SchedulingFacts(cluster=LAPTOP, queued=(), running=running)


@settings(max_examples=300, deadline=None)
@given(st.one_of(worlds_in_which_nothing_waits(), small_jobs()), st.sampled_from((NO_RULES, SHARED, EVEN)))
def test_moves_that_nothing_forces_gain_more_than_all_restarts_cost(there: SchedulingFacts, rules: QueueRules) -> None:
    policy = HasPolicy(queues=rules)
    jobs = {job.run_key: job for job in there.running}
    moves: list[tuple[RunningJob, ResourcePlan | None]] = []
    for action in decide(there, NOW_S, policy):
        assert not isinstance(action, Start)
        moves.append((jobs[action.run_key], getattr(action, "plan", None)))
    left = {key: _believed_left(job, policy) for key, job in jobs.items()}
    faster = [left[job.run_key] * to.predicted_run_s for job, to in moves if to and _is_faster(job, to)]
    assert bool(faster) == bool(moves)
    gained_s = 0.0
    for job, to in moves:
        assert job.elasticity is not None
        gained_s -= job.elasticity.restart_s
        ratio = math.inf if to is None else to.predicted_run_s / job.plan.predicted_run_s
        run_s = left[job.run_key] * job.plan.predicted_run_s
        until_back_s = job.elasticity.restart_s + (1 - 1 / ratio) * max(faster)
        gained_s -= min(run_s * (ratio - 1), until_back_s) if ratio > 1 else run_s * (ratio - 1)
    assert gained_s > 0 or not moves


def _is_faster(job: RunningJob, to: ResourcePlan) -> bool:
    return to.predicted_run_s < job.plan.predicted_run_s


def _believed_left(job: RunningJob, policy: HasPolicy) -> float:
    progress = job.progress(NOW_S)
    return believed_left(job.work_left - progress, job.work_done + progress, policy)
