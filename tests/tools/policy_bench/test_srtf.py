"""The rival ``srtf``: shortest remaining time first, capped, preemptive, elastic."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.unit.core.has_world import facts, node, plan, running, started, waiting, where

from frenzy.core.scheduling import SchedulingState, apply_actions
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import (
    Action,
    Elasticity,
    Preempt,
    QueuedJob,
    Resize,
    RunningJob,
    SchedulingFacts,
)
from tools.policy_bench.capped import capped_plans
from tools.policy_bench.srtf import SrtfParameters, SrtfScheduler

SRTF = SrtfParameters(max_share=1.0)
ELASTIC = Elasticity(restart_s=10.0, moves_left=1)
NOW_S = 100.0


def elastic(job: RunningJob, *plans: ResourcePlan, elasticity: Elasticity = ELASTIC) -> RunningJob:
    return replace(job, plans=plans or (job.plan,), elasticity=elasticity)


def long_job(elasticity: Elasticity = ELASTIC, *others: ResourcePlan) -> RunningJob:
    """It holds all of n1, has run for 100 s and has 9,900 s left."""
    on = plan("v100", 4, run_s=10_000)
    return elastic(running("long", on, ("n1", 4), end_s=10_000), on, *others, elasticity=elasticity)


def done(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    return [(action.kind, action.run_key) for action in actions]


def schedule(known: SchedulingFacts, now_s: float, parameters: SrtfParameters) -> tuple[Action, ...]:
    scheduler = SrtfScheduler(parameters)
    return scheduler.decide(SchedulingState.of(known, scheduler.rules), now_s)


def decided(job: QueuedJob, run: RunningJob, policy: SrtfParameters = SRTF) -> tuple[Action, ...]:
    return schedule(facts([node("n1", "v100", 4)], [job], [run]), NOW_S, policy)


def test_the_shortest_waiting_job_is_served_first_whenever_it_came() -> None:
    jobs = [waiting("long", plan("v100", 4, run_s=500)), waiting("short", plan("v100", 4, run_s=50), submitted_s=50)]
    assert list(started(schedule(facts([node("n1", "v100", 4)], jobs), NOW_S, SRTF))) == ["short"]


def test_what_is_left_counts_not_what_a_job_was_worth() -> None:
    nearly_done = replace(waiting("a", plan("v100", 4, run_s=500)), work_left=0.01, work_done=0.99)
    jobs = [nearly_done, waiting("b", plan("v100", 4, run_s=50))]
    assert list(started(schedule(facts([node("n1", "v100", 4)], jobs), NOW_S, SRTF))) == ["a"]


def test_a_long_job_is_preempted_by_a_short_one() -> None:
    short = waiting("short", plan("v100", 4, run_s=50))
    assert done(decided(short, long_job())) == [("preempt", "long"), ("start", "short")]


def test_a_long_job_that_can_go_on_with_fewer_gpus_shrinks() -> None:
    short = waiting("short", plan("v100", 2, run_s=50))
    run = long_job(ELASTIC, plan("v100", 2, run_s=18_000), plan("v100", 1, run_s=30_000))
    actions = decided(short, run)
    assert done(actions) == [("resize", "long"), ("start", "short")]
    assert [action.plan.num_gpus for action in actions if isinstance(action, Resize)] == [2]


def test_a_job_that_ends_about_as_soon_is_left_alone() -> None:
    assert done(decided(waiting("other", plan("v100", 4, run_s=6_000)), long_job())) == []


def test_budget_least_time_between_moves_and_rigidity_are_kept() -> None:
    short = waiting("short", plan("v100", 4, run_s=50))
    spent = replace(ELASTIC, moves_left=0)
    just_moved = replace(ELASTIC, min_run_s=101.0)
    rigid = replace(long_job(), elasticity=None, plans=())
    assert [done(decided(short, each)) for each in (long_job(spent), long_job(just_moved), rigid)] == [[], [], []]
    restarting = replace(long_job(), ready_s=NOW_S + 1)
    assert done(decided(short, restarting)) == []


def test_a_job_of_higher_priority_gives_way_to_none_below() -> None:
    short = waiting("short", plan("v100", 4, run_s=50))
    assert done(decided(short, replace(long_job(), priority=1))) == []


def test_a_running_job_grows_into_idle_gpus_if_that_makes_up_for_the_restart() -> None:
    one, two = plan("v100", 1, run_s=1000), plan("v100", 2, run_s=550)
    run = elastic(running("r", one, ("n1", 1), end_s=1000), one, two)
    actions = schedule(facts([node("n1", "v100", 4)], [], [run]), NOW_S, SRTF)
    assert [where_resized(action) for action in actions if isinstance(action, Resize)] == [{"n1": 2}]
    late = 970.0
    assert schedule(facts([node("n1", "v100", 4)], [], [run]), late, SRTF) == ()


def where_resized(action: Resize) -> dict[str, int]:
    return {each.node: each.num_gpus for each in action.placement.allocations}


def test_a_job_that_outlived_its_estimate_is_not_taken_for_nearly_done() -> None:
    """It was believed to take 50 s, has run for 100, and is believed to run for 30 more."""
    run = elastic(running("r", plan("v100", 4, run_s=50), ("n1", 4), end_s=50))
    assert done(decided(waiting("short", plan("v100", 4, run_s=5)), run)) == [("preempt", "r"), ("start", "short")]
    assert done(decided(waiting("other", plan("v100", 4, run_s=20)), run)) == []


def test_no_job_gets_more_than_its_share_of_the_cluster_or_more_than_it_uses_well() -> None:
    by_count = [plan("v100", count, run_s=run_s) for count, run_s in ((8, 40), (4, 45), (2, 60), (1, 100))]
    assert [each.num_gpus for each in capped_plans(by_count, 8, 0.0)] == [8, 4, 2, 1]
    assert [each.num_gpus for each in capped_plans(by_count, 4.9, 0.0)] == [4, 2, 1]
    assert [each.num_gpus for each in capped_plans(by_count, 8, 0.5)] == [4, 2, 1]
    assert [each.num_gpus for each in capped_plans(by_count[:2], 1, 0.9)] == [4]
    assert capped_plans([], 8, 0.5) == []
    job = waiting("a", *by_count)
    found = started(schedule(facts([node("n1", "v100", 8)], [job]), 0.0, SrtfParameters(max_share=0.25)))
    assert where(found["a"]) == {"n1": 2}


def random_facts(seed: int) -> SchedulingFacts:
    rng = random.Random(seed)

    def plans() -> tuple[ResourcePlan, ...]:
        work_s = rng.lognormvariate(6, 2)
        each = [plan(gpu, count, run_s=work_s / count**0.8) for gpu in ("v100", "t4") for count in (1, 2, 4)]
        return tuple(rng.sample(each, 4))

    jobs = [waiting(f"q{at}", *plans(), submitted_s=float(at)) for at in range(rng.randint(0, 6))]
    nodes = [node(f"n{at}", "v100" if at % 2 else "t4", 4) for at in range(4)]
    run = []
    for each in nodes:
        free = 4
        while free and rng.random() < 0.8:
            count = rng.choice([count for count in (1, 2, 4) if count <= free])
            free -= count
            own = (plan(each.gpu_type, count, run_s=rng.lognormvariate(6, 2)), *plans())
            name = f"{each.name}-{free}"
            run.append(elastic(running(name, own[0], (each.name, count), end_s=own[0].predicted_run_s), *own))
    return facts(nodes, jobs, run)


def test_no_gpu_is_given_twice_and_a_second_pass_changes_nothing() -> None:
    for seed in range(60):
        before = random_facts(seed)
        actions = schedule(before, NOW_S, SRTF)
        after = apply_actions(before, actions, now_s=NOW_S)
        for each in after.cluster.nodes:
            held = [at.num_gpus for job in after.running for at in job.placement.allocations if at.node == each.name]
            assert sum(held) <= each.num_gpus
        assert done(schedule(after, NOW_S, SRTF)) == []
        shuffled = replace(before, queued=before.queued[::-1], running=before.running[::-1])
        assert sorted(map(repr, schedule(shuffled, NOW_S, SRTF))) == sorted(map(repr, actions))
        touched = [action.run_key for action in actions]
        assert len(set(touched)) == len(touched)


def test_it_says_why_it_stops_a_job() -> None:
    actions = decided(waiting("short", plan("v100", 4, run_s=50)), long_job())
    assert [action.reason.detail for action in actions if isinstance(action, Preempt)][0].endswith(".")
