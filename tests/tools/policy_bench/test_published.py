"""The published algorithm as it is simulated: GPUs alone are counted, and a job may mix their types."""

from __future__ import annotations

from tests.unit.core.has_world import MIXED_TYPES, facts, node, on_any_type, plan, waiting, where
from tests.unit.sim.sim_world import cluster, on_large, on_small, scenario, sim_job

from frenzy.core.scheduling import SchedulingState
from frenzy.core.values.cluster import Node
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, Start
from frenzy.sim.engine import simulate
from frenzy.sim.registry import scheduler_named
from tools.policy_bench.published import PublishedScheduler, plan_as_placed


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


def test_a_job_on_two_gpu_types_runs_as_fast_as_on_the_slower_one() -> None:
    """As published, 2 GPUs of the smaller class and 1 of the larger make up 3."""
    job = sim_job("a", on_small(3, 200.0), on_large(3, 50.0))
    few = cluster(node("s1", "small", 2), node("l1", "large", 2))
    result = simulate(scenario(job, cluster=few), PublishedScheduler())
    assert result.jobs[0].end_s == 200.0
    alone = simulate(scenario(job, cluster=few), scheduler_named("frenzy-paper"))
    assert alone.jobs[0].end_s is None


def test_without_a_plan_of_the_same_settings_on_a_type_the_count_decides() -> None:
    mine, settings, other = on_large(2, 50.0), plan("small", 2, run_s=90.0, micro_batch_size=2), on_small(1, 500.0)
    job: QueuedJob = sim_job("a", mine, settings, other).job
    assert plan_as_placed(mine, job.plans, ["large"]) is mine
    assert plan_as_placed(mine, job.plans, ["large", "small"]) is settings
    assert plan_as_placed(mine, job.plans, ["small"]) is settings
    assert plan_as_placed(mine, (mine, other), ["small"]) is mine
