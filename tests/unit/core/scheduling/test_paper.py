"""The published algorithm, kept as the reference: policy ``frenzy-paper``."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.core.has_world import (
    MIXED_TYPES,
    facts,
    held,
    node,
    on_any_type,
    plan,
    running,
    started,
    waiting,
    where,
)

from frenzy.core.scheduling import PaperPolicy, schedule
from frenzy.core.values.cluster import Node
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Start

PAPER = PaperPolicy()


def only_start(nodes: list[Node], *plans: ResourcePlan) -> Start:
    return started(schedule(facts(nodes, [waiting("a", *plans)], types=MIXED_TYPES), 0.0, PAPER))["a"]


def test_plans_go_by_gpus_then_memory_whatever_their_speed() -> None:
    nodes = [node("n1", "a100", 4), node("n2", "t4", 4)]
    fast = plan("a100", 4, run_s=10, gpu_memory_gib=40)
    lean = plan("a100", 2, run_s=500, required_gib=6, gpu_memory_gib=40)
    rich = plan("a100", 2, run_s=300, required_gib=12, micro_batch_size=2, gpu_memory_gib=40)
    assert only_start(nodes, fast, rich, lean).plan == lean


def test_the_smallest_class_that_fits_is_taken() -> None:
    nodes = [node("n1", "a100", 1), node("n2", "rtx", 1), node("n3", "t4", 1)]
    assert where(only_start(nodes, *on_any_type(1, 12))) == {"n3": 1}
    assert where(only_start(nodes, *on_any_type(1, 20))) == {"n2": 1}


def test_to_be_launchable_a_job_keeps_to_one_type_and_whole_groups() -> None:
    nodes = [node("n1", "t4", 1), node("n2", "rtx", 1), node("n3", "a100", 4)]
    assert where(only_start(nodes, *on_any_type(3, 12))) == {"n3": 3}
    split = [node("n1", "rtx", 1), node("n2", "rtx", 1)]
    snapshot = facts(split, [waiting("a", plan("rtx", 2, tp=2))], types=MIXED_TYPES)
    assert started(schedule(snapshot, 0.0, PAPER)) == {}


def test_a_job_that_does_not_fit_is_passed_over_without_a_reservation() -> None:
    nodes = [node("n1", "rtx", 4)]
    run = [running("r", plan("rtx", 2), ("n1", 2), end_s=10.0)]
    jobs = [waiting("big", plan("rtx", 4)), waiting("long", plan("rtx", 1, run_s=1e6), submitted_s=1)]
    actions = schedule(facts(nodes, jobs, run, types=MIXED_TYPES), 2.0, PAPER)
    assert set(started(actions)) == {"long"}
    assert set(held(actions)) == {"big"}


def test_it_knows_no_priority() -> None:
    jobs = [waiting("late", plan("rtx", 1), submitted_s=2, priority=9), waiting("early", plan("rtx", 1), submitted_s=1)]
    actions = schedule(facts([node("n1", "rtx", 1)], jobs, types=MIXED_TYPES), 3.0, PAPER)
    assert set(started(actions)) == {"early"}


def test_after_memory_ran_short_the_ladders_order_is_kept() -> None:
    nodes = [node("n1", "rtx", 4)]
    job = replace(waiting("a", plan("rtx", 4), plan("rtx", 1)), ordered=True)
    assert started(schedule(facts(nodes, [job], types=MIXED_TYPES), 0.0, PAPER))["a"].plan == job.plans[0]
