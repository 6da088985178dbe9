"""The monitor warns early, keeps quiet when nothing rises, and tells growth from a level."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frenzy.core.lifecycle.monitor import Assessment, MonitorPolicy, MonitorState, absorb, assess
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan
from frenzy.core.values.telemetry import Heartbeat, StepRecord
from frenzy.core.values.units import MIB
from frenzy.settings import Settings

CAPACITY = 600 * MIB
POLICY = MonitorPolicy()


def plan(peak_bytes: int = 200 * MIB, required_bytes: int = 240 * MIB) -> ResourcePlan:
    return ResourcePlan(
        gpu_type="small",
        num_gpus=1,
        dp=1,
        tp=1,
        zero_stage=2,
        micro_batch_size=4,
        accumulation_steps=2,
        activation_checkpointing=False,
        memory=MemoryPrediction(
            peak_allocated_bytes=peak_bytes, required_bytes=required_bytes, host_bytes=0, at="backward"
        ),
        gpu_memory_bytes=CAPACITY,
        step_time_s=1.0,
        samples_per_s=8.0,
        predicted_run_s=100.0,
        predicted_cost=0.0,
    )


def record(step: int, peak: float, rank: int = 0, retries: int = 0) -> StepRecord:
    return StepRecord(
        rank=rank,
        step=step,
        time_s=1000.0 + step,
        loss=3.0,
        step_time_s=1.0,
        tokens_per_s=100.0,
        peaks=PeakMemory(allocated_bytes=int(peak), reserved_bytes=int(peak), device_used_bytes=int(peak)),
        capacity_bytes=CAPACITY,
        num_alloc_retries=retries,
    )


def judged(
    peaks: list[float],
    *,
    total_steps: int = 10_000,
    first_step: int = 1,
    now_s: float | None = None,
    beat: Heartbeat | None = None,
) -> Assessment:
    state = MonitorState(num_ranks=1)
    for step, peak in enumerate(peaks, start=first_step):
        state = absorb(state, (record(step, peak),), POLICY)
    return assess(
        state,
        plan(),
        total_steps=total_steps,
        now_s=1000.0 + len(peaks) + first_step if now_s is None else now_s,
        running_since_s=1000.0,
        beat=beat,
        policy=POLICY,
    )


def first_alarm(peaks: list[float], **kwargs: int) -> int | None:
    for count in range(1, len(peaks) + 1):
        if judged(peaks[:count], **kwargs).pressure is not None:
            return count
    return None


def test_releases_that_come_with_the_first_step_are_in_every_later_report() -> None:
    releases = {"transformers": "4.44.2"}
    state = absorb(MonitorState(num_ranks=1), (replace(record(1, 1.0), releases=releases),), POLICY)
    later = absorb(state, (record(2, 1.0),), POLICY)
    judgement = assess(later, plan(), total_steps=9, now_s=1000.0, running_since_s=1000.0, policy=POLICY)
    assert judgement.progress.releases == releases


def test_a_level_run_is_never_under_pressure() -> None:
    noise = np.random.default_rng(0).normal(0, 1.0 * MIB, 400)
    peaks = [300 * MIB + float(each) for each in noise]
    assert first_alarm(peaks) is None


def test_linear_growth_is_forecast_before_the_capacity_is_reached() -> None:
    peaks = [200 * MIB + step * 8 * MIB for step in range(50)]
    alarm = first_alarm(peaks)
    assert alarm is not None
    assert peaks[alarm - 1] < CAPACITY
    report = judged(peaks[:alarm]).pressure
    assert report is not None
    assert report.reason.code is ReasonCode.MEMORY_PRESSURE_FORECAST
    assert report.extra_bytes_per_gpu == peaks[alarm - 1] - 200 * MIB
    assert report.forecast_extra_bytes_per_gpu > report.extra_bytes_per_gpu


@pytest.mark.parametrize("every", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("jump_mib", [12, 40, 90])
def test_growth_in_jumps_is_forecast_before_the_capacity_is_reached(every: int, jump_mib: int) -> None:
    peaks = [200 * MIB + (step // every) * jump_mib * MIB for step in range(400)]
    bursts = next(index for index, peak in enumerate(peaks) if peak > CAPACITY)
    alarm = first_alarm(peaks[:bursts])
    assert alarm is not None, "the alarm must come before the budget bursts"


def test_growth_that_stops_far_below_the_capacity_is_left_alone() -> None:
    peaks = [200 * MIB + min(step, 20) * 2 * MIB for step in range(200)]
    assert first_alarm(peaks) is None


def test_a_late_growth_is_told_at_its_own_pace() -> None:
    """The steps are quick, so the alarm comes when the pace since the first rise is next to nothing."""
    peaks = [20.0 * MIB] * 11 + [30.0 * MIB] * 489 + [30.0 * MIB + step * 4 * MIB for step in range(1, 141)]
    state = MonitorState(num_ranks=1)
    for step, peak in enumerate(peaks, start=1):
        state = absorb(state, (dataclasses.replace(record(step, peak), step_time_s=0.15),), POLICY)
        now = assess(
            state, plan(20 * MIB), total_steps=1500, now_s=1000.0 + step, running_since_s=1000.0, policy=POLICY
        )
        if now.pressure is not None:
            break
    assert now.pressure is not None and step < len(peaks) - 20
    assert now.pressure.forecast_extra_bytes_per_gpu > 2 * MIB * (1500 - step)


def test_the_drift_of_a_process_that_plays_a_gpu_is_no_growth() -> None:
    capacity = 72 * MIB
    state = MonitorState(num_ranks=1)
    for step, peak, step_time_s in _history("virtual_gpu_drift.csv"):
        told = dataclasses.replace(record(int(step), peak), step_time_s=step_time_s, capacity_bytes=capacity)
        state = absorb(state, (told,), POLICY)
        now = assess(
            state,
            plan(8 * MIB, 15 * MIB),
            total_steps=400,
            now_s=1000.0 + step,
            running_since_s=1000.0,
            policy=POLICY,
        )
        assert now.pressure is None


def _history(name: str) -> list[list[float]]:
    lines = (Path(__file__).parents[3] / "data" / "lifecycle" / name).read_text(encoding="utf-8").splitlines()
    return [[float(each) for each in line.split(",")] for line in lines if line[0].isdigit()]


def test_growth_that_outlasts_the_run_is_left_alone() -> None:
    peaks = [200 * MIB + step * 4 * MIB for step in range(40)]
    assert first_alarm(peaks, total_steps=45) is None


def test_a_plan_predicted_to_fill_the_card_is_not_under_pressure_for_filling_it() -> None:
    state = MonitorState(num_ranks=1)
    for step in range(1, 30):
        state = absorb(state, (record(step, 0.95 * CAPACITY),), POLICY)
    full = plan(peak_bytes=int(0.95 * CAPACITY), required_bytes=int(0.97 * CAPACITY))
    found = assess(state, full, total_steps=100, now_s=1030.0, running_since_s=1000.0, policy=POLICY)
    assert found.pressure is None


def test_usage_above_the_safe_share_and_the_prediction_is_pressure() -> None:
    report = judged([300 * MIB] + [0.95 * CAPACITY] * 3).pressure
    assert report is not None
    assert report.reason.code is ReasonCode.MEMORY_PRESSURE_USAGE


def test_repeated_cache_flushes_are_pressure() -> None:
    state = MonitorState(num_ranks=1)
    for step in range(1, 10):
        state = absorb(state, (record(step, 300 * MIB, retries=step),), POLICY)
    report = assess(state, plan(), total_steps=100, now_s=1010.0, running_since_s=1000.0, policy=POLICY).pressure
    assert report is not None
    assert report.reason.code is ReasonCode.ALLOCATOR_RETRIES


def test_the_peak_before_growth_is_kept_apart_from_the_peak_after_it() -> None:
    progress = judged([200 * MIB] * 10 + [200 * MIB + n * 30 * MIB for n in range(1, 6)]).progress
    assert progress.growth_step == 11
    assert progress.explained_peak_bytes == 200 * MIB
    assert progress.peaks is not None
    assert progress.peaks.allocated_bytes == 350 * MIB


def test_one_lazy_allocation_is_a_new_level_and_counts_as_explained() -> None:
    progress = judged([150 * MIB] + [200 * MIB] * 20).progress
    assert progress.growth_step is None
    assert progress.explained_peak_bytes == 200 * MIB


def test_a_step_counts_once_all_ranks_have_reported_it_whatever_the_order() -> None:
    state = absorb(MonitorState(num_ranks=2), (record(1, 5.0, rank=0),), POLICY)
    assert state.steps == ()
    state = absorb(state, (record(2, 6.0, rank=1), record(1, 7.0, rank=1)), POLICY)
    assert [each.step for each in state.steps] == [1]
    assert state.steps[0].peaks.allocated_bytes == 7


def test_silence_is_a_hang_only_after_the_allowed_time() -> None:
    assert judged([1.0] * 5, now_s=1005.0 + POLICY.hang_s).hung is None
    hung = judged([1.0] * 5, now_s=1006.0 + POLICY.hang_s).hung
    assert hung is not None
    assert hung.code is ReasonCode.WORKER_HUNG


@pytest.mark.parametrize(
    ("running_since_s", "hangs"), [(None, False), (5000.0 - POLICY.startup_s, False), (4999.0 - POLICY.startup_s, True)]
)
def test_a_start_takes_its_time_from_when_all_workers_run(running_since_s: float | None, hangs: bool) -> None:
    found = assess(
        MonitorState(num_ranks=1),
        plan(),
        total_steps=100,
        now_s=5000.0,
        running_since_s=running_since_s,
        policy=POLICY,
    )
    assert (found.hung is not None) is hangs


@pytest.mark.parametrize(
    ("beat_s", "hangs"), [(4999.0 - POLICY.startup_s, True), (5000.0 - POLICY.startup_s, False), (4999.0, False)]
)
def test_a_start_that_shows_progress_may_take_any_time(beat_s: float, hangs: bool) -> None:
    found = assess(
        MonitorState(num_ranks=1),
        plan(),
        total_steps=100,
        now_s=5000.0,
        running_since_s=1.0,
        beat=Heartbeat(phase="tokenising", time_s=beat_s, done=12_000),
        policy=POLICY,
    )
    assert (found.hung is not None) is hangs
    assert found.hung is None or "tokenising (12,000)" in found.hung.sentence


def test_a_checkpoint_that_is_being_saved_is_no_hang() -> None:
    later_s = 1006.0 + POLICY.hang_s
    assert judged([1.0] * 5, now_s=later_s).hung is not None
    assert judged([1.0] * 5, now_s=later_s, beat=Heartbeat(phase="saving", time_s=1100.0)).hung is None
    older = Heartbeat(phase="loading the weights", time_s=1000.0)
    assert judged([1.0] * 5, now_s=later_s, beat=older).hung is not None


@pytest.mark.parametrize(("silent_s", "hangs"), [(POLICY.startup_s, False), (POLICY.startup_s + 1, True)])
def test_a_save_between_steps_may_be_silent_for_as_long_as_a_start(silent_s: float, hangs: bool) -> None:
    saving = Heartbeat(phase="saving", time_s=1100.0)
    assert POLICY.hang_s < POLICY.startup_s
    assert (judged([1.0] * 5, now_s=1100.0 + silent_s, beat=saving).hung is not None) is hangs


def test_the_settings_defaults_are_the_policys() -> None:
    settings = Settings()
    assert (settings.hang_s, settings.startup_s) == (POLICY.hang_s, POLICY.startup_s)


def test_the_last_step_is_never_under_pressure() -> None:
    peaks = [200 * MIB + step * 30 * MIB for step in range(12)]
    assert judged(peaks, total_steps=12).pressure is None


@settings(max_examples=40, deadline=None)
@given(chunks=st.lists(st.integers(1, 7), min_size=1, max_size=10))
def test_folding_in_pieces_equals_folding_at_once(chunks: list[int]) -> None:
    records = tuple(record(step, 100 * MIB + step * MIB) for step in range(1, sum(chunks) + 1))
    at_once = absorb(MonitorState(num_ranks=1), records, POLICY)
    in_pieces, start = MonitorState(num_ranks=1), 0
    for size in chunks:
        in_pieces = absorb(in_pieces, records[start : start + size], POLICY)
        start += size
    assert dataclasses.asdict(in_pieces) == dataclasses.asdict(at_once)


def test_a_total_that_was_only_estimated_does_not_end_the_watch() -> None:
    peaks = [200.0 * MIB + 20 * MIB * step for step in range(14)]
    assert judged(peaks, total_steps=14).pressure is None
    assert judged(peaks, total_steps=8).pressure is not None


def test_saving_the_model_after_the_last_step_is_no_hang() -> None:
    later_s = 1006.0 + POLICY.hang_s
    assert judged([1.0] * 5, total_steps=5, now_s=later_s).hung is None
    assert judged([1.0] * 5, total_steps=5, now_s=1006.0 + POLICY.startup_s).hung is not None
