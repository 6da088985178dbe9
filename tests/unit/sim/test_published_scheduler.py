"""The published algorithm as it is simulated: GPUs alone are counted, and a job may mix their types."""

from __future__ import annotations

from tests.unit.core.has_world import MIXED_TYPES, facts, node, on_any_type, plan, waiting, where

from frenzy.core.scheduling import SchedulingState
from frenzy.core.values.cluster import Node
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, Start
from frenzy.sim.published_scheduler import PublishedScheduler


def starts(nodes: list[Node], *jobs: QueuedJob) -> dict[str, Start]:
    scheduler = PublishedScheduler()
    state = SchedulingState.of(facts(nodes, list(jobs), types=MIXED_TYPES), scheduler.rules)
    return {each.run_key: each for each in scheduler.decide(state, 0.0)}


def place_of(nodes: list[Node], *plans: ResourcePlan) -> dict[str, int]:
    return where(starts(nodes, waiting("a", *plans))["a"])


def test_the_smallest_class_that_fits_is_taken() -> None:
    nodes = [node("n1", "a100", 1), node("n2", "rtx", 1), node("n3", "t4", 1)]
    assert place_of(nodes, *on_any_type(1, 20)) == {"n2": 1}
    assert place_of(nodes, *on_any_type(1, 30)) == {"n1": 1}


def test_inside_a_class_the_best_fit_wins_and_of_equals_the_faster_node() -> None:
    nodes = [node("n1", "rtx", 4), node("n2", "rtx", 2), node("n3", "l4", 2)]
    assert place_of(nodes, *on_any_type(2, 20)) == {"n3": 2}
    assert place_of(nodes, *on_any_type(3, 20)) == {"n1": 3}


def test_without_a_covering_node_the_most_idle_is_taken_whole_then_the_best_fit_again() -> None:
    nodes = [node("n1", "rtx", 4), node("n2", "rtx", 3), node("n3", "rtx", 1)]
    assert place_of(nodes, *on_any_type(5, 20)) == {"n1": 4, "n3": 1}


def test_the_next_larger_class_fills_up_what_is_missing() -> None:
    nodes = [node("n1", "t4", 1), node("n2", "rtx", 1), node("n3", "a100", 4)]
    assert place_of(nodes, *on_any_type(3, 12)) == {"n1": 1, "n2": 1, "n3": 1}


def test_groups_of_one_node_and_host_memory_count_for_nothing() -> None:
    nodes = [node("n1", "rtx", 1), node("n2", "rtx", 1)]
    assert place_of(nodes, plan("rtx", 2, tp=2)) == {"n1": 1, "n2": 1}
    assert place_of(nodes, plan("rtx", 2, host_gib=100_000)) == {"n1": 1, "n2": 1}


def test_a_job_that_does_not_fit_is_passed_over() -> None:
    jobs = [waiting("big", plan("rtx", 4)), waiting("like it", plan("rtx", 4)), waiting("small", plan("rtx", 1))]
    assert set(starts([node("n1", "rtx", 2)], *jobs)) == {"small"}
