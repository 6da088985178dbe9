"""What a move of a running job is called, what it costs, how many are left, and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.attempts import attempt, listed, plan, run_record

from frenzy.core.lifecycle.moves import (
    MOVE_REASONS,
    ElasticRules,
    Work,
    elasticity,
    has_room,
    measured_extra_bytes,
    move_reason,
    plans_to_move_to,
    restart_s,
    work_left,
)
from frenzy.core.lifecycle.reschedule import (
    MEMORY_REASONS,
    classify,
    follow_up,
    ladder,
    plans_with_headroom,
    preferred_first,
)
from frenzy.core.runs.ledger import MoveTarget, NextAttempt
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import PlanShape
from frenzy.core.values.units import MIB

RULES = ElasticRules(restart_s=30.0, max_moves=3, refill_s=100.0)
ON_N = Placement(allocations=(NodeAllocation(node="n", num_gpus=1),))


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (plan(gpus=4), ReasonCode.MOVED_TO_GROW),
        (plan(gpus=1), ReasonCode.MOVED_TO_SHRINK),
        (plan(gpus=2, micro=8), ReasonCode.MOVED_TO_OTHER_GPUS),
        (plan(gpus=4, gpu_type="large"), ReasonCode.MOVED_TO_OTHER_GPUS),
    ],
)
def test_a_move_is_called_by_what_becomes_of_the_gpus(target: object, code: ReasonCode) -> None:
    assert isinstance(target, type(plan()))
    reason = move_reason(plan(gpus=2), MoveTarget(plan=target, placement=ON_N), "other")
    assert reason.code is code
    assert target.plan_id in reason.sentence


def test_a_move_says_what_it_gains_or_for_whom_it_is() -> None:
    fast = replace(plan(gpus=4), predicted_run_s=0.5)
    slow = replace(plan(gpus=1), predicted_run_s=2.0)
    sooner = move_reason(plan(), MoveTarget(plan=fast, placement=ON_N), "other", work=Work(left=0.5, done=0.5)).sentence
    assert sooner.endswith("checkpoint, where what is left is predicted to take 0.2 s instead of 0.5 s.")
    assert "so that job other can start" in move_reason(plan(), MoveTarget(plan=slow, placement=ON_N), "other").sentence
    assert move_reason(plan(), MoveTarget(plan=slow, placement=ON_N), None).sentence.endswith("checkpoint.")


def test_of_two_that_change_places_each_is_told_what_both_gain() -> None:
    slow = MoveTarget(plan=replace(plan(gpus=1), predicted_run_s=600.0), placement=ON_N)
    told = move_reason(
        plan(), slow, "mine (run b)", work=Work(left=0.5, done=0.5), its_change="1 min 00 s instead of 1 h"
    )
    assert "job mine (run b) moves to GPUs that it leaves" in told.sentence
    assert "predicted to take 5 min 00 s instead of 0.5 s; of job mine (run b): 1 min 00 s instead" in told.sentence
    assert "can start" not in told.sentence


def test_memory_that_grows_leaves_an_attempt_only_the_plan_it_has() -> None:
    steady = replace(attempt(1, ReasonCode.COMPLETED), plan=plan())
    growing = replace(steady, growth_step=7)
    plans = (plan(gpus=4), plan(), plan(gpu_type="large"))
    assert plans_to_move_to(steady, plans) == plans
    assert plans_to_move_to(growing, plans) == (plan(),)


@pytest.mark.parametrize("code", sorted(MOVE_REASONS))
def test_a_moved_run_goes_on_whatever_its_own_budget_of_reschedules(code: ReasonCode) -> None:
    spent = run_record(max_reschedules=1, num_reschedules=1)
    ends = tuple(attempt(number, code, last_step=5) for number in range(1, 6))
    following = follow_up(spent, ends)
    assert isinstance(following, NextAttempt)
    assert following.reason.code is code
    assert following.excluded_shapes == ()


@pytest.mark.parametrize("code", sorted(MOVE_REASONS))
def test_workers_killed_while_they_were_to_stop_for_a_move_count_as_moved(code: ReasonCode) -> None:
    asked = Reason(code=code, detail="because")
    killed = AttemptResult(exit_code=137, last_step=5, total_steps=10)
    assert classify(killed, asked, None) == asked
    out_of_memory = replace(killed, exit_code=97)
    assert classify(out_of_memory, asked, None).code in MEMORY_REASONS


def test_what_memory_taught_is_kept_and_the_target_comes_first() -> None:
    taught = replace(attempt(1, ReasonCode.MOVED_TO_GROW).next_attempt, forecast_extra_bytes_per_gpu=7 * MIB)
    target = MoveTarget(plan=plan(gpus=4), placement=ON_N)
    moved = replace(attempt(1, ReasonCode.MOVED_TO_GROW), next_attempt=taught, move_to=target)
    following = follow_up(run_record(), (attempt(0, ReasonCode.CUDA_OUT_OF_MEMORY), moved))
    assert isinstance(following, NextAttempt)
    assert following.forecast_extra_bytes_per_gpu == 7 * MIB
    assert following.excluded_shapes == (plan().shape,)
    assert following.preferred == target.plan.shape
    plans = ladder(listed(plan(), plan(gpus=1), plan(gpus=4)), following).plans
    assert [each.num_gpus for each in plans] == [4, 1]


def test_a_preferred_plan_that_is_gone_gives_way_to_one_on_the_same_gpus() -> None:
    wanted: PlanShape = plan(gpus=4, ckpt=True).shape
    assert preferred_first((plan(), plan(gpus=4)), wanted) == (plan(gpus=4), plan())
    assert preferred_first((plan(), plan(gpus=1)), wanted) == (plan(), plan(gpus=1))


def test_plans_with_room_for_what_was_forecast_are_kept_if_there_are_any() -> None:
    tight, roomy = plan(peak=350), plan(gpus=4, peak=200)
    known = NextAttempt(attempt=2, reason=Reason(code=ReasonCode.PREEMPTED), forecast_extra_bytes_per_gpu=100 * MIB)
    assert plans_with_headroom(listed(tight, roomy), known) == (roomy,)
    assert plans_with_headroom(listed(tight), known) == (tight,)


def test_the_budget_counts_moves_and_refills_with_running() -> None:
    moved = replace(attempt(1, ReasonCode.PREEMPTED), first_step_s=0.5, ended_s=50.5)
    crashed = replace(attempt(2, ReasonCode.WORKER_CRASHED), first_step_s=0.5, ended_s=50.5)
    found = elasticity(run_record(), (moved, crashed), RULES)
    assert found is not None
    assert found.moves_left == pytest.approx(3 - 1 + 1.0)


def test_a_restart_costs_what_the_newest_attempts_took() -> None:
    first = replace(attempt(1, ReasonCode.PREEMPTED), first_step_s=12.0, stop_asked_s=40.0, ended_s=44.0)
    live = replace(attempt(2, ReasonCode.COMPLETED), outcome=None, ended_s=None, created_s=50.0, first_step_s=58.0)
    assert restart_s((), RULES) == 30.0
    assert restart_s((first,), RULES) == 16.0
    assert restart_s((first, live), RULES) == 12.0


@given(total=st.integers(1, 500), before=st.integers(0, 500), at=st.integers(0, 500))
def test_work_left_and_done_add_up_to_all_steps(total: int, before: int, at: int) -> None:
    run = replace(run_record(), total_steps=total)
    resumed = NextAttempt(attempt=2, reason=Reason(code=ReasonCode.PREEMPTED), checkpoint_step=before)
    work = work_left(run, replace(attempt(2, ReasonCode.COMPLETED, last_step=at), next_attempt=resumed))
    planned = total - before
    if planned <= 0:
        assert (work.left, work.done) == (1.0, 0.0)
    elif max(at, before) <= total:
        assert (work.left + work.done) * planned == pytest.approx(total)
    else:
        assert work.left == 0


def test_only_what_is_measured_above_the_requirement_counts_as_extra() -> None:
    held = attempt(1, ReasonCode.PREEMPTED, last_step=5)
    memory = replace(held.plan.memory, peak_allocated_bytes=90 * MIB, required_bytes=100 * MIB)
    tight = replace(held.plan, memory=memory, gpu_memory_bytes=120 * MIB)
    measured = {
        peak: measured_extra_bytes(replace(held, plan=tight, peaks=PeakMemory(allocated_bytes=peak * MIB))) // MIB
        for peak in (95, 100, 105, 115)
    }
    assert measured == {95: 0, 100: 0, 105: 15, 115: 25}
    assert has_room(tight, 15 * MIB)
    assert not has_room(tight, 25 * MIB)


def test_a_job_that_leaves_a_drained_node_is_told_so() -> None:
    target = MoveTarget(plan=plan(), placement=ON_N)
    assert "old is being drained" in move_reason(plan(), target, "other", drained=["old"]).sentence


def test_a_job_that_moves_for_anothers_memory_is_told_so_even_if_it_gains() -> None:
    fast = MoveTarget(plan=replace(plan(gpus=4), predicted_run_s=0.5), placement=ON_N)
    assert "job other needs more memory" in move_reason(plan(), fast, "other", for_memory=True).sentence
