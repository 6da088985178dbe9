"""What the scheduler does in small cases that can be checked by hand."""

from __future__ import annotations

from tests.unit.core.has_world import facts, gpu_type, held, node, plan, running, started, waiting, where

from frenzy.core.has import HasPolicy, PaperPolicy, schedule
from frenzy.core.queue import QueuedJob

HAS = HasPolicy()
PAPER = PaperPolicy()


def test_single_gpu_jobs_take_the_odd_gpus_and_leave_the_pair_to_the_job_that_needs_it() -> None:
    nodes = [node("n1", "v100", 2), node("n2", "v100", 1), node("n3", "v100", 1)]
    jobs = [waiting("a", plan("v100", 1)), waiting("b", plan("v100", 1)), waiting("c", plan("v100", 2))]
    starts = started(schedule(facts(nodes, jobs), 0.0, HAS))
    assert {name: where(start) for name, start in starts.items()} == {"a": {"n2": 1}, "b": {"n3": 1}, "c": {"n1": 2}}


def test_a_job_takes_the_best_plan_that_can_start_now() -> None:
    nodes = [node("n1", "a100", 1), node("n2", "v100", 2)]
    job = waiting("a", plan("a100", 2, run_s=100), plan("v100", 2, run_s=150), plan("a100", 1, run_s=200))
    assert started(schedule(facts(nodes, [job]), 0.0, HAS))["a"].plan == job.plans[1]


def test_tensor_parallel_groups_stay_on_one_node() -> None:
    nodes = [node("n1", "v100", 3), node("n2", "v100", 3)]
    job = waiting("a", plan("v100", 4, tp=2))
    assert where(started(schedule(facts(nodes, [job]), 0.0, HAS))["a"]) == {"n1": 2, "n2": 2}
    assert started(schedule(facts(nodes, [waiting("b", plan("v100", 4, tp=4))]), 0.0, HAS)) == {}


def test_backfill_uses_only_what_the_head_does_not_need_in_time() -> None:
    nodes = [node("n1", "v100", 4)]
    on = plan("v100", 3)
    head = waiting("head", plan("v100", 4), submitted_s=1)
    short = waiting("short", plan("v100", 1, run_s=99), submitted_s=2)
    long = waiting("long", plan("v100", 1, run_s=101), submitted_s=2)
    run = [running("r", on, ("n1", 3), end_s=100.0)]
    assert set(started(schedule(facts(nodes, [head, long], run), 0.0, HAS))) == set()
    assert set(started(schedule(facts(nodes, [head, short], run), 0.0, HAS))) == {"short"}


def _stream(now_s: float) -> QueuedJob:
    return waiting(f"small-{now_s:06.0f}", plan("v100", 1, run_s=50), submitted_s=now_s)


def test_frenzy_paper_takes_the_fewest_gpus_on_the_smallest_class() -> None:
    types = (gpu_type("a100", memory_gib=40), gpu_type("v100", memory_gib=16))
    nodes = [node("n1", "a100", 4), node("n2", "v100", 4)]
    job = waiting("a", plan("a100", 4), plan("a100", 1, gpu_memory_gib=40), plan("v100", 1), plan("v100", 2))
    assert started(schedule(facts(nodes, [job], types=types), 0.0, PAPER))["a"].plan == job.plans[2]


def test_every_job_that_waits_is_held_with_its_position() -> None:
    nodes = [node("n1", "v100", 1)]
    jobs = [waiting(name, plan("v100", 1)) for name in "abc"]
    actions = schedule(facts(nodes, jobs), 0.0, HAS)
    assert {name: hold.position for name, hold in held(actions).items()} == {"b": 1, "c": 2}
