"""However many small jobs keep coming, every job that a node has room for starts, also where few jobs are looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.has_world import EASY, elastic, facts, node, plan, queue_weights, running, waiting

from frenzy.core.scheduling import BackfillPolicy, HasPolicy, apply_actions, decide
from frenzy.core.values.cluster import Node
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob

SMALL_S = 100.0
# Of a type that nothing else uses, so that some job may be moved, and decisions look at few.
ELSEWHERE = [node("c", "c", 1)]
MOVABLE = replace(running("movable", plan("c", 1), ("c", 1)), elasticity=EASY, plans=(plan("c", 1),))


def small(name: str, gpu_type: str, now_s: float) -> QueuedJob:
    return waiting(name, plan(gpu_type, 1, run_s=SMALL_S), submitted_s=now_s)


def starts(  # noqa: PLR0913
    policy: HasPolicy,
    nodes: list[Node],
    jobs: list[QueuedJob],
    ahead: list[QueuedJob],
    held: list[RunningJob],
    small_on: Iterable[str],
    until_s: float,
) -> dict[str, float]:
    """When each job first started.

    For every job that ends a small one comes on each type of ``small_on``; until all of ``jobs`` have started.
    """
    crowd = [small(f"s{at}{gpu_type}", gpu_type, 0.0) for at in range(3) for gpu_type in small_on]
    there, now_s, number = facts([*nodes, *ELSEWHERE], [*ahead, *jobs, *crowd], [*held, MOVABLE]), 10.0, 0
    begun: dict[str, float] = {}
    while now_s < until_s:
        there = apply_actions(there, decide(there, now_s, policy), now_s=now_s)
        begun = {job.run_key: now_s for job in there.running} | begun
        ends = [(job.expected_end_s, job.run_key) for job in there.running if job.expected_end_s is not None]
        if not ends or all(job.run_key in begun for job in jobs):
            break
        end_s, key = min(ends)
        now_s, number = max(now_s, end_s), number + 1
        more = tuple(small(f"t{number}{gpu_type}", gpu_type, now_s) for gpu_type in small_on)
        left = tuple(job for job in there.running if job.run_key != key)
        there = replace(there, queued=there.queued + more, running=left)
    return begun


@pytest.mark.parametrize("num_ahead", [0, 9, 40])
def test_jobs_ahead_that_wait_for_another_type_let_nobody_overtake(num_ahead: int) -> None:
    """Two GPUs that come free one by one are kept for the job that is due, not given to the small ones behind it."""
    full = running("full", plan("a", 8), ("a", 8))
    ahead = [elastic(waiting(f"a{at:02}", plan("a", 8), submitted_s=-1e6 + at)) for at in range(num_ahead)]
    large = waiting("large", plan("b", 2, run_s=SMALL_S))
    held = [running(f"r{at}", plan("b", 1, run_s=SMALL_S), ("b", 1), end_s=50.0 * (at + 1)) for at in range(2)]
    nodes = [node("a", "a", 8), node("b", "b", 2)]
    policy = HasPolicy()
    begun = starts(policy, nodes, [large], ahead, [full, *held], ["b"], until_s=2000.0)
    due_s = policy.slowdown * 2 * SMALL_S / 11
    assert begun["large"] <= due_s + 2 * SMALL_S


@pytest.mark.parametrize("kind", [BackfillPolicy, HasPolicy])
@pytest.mark.parametrize("others", [("B",), ("A", "B")])
def test_a_job_larger_than_its_queues_right_starts_however_many_come_within_theirs(
    kind: type[BackfillPolicy], others: tuple[str, ...]
) -> None:
    policy = kind(slowdown=1.0, queues=queue_weights(A=1, B=1))
    large = replace(waiting("large", plan("v", 8, run_s=SMALL_S), submitted_s=0.5), queue="A")
    there, begun = facts([node("n", "v", 8)], [large]), dict[str, float]()
    for number in range(400):
        now_s = 25.0 * number
        ended = tuple(each for each in there.running if (each.expected_end_s or now_s) > now_s)
        more = tuple(replace(small(f"{queue}{number}", "v", now_s), queue=queue) for queue in others)
        there = replace(there, running=ended, queued=there.queued + more)
        there = apply_actions(there, decide(there, now_s, policy), now_s=now_s)
        begun = {each.run_key: now_s for each in there.running} | begun
    assert begun["large"] < 4000.0


RUN_TIMES_S = (50.0, 120.0, 300.0)


@st.composite
def rigid_jobs(draw: st.DrawFn) -> list[QueuedJob]:
    """Jobs that are never moved, with one or two plans that a node of ``TWO_TYPES`` has room for."""

    def one(at: int) -> QueuedJob:
        plans: list[ResourcePlan] = []
        for gpu_type, largest in draw(st.sampled_from(((("a", 4),), (("b", 2),), (("a", 4), ("b", 2))))):
            num_gpus = draw(st.integers(1, largest))
            tp = draw(st.sampled_from((1, num_gpus)))
            plans.append(plan(gpu_type, num_gpus, tp=tp, run_s=draw(st.sampled_from(RUN_TIMES_S))))
        fastest_first = sorted(plans, key=lambda each: each.predicted_run_s)
        return waiting(f"j{at:02}", *fastest_first, priority=draw(st.sampled_from((0, 0, 1))))

    return [one(at) for at in range(draw(st.integers(1, 12)))]


TWO_TYPES = [node("a1", "a", 4), node("a2", "a", 4), node("b1", "b", 2), node("b2", "b", 2)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rigid_jobs(), st.integers(0, 12), st.sampled_from((0.0, 1.0, 5.0)))
def test_every_job_starts_however_many_small_ones_keep_coming(
    jobs: list[QueuedJob], num_ahead: int, slowdown: float
) -> None:
    """At the latest once all before it have run one after the other, since it is due."""
    policy = HasPolicy(slowdown=slowdown)
    full = running("full", plan("d", 1), ("d", 1))
    ahead = [waiting(f"d{at:02}", plan("d", 1), submitted_s=-1e6 + at) for at in range(num_ahead)]
    longest_s = max(RUN_TIMES_S)
    until_s = slowdown * longest_s * 4 + 2 * (len(jobs) + 2) * longest_s
    begun = starts(policy, [*TWO_TYPES, node("d", "d", 1)], jobs, ahead, [full], ["a", "b"], until_s)
    assert {job.run_key for job in jobs} <= set(begun)
