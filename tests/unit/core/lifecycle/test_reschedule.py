"""The ladder climbs in order, never repeats a plan, and the follow-up keeps to its budget."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.attempts import FORECAST, attempt, listed, plan, run_record

from frenzy.core.lifecycle.reschedule import (
    MEMORY_REASONS,
    Rung,
    classify,
    final_state,
    follow_up,
    ladder,
    room_bytes,
    rung_of,
)
from frenzy.core.runs.ledger import JobState, NextAttempt
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.failure_classes import NextStep, codes_of
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.run_files import REASON_BY_EXIT
from frenzy.core.values.units import MIB


def after(previous: ResourcePlan, *, seen: int, forecast: int | None = None) -> NextAttempt:
    return NextAttempt(
        attempt=2,
        reason=FORECAST,
        previous=previous,
        excluded_shapes=(previous.shape,),
        extra_bytes_per_gpu=seen * MIB,
        forecast_extra_bytes_per_gpu=(seen if forecast is None else forecast) * MIB,
    )


SMALLER = plan(micro=2, peak=240)
CHECKPOINTED = plan(ckpt=True, peak=200)
SHARDED = plan(zero=3, peak=150)
LARGER = plan(gpu_type="large", gpus=1, peak=350, memory=1000)


@pytest.mark.parametrize(
    ("seen", "rung", "expected"),
    [
        (110, Rung.MICRO_BATCH, SMALLER),
        (170, Rung.CHECKPOINTING, CHECKPOINTED),
        (220, Rung.ZERO_STAGE, SHARDED),
        (300, Rung.OTHER_GPUS, LARGER),
    ],
)
def test_the_lowest_rung_with_room_is_taken(seen: int, rung: Rung, expected: ResourcePlan) -> None:
    found = ladder(listed(plan(), LARGER, SHARDED, CHECKPOINTED, SMALLER), after(plan(), seen=seen))
    assert found.rung is rung
    assert found.plans == (expected,)


def test_the_forecast_decides_when_a_plan_has_room_for_it() -> None:
    found = ladder(listed(plan(), LARGER, SMALLER), after(plan(), seen=110, forecast=400))
    assert found.plans == (LARGER,)


def test_what_was_seen_decides_when_no_plan_has_room_for_the_forecast() -> None:
    found = ladder(listed(plan(), LARGER, SMALLER), after(plan(), seen=110, forecast=10_000))
    assert found.plans == (SMALLER,)


def test_nothing_is_offered_when_every_card_is_too_small() -> None:
    assert ladder(listed(plan(), SMALLER), after(plan(), seen=5_000)).plans == ()


def test_a_plan_that_ran_out_is_not_offered_again() -> None:
    attempt = dataclasses.replace(after(plan(), seen=110), excluded_shapes=(plan().shape, SMALLER.shape))
    assert SMALLER not in ladder(listed(plan(), SMALLER, CHECKPOINTED), attempt).plans


def test_after_a_crash_every_feasible_plan_may_be_used_again() -> None:
    crashed = dataclasses.replace(
        after(plan(), seen=0), reason=Reason(code=ReasonCode.WORKER_KILLED), excluded_shapes=()
    )
    assert plan() in ladder(listed(plan(), SMALLER), crashed).plans


plans = st.builds(
    plan,
    gpus=st.sampled_from([1, 2, 4]),
    gpu_type=st.sampled_from(["small", "large"]),
    zero=st.sampled_from([1, 2, 3]),
    micro=st.sampled_from([1, 2, 4]),
    ckpt=st.booleans(),
    peak=st.integers(50, 390),
)


@given(previous=plans, others=st.lists(plans, max_size=8), seen=st.integers(0, 300))
def test_every_plan_offered_has_more_room_than_the_last_and_one_rung(
    previous: ResourcePlan, others: list[ResourcePlan], seen: int
) -> None:
    found = ladder(listed(*others), after(previous, seen=seen))
    for each in found.plans:
        assert each.shape != previous.shape
        assert room_bytes(each) > max(room_bytes(previous), seen * MIB)
        assert rung_of(previous, each) is found.rung


def test_success_and_refused_configuration_end_the_run() -> None:
    for code in (ReasonCode.COMPLETED, ReasonCode.BAD_CONFIG_OR_DATA, ReasonCode.CANCELLED_BY_USER):
        found = follow_up(run_record(), (attempt(1, code),))
        assert isinstance(found, Reason)
        assert found.code is code


@pytest.mark.parametrize("code", sorted(MEMORY_REASONS))
def test_memory_trouble_leads_to_another_plan_and_excludes_the_last(code: ReasonCode) -> None:
    found = follow_up(run_record(), (attempt(1, code),))
    assert isinstance(found, NextAttempt)
    assert found.attempt == 2
    assert found.excluded_shapes == (plan().shape,)


def test_an_out_of_memory_says_the_need_was_above_the_card() -> None:
    found = follow_up(run_record(), (attempt(1, ReasonCode.BUDGET_EXCEEDED),))
    assert isinstance(found, NextAttempt)
    assert found.extra_bytes_per_gpu == room_bytes(plan())


def test_after_an_out_of_memory_measured_growth_is_taken_to_go_on() -> None:
    burst = dataclasses.replace(
        attempt(1, ReasonCode.BUDGET_EXCEEDED, last_step=20),
        peaks=PeakMemory(allocated_bytes=400 * MIB),
        explained_peak_bytes=300 * MIB,
        growth_step=10,
        result=AttemptResult(exit_code=96, last_step=20, total_steps=50),
    )
    found = follow_up(run_record(), (burst,))
    assert isinstance(found, NextAttempt)
    assert found.forecast_extra_bytes_per_gpu == room_bytes(plan()) + 30 * 10 * MIB


def test_a_spent_budget_ends_the_run() -> None:
    found = follow_up(run_record(max_reschedules=1, num_reschedules=1), (attempt(2, ReasonCode.BUDGET_EXCEEDED),))
    assert isinstance(found, Reason)
    assert found.code is ReasonCode.RESCHEDULE_BUDGET_SPENT


def test_a_killed_worker_is_started_again_with_the_same_plan_allowed() -> None:
    found = follow_up(run_record(), (attempt(1, ReasonCode.WORKER_KILLED),))
    assert isinstance(found, NextAttempt)
    assert found.excluded_shapes == ()


def test_a_crash_that_repeats_without_progress_ends_the_run() -> None:
    crashes = tuple(attempt(number, ReasonCode.WORKER_CRASHED, last_step=3) for number in (1, 2, 3))
    found = follow_up(run_record(max_reschedules=50), crashes)
    assert isinstance(found, Reason)
    assert found.code is ReasonCode.WORKER_CRASHED


@pytest.mark.parametrize(
    ("exit_code", "code"),
    [
        (0, ReasonCode.COMPLETED),
        (96, ReasonCode.BUDGET_EXCEEDED),
        (97, ReasonCode.CUDA_OUT_OF_MEMORY),
        (98, ReasonCode.CHECKPOINTED_ON_REQUEST),
        (99, ReasonCode.BAD_CONFIG_OR_DATA),
        (137, ReasonCode.WORKER_KILLED),
        (1, ReasonCode.WORKER_CRASHED),
    ],
)
def test_each_exit_code_has_its_reason(exit_code: int, code: ReasonCode) -> None:
    result = AttemptResult(exit_code=exit_code, last_step=3, total_steps=9)
    assert classify(result, None, None).code is code


def test_a_requested_stop_is_named_by_its_cause() -> None:
    result = AttemptResult(exit_code=98, last_step=3, total_steps=9)
    assert classify(result, FORECAST, None) == FORECAST


def test_workers_that_left_no_account_are_lost() -> None:
    assert classify(None, None, None).code is ReasonCode.WORKERS_LOST


def test_every_reason_that_ends_a_run_has_a_final_state() -> None:
    assert final_state(Reason(code=ReasonCode.COMPLETED)) is JobState.SUCCEEDED
    assert final_state(Reason(code=ReasonCode.BUDGET_EXCEEDED)) is JobState.FAILED_OOM
    assert final_state(Reason(code=ReasonCode.WORKER_CRASHED)) is JobState.FAILED


@pytest.mark.parametrize("code", sorted(codes_of(NextStep.USER)))
def test_a_fault_of_the_users_is_not_tried_again(code: ReasonCode) -> None:
    found = follow_up(run_record(), (attempt(1, code),))
    assert isinstance(found, Reason)
    assert found.code is code


@pytest.mark.parametrize("code", sorted(codes_of(NextStep.AGAIN)))
def test_a_passing_failure_is_tried_again_within_the_budget(code: ReasonCode) -> None:
    assert isinstance(follow_up(run_record(), (attempt(1, code),)), NextAttempt)


@pytest.mark.parametrize("exit_code", sorted(REASON_BY_EXIT))
def test_an_exit_code_has_the_name_of_its_reason(exit_code: int) -> None:
    result = AttemptResult(exit_code=exit_code, last_step=3, total_steps=9, detail="as it was said")
    assert classify(result, None, None) == Reason(code=REASON_BY_EXIT[exit_code], detail="as it was said")
