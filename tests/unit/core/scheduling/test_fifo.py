"""The policy ``fifo``: rigid GPU counts, any free type, the head of the line blocks."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.core.has_world import facts, held, node, plan, running, started, waiting, where

from frenzy.core.scheduling import FifoPolicy, explain, schedule
from frenzy.core.scheduling.engine.job_plans import rigid_plans
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob

FIFO = FifoPolicy()


def asks(num_gpus: int, job: QueuedJob) -> QueuedJob:
    return replace(job, asked_gpus=num_gpus)


def test_the_asked_number_of_gpus_is_kept_although_another_plan_is_faster() -> None:
    job = asks(2, waiting("a", plan("v100", 4, run_s=10), plan("v100", 2, run_s=30), plan("v100", 1, run_s=20)))
    assert started(schedule(facts([node("n1", "v100", 4)], [job]), 0.0, FIFO))["a"].plan.num_gpus == 2


def test_of_the_types_that_are_free_the_fastest_is_taken_and_no_better_one_awaited() -> None:
    nodes = [node("n1", "a100", 2), node("n2", "v100", 2), node("n3", "t4", 2)]
    job = asks(
        2, waiting("a", *(plan(gpu, 2, run_s=run_s) for gpu, run_s in (("t4", 900), ("a100", 1), ("v100", 300))))
    )
    busy = running("r", plan("a100", 1), ("n1", 1), end_s=1.0)
    assert where(started(schedule(facts(nodes, [job], [busy]), 0.0, FIFO))["a"]) == {"n2": 2}


def test_without_a_plan_of_exactly_that_count_the_next_larger_then_the_next_smaller_is_taken() -> None:
    by_count = {count: plan("v100", count) for count in (1, 2, 4, 8)}

    def chosen(asked: int | None, *fitting: int) -> list[ResourcePlan]:
        return rigid_plans(list(by_count.values()), asked, [by_count[count] for count in fitting])

    assert chosen(3, 1, 2, 4, 8) == [by_count[4]]
    assert chosen(3, 1, 2) == [by_count[2]]
    assert chosen(16, 1, 2, 4) == [by_count[4]]
    assert chosen(None, 2, 4) == [by_count[2]]
    assert chosen(2) == [by_count[2]]
    assert rigid_plans([], 2, []) == []


def test_the_head_of_the_line_blocks_a_later_job_that_would_fit() -> None:
    first = asks(4, waiting("first", plan("v100", 4), submitted_s=1))
    second = asks(1, waiting("second", plan("v100", 1), submitted_s=2))
    snapshot = facts([node("n1", "v100", 4)], [second, first], [running("r", plan("v100", 1), ("n1", 1))])
    actions = schedule(snapshot, 0.0, FIFO)
    assert started(actions) == {}
    assert held(actions)["first"].reason.code is ReasonCode.WAITING_FOR_GPUS
    assert held(actions)["second"].reason.code is ReasonCode.WAITING_BEHIND_HEAD


def test_a_job_that_never_fits_blocks_nobody() -> None:
    never = asks(8, waiting("never", plan("v100", 8), submitted_s=1))
    second = asks(1, waiting("second", plan("v100", 1), submitted_s=2))
    assert list(started(schedule(facts([node("n1", "v100", 4)], [never, second]), 0.0, FIFO))) == ["second"]


def test_a_start_is_explained_by_the_count_that_was_asked_for() -> None:
    job = asks(2, waiting("a", plan("v100", 4, run_s=10), plan("v100", 2, run_s=30)))
    found = explain(facts([node("n1", "v100", 4)], [job]), "a", 0.0, FIFO)
    assert "as many GPUs as were asked for" in found.lines[-1]
