"""What workers may say of themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract import values

from frenzy.core.lifecycle.evidence import Bounds, believed, believed_result, bounds_of, check_pressure, check_progress
from frenzy.core.runs.protocol import PressureReport, ProgressReport
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, Reason, ReasonCode
from frenzy.core.values.job import ValidationSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.run_files import ExitCode
from frenzy.core.values.telemetry import StepRecord, fold_steps
from frenzy.core.values.workload import WorkloadSpec

BOUNDS = Bounds(num_ranks=2, most_steps=40, total_steps=40, until_s=1_000.0)
DONE = AttemptResult(exit_code=0, last_step=40, total_steps=40)
PROGRESS = ProgressReport(last_step=3, first_step_s=5.0)


@pytest.mark.parametrize(
    "lie",
    [
        {"step": 10**9},
        {"step": 0},
        {"step": -1},
        {"rank": 2},
        {"rank": -1},
        {"time_s": 1e12},
        {"peaks": PeakMemory(allocated_bytes=-1)},
        {"peaks": PeakMemory(reserved_bytes=2**60)},
        {"peaks": PeakMemory(device_used_bytes=10**400)},
        {"capacity_bytes": 0},
        {"step_time_s": -1.0},
        {"step_time_s": 1e300},
        {"num_ooms": -5},
    ],
)
def test_a_record_that_cannot_be_true_is_dropped(lie: dict[str, object]) -> None:
    good = values.step_record(1)
    found = believed([replace(good, **lie), good], BOUNDS)  # type: ignore[arg-type]
    assert found.records == (good,)
    assert found.num_dropped == 1
    assert found.problem is not None
    assert next(iter(lie)) in found.problem


def test_of_what_an_agent_says_is_installed_releases_alone_are_kept() -> None:
    said = {"transformers": "4.44.2", "torch": "rm -rf", **{f"library {number}": "1.0" for number in range(1000)}}
    (record,) = believed([replace(values.step_record(1), releases=said)], BOUNDS).records
    assert record.releases == {"transformers": "4.44.2"}


def test_the_steps_of_a_rank_only_go_up() -> None:
    steps = [values.step_record(step) for step in (1, 3, 2, 3, 4)]
    assert [each.step for each in believed(steps, BOUNDS).records] == [1, 3, 4]


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"last_step": 10**9, "exit_code": 98}, "last_step"),
        ({"last_step": 3}, "all is done at step 3 of 40"),
        ({"exit_code": 10**6}, "exit_code"),
        ({"exit_code": -9}, "exit_code"),
        ({"checkpoint_step": 41}, "checkpoint_step"),
        ({"first_failing_rank": 7}, "first_failing_rank"),
    ],
)
def test_a_result_that_cannot_be_true_is_a_crash_that_says_why(lie: dict[str, int], why: str) -> None:
    result = believed_result(replace(DONE, **lie), BOUNDS)  # type: ignore[arg-type]
    assert (result.exit_code, result.last_step, result.checkpoint_step) == (1, 0, None)
    assert why in result.detail


def test_the_total_is_the_jobs_and_words_are_bounded() -> None:
    result = believed_result(replace(DONE, total_steps=10**9, detail="\x1b[2J" + "x" * 10**6), BOUNDS)
    assert result.total_steps == 40
    assert len(result.detail) <= 4_000
    assert "\x1b" not in result.detail


def test_where_the_job_gives_epochs_the_estimate_bounds_the_steps() -> None:
    run = values.run()
    epochs = replace(run, job=replace(run.job, training=replace(run.job.training, max_steps=None, epochs=1.0)))
    attempt = values.attempt(run.run_key)
    known = replace(epochs, data_facts=replace(run.data_facts, num_tokens=1_000_000))
    assert bounds_of(known, attempt, 0.0).most_steps < 10**6
    assert bounds_of(replace(known, total_steps=10**9), attempt, 0.0) == bounds_of(known, attempt, 0.0)
    assert bounds_of(epochs, attempt, 0.0).total_steps is None


def test_an_early_end_is_believed_of_a_job_that_has_patience() -> None:
    early = AttemptResult(exit_code=0, last_step=5, total_steps=5, stopped_early=True)
    run = values.run()
    patient = replace(run, job=replace(run.job, validation=ValidationSpec(every_steps=1, patience=1)))
    attempt = values.attempt(run.run_key)
    assert believed_result(early, bounds_of(patient, attempt, 0.0)) == early
    assert "validation.patience" in believed_result(early, bounds_of(run, attempt, 0.0)).detail


def test_a_job_by_epochs_and_a_workload_without_patience_cannot_stop_early() -> None:
    early = AttemptResult(exit_code=0, last_step=5, total_steps=5, stopped_early=True)
    run = values.run()
    by_epochs = replace(run.job, training=replace(run.job.training, max_steps=None, epochs=1.0))
    script = replace(run.job, workload=WorkloadSpec(command=("train.py",)))
    attempt = values.attempt(run.run_key)
    for job in (by_epochs, script):
        bounds = bounds_of(replace(run, job=job), attempt, 0.0)
        assert "validation.patience" in believed_result(early, bounds).detail
        assert believed_result(replace(early, stopped_early=False), bounds).exit_code == ExitCode.DONE


def test_patience_lets_no_run_be_done_before_its_last_step_that_did_not_stop_early() -> None:
    run = values.run()
    training = replace(run.job.training, max_steps=1000)
    patient = replace(run.job, training=training, validation=ValidationSpec(every_steps=1, patience=1))
    bounds = bounds_of(replace(run, job=patient), values.attempt(run.run_key), 0.0)
    end = AttemptResult(exit_code=0, last_step=3, total_steps=3)
    assert "all is done at step 3 of 1000" in believed_result(end, bounds).detail
    assert believed_result(replace(end, stopped_early=True), bounds).exit_code == ExitCode.DONE
    assert believed_result(replace(end, stopped_early=True, last_step=2), bounds).exit_code != ExitCode.DONE


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        ({"last_step": 10**9}, "last_step"),
        ({"first_step_s": 1e12}, "first_step_s"),
        ({"peaks": PeakMemory(allocated_bytes=-1)}, "allocated_bytes"),
        ({"explained_peak_bytes": -1}, "explained_peak_bytes"),
        ({"checkpoint_step": 41}, "checkpoint_step"),
    ],
)
def test_progress_that_cannot_be_true_is_refused(lie: dict[str, object], named: str) -> None:
    with pytest.raises(ContractError, match=named):
        check_progress(replace(PROGRESS, **lie), BOUNDS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "lie",
    [
        {"reason": Reason(code=ReasonCode.COMPLETED)},
        {"reason": Reason(code=ReasonCode.CANCELLED_BY_USER)},
        {"extra_bytes_per_gpu": 2**60},
        {"forecast_extra_bytes_per_gpu": -1},
    ],
)
def test_pressure_has_reasons_of_its_own_and_sane_numbers(lie: dict[str, object]) -> None:
    reason = Reason(code=ReasonCode.WORKER_HUNG)
    good = PressureReport(reason=reason, progress=PROGRESS, extra_bytes_per_gpu=0, forecast_extra_bytes_per_gpu=0)
    check_pressure(good, BOUNDS)
    with pytest.raises(ContractError, match=r"PressureReport"):
        check_pressure(replace(good, **lie), BOUNDS)  # type: ignore[arg-type]


@given(st.floats())
def test_no_number_makes_what_is_no_json(loss: float) -> None:
    text = codec.dumps(values.step_record(1, loss=loss))
    assert "NaN" not in text
    assert "Infinity" not in text
    record = codec.loads(StepRecord, text)
    assert record.loss is None or record.loss == loss
    (folded,) = fold_steps((record, replace(record, rank=1)))
    assert "Infinity" not in codec.dumps(folded)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_time_that_is_no_number_is_refused(number: str) -> None:
    text = codec.dumps(values.step_record(1)).replace('"time_s": 101.0', f'"time_s": {number}')
    assert number in text
    with pytest.raises(ContractError, match="time_s"):
        codec.loads(StepRecord, text)


def test_a_number_that_is_none_in_what_has_no_type_never_comes_out_again() -> None:
    assert codec.encode({"scale": float("inf"), "deep": [{"x": float("nan")}]}) == {
        "scale": None,
        "deep": [{"x": None}],
    }
