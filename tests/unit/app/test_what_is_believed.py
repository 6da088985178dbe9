"""What the ledger takes of the reports about an attempt, whoever sends them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.app.playing import FORECAST, Airflow

from frenzy.app.observe import report_pressure, report_progress
from frenzy.app.queries import memory_view, run_view
from frenzy.app.reconciliation import reconcile
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import Attempt, JobState
from frenzy.core.runs.protocol import EndReport, PressureReport, ProgressReport, ReconcileFinding, ReconcileReport
from frenzy.core.values.codec import dumps
from frenzy.core.values.errors import ContractError, Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.telemetry import StepRecord
from frenzy.ports import WorkersState

BILLION = 10**9


def attempt(airflow: Airflow) -> Attempt:
    return run_view(airflow.services, airflow.key).attempts[0]


def test_step_one_billion_of_a_hundred_is_refused(airflow: Airflow) -> None:
    airflow.begun()
    with pytest.raises(ContractError, match="last_step 1000000000 is not from 0 to 100"):
        airflow.step(1, BILLION)
    assert attempt(airflow).last_step == 1


def test_pressure_for_a_reason_that_is_none_is_refused(airflow: Airflow) -> None:
    airflow.begun()
    for reason, step in ((Reason(code=ReasonCode.COMPLETED), 5), (FORECAST, BILLION)):
        report = PressureReport(
            reason=reason,
            progress=ProgressReport(last_step=step),
            extra_bytes_per_gpu=0,
            forecast_extra_bytes_per_gpu=0,
        )
        with pytest.raises(ContractError, match="Report"):
            report_pressure(airflow.services, airflow.key, 1, report)
    assert attempt(airflow).stop_reason is None


@pytest.mark.parametrize(
    "result",
    [
        AttemptResult(exit_code=0, last_step=3, total_steps=100),
        AttemptResult(exit_code=0, last_step=3, total_steps=3),
        AttemptResult(exit_code=0, last_step=BILLION, total_steps=BILLION),
        AttemptResult(exit_code=98, last_step=BILLION, total_steps=100),
    ],
)
def test_a_result_that_cannot_be_true_ends_the_attempt_as_a_crash(airflow: Airflow, result: AttemptResult) -> None:
    airflow.begun()
    view = end_attempt(airflow.services, airflow.key, 1, EndReport(result=result))
    outcome = view.attempts[0].outcome
    assert outcome is not None
    assert outcome.code is ReasonCode.WORKER_CRASHED
    assert "not possible" in outcome.sentence
    assert (view.run.state, view.run.total_steps, view.attempts[0].last_step) == (JobState.RECOVERING, 100, 1)


def test_an_end_without_a_result_is_not_completed_by_its_reason(airflow: Airflow) -> None:
    airflow.begun()
    report = EndReport(reason=Reason(code=ReasonCode.COMPLETED, detail="\x1b[2Jtrust me"), lost_nodes=("n1", "nowhere"))
    ended = end_attempt(airflow.services, airflow.key, 1, report).attempts[0]
    assert ended.outcome is not None
    assert ended.outcome.code is ReasonCode.WORKERS_LOST
    assert "\x1b" not in ended.outcome.sentence
    assert "nowhere" not in ended.lost_nodes


def test_a_reconciliation_with_one_impossible_result_still_frees_all_gpus(airflow: Airflow) -> None:
    airflow.begun()
    lie = AttemptResult(exit_code=0, last_step=BILLION, total_steps=BILLION)
    finding = ReconcileFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE, result=lie)
    assert reconcile(airflow.services, ReconcileReport(findings=(finding,))).num_released == 1
    assert run_view(airflow.services, airflow.key).run.state is JobState.RECOVERING


def test_progress_with_an_end_is_left_out_where_it_cannot_be_true(airflow: Airflow) -> None:
    airflow.begun()
    result = AttemptResult(exit_code=98, last_step=5, total_steps=100)
    report = EndReport(result=result, progress=ProgressReport(last_step=BILLION, peaks=PeakMemory(allocated_bytes=-1)))
    assert end_attempt(airflow.services, airflow.key, 1, report).attempts[0].last_step == 5


def test_a_loss_that_is_no_number_is_told_as_none_and_never_as_json_that_is_none(airflow: Airflow) -> None:
    airflow.begun()
    report = ProgressReport(last_step=5, last_loss=float("nan"), step_time_s=1.0)
    report_progress(airflow.services, airflow.key, 1, report)
    assert json.loads(dumps(attempt(airflow)), parse_constant=pytest.fail)["last_loss"] is None


def test_memory_shows_only_steps_that_the_run_has(airflow: Airflow) -> None:
    runs = InMemoryRunStore()
    airflow = replace(airflow, services=replace(airflow.services, runs=runs)).begun()
    real = StepRecord(
        rank=0,
        step=1,
        time_s=airflow.clock.now_s(),
        loss=None,
        step_time_s=1.0,
        tokens_per_s=1.0,
        peaks=PeakMemory(allocated_bytes=1, reserved_bytes=1, device_used_bytes=1),
        capacity_bytes=10,
    )
    other = replace(real, rank=1, step=2, peaks=PeakMemory(allocated_bytes=4), num_alloc_retries=3)
    runs.write_chunk(airflow.key, 1, [replace(other, step=1, peaks=PeakMemory(allocated_bytes=7)), other])
    runs.write_chunk(
        airflow.key, 1, [real, replace(real, step=BILLION), replace(real, peaks=PeakMemory(allocated_bytes=-5), step=2)]
    )
    (shown,) = memory_view(airflow.services, airflow.key).attempts
    assert [each.step for each in shown.steps] == [1, 2]
    told = [(each.rank, each.peak_bytes, each.last_bytes, each.last_step) for each in shown.ranks]
    assert told == [(0, 1, 1, 1), (1, 7, 4, 2)]
    assert (shown.ranks[0].node, shown.ranks[1].num_alloc_retries) == (
        attempt(airflow).placement.allocations[0].node,
        6,
    )
