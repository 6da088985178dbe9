"""From step telemetry to a judgement: how the attempt goes, and whether its memory will last.

``absorb`` folds new records into a bounded state; ``assess`` reads the state. Both are pure,
so a recorded history can be judged again.

Pressure is one of
- forecast: peaks rise, and the trend (or one more jump like the largest seen) reaches the
  capacity within the horizon, before the run would end;
- usage: the allocator holds more than a safe share of the capacity *and* more than MARP said
  the plan requires (a plan that was predicted to fill the card is not under pressure);
- retries: the allocator had to flush its cache repeatedly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Final

from frenzy.core.lifecycle.trend import Trend, theil_sen
from frenzy.core.runs.protocol import PressureReport, ProgressReport
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.telemetry import Heartbeat, StepPeak, StepRecord, fold_steps
from frenzy.core.values.units import MIB, format_bytes

_HISTORY: Final = 512
_LEAST_RISES: Final = 2
_LEAST_POINTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorPolicy:
    """How the monitor judges.

    settle_steps: first steps of an attempt in which lazily made state still appears.
    window_steps, long_window_steps: peaks a trend is fitted to; the long one sees slow staircases.
    horizon_steps, horizon_s: a forecast further ahead than both is not acted upon yet.
    usage_share: of the capacity. least_rise_share: of the capacity, below which a rise is noise.
    hang_s, hang_steps: silence longer than both (in seconds, in median steps) is a hang.
    startup_s: silence allowed where no step is due: before the first, once all workers run, after the last, and while
    a sign of progress is newer than the last. Any node's sign ends a silence: how long a start takes does not matter.
    """

    settle_steps: int = 2
    window_steps: int = 12
    long_window_steps: int = 48
    horizon_steps: int = 20
    horizon_s: float = 30.0
    usage_share: float = 0.90
    least_rise_share: float = 0.01
    retries_per_window: int = 3
    hang_s: float = 600.0
    hang_steps: float = 20.0
    startup_s: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorState:
    """What is kept of an attempt's telemetry: whole steps, newest last, and a few aggregates.

    pending: records of steps that not all ranks have reported.
    level_bytes: the level that peaks last settled on; rise_steps: steps at which one left it.
    peak_before_rise_bytes: highest peak before the first rise. releases: of a script's libraries.
    """

    num_ranks: int
    steps: tuple[StepPeak, ...] = ()
    pending: tuple[StepRecord, ...] = ()
    num_steps: int = 0
    first_step_s: float | None = None
    peaks: PeakMemory = PeakMemory()
    level_bytes: int = 0
    peak_before_rise_bytes: int = 0
    rise_steps: tuple[int, ...] = ()
    releases: Mapping[str, str] = field(default_factory=dict)

    @property
    def growth_step(self) -> int | None:
        """Where growth set in. One rise alone is a new level (lazy allocation), not growth."""
        return self.rise_steps[0] if len(self.rise_steps) >= _LEAST_RISES else None

    @property
    def explained_peak_bytes(self) -> int:
        """Highest peak before growth set in: what the prediction is held to."""
        return self.peaks.allocated_bytes if self.growth_step is None else self.peak_before_rise_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The judgement: what to report, and what is wrong, if anything."""

    progress: ProgressReport
    pressure: PressureReport | None = None
    hung: Reason | None = None


def absorb(state: MonitorState, records: tuple[StepRecord, ...], policy: MonitorPolicy) -> MonitorState:
    """``state`` with ``records`` folded in; a step counts once, when all its ranks have reported."""
    last_step = state.steps[-1].step if state.steps else 0
    waiting = tuple(each for each in state.pending + records if each.step > last_step)
    ranks_by_step: dict[int, set[int]] = {}
    for record in waiting:
        ranks_by_step.setdefault(record.step, set()).add(record.rank)
    whole = {step for step, ranks in ranks_by_step.items() if len(ranks) >= state.num_ranks}
    done = fold_steps(tuple(record for record in waiting if record.step in whole))
    pending = tuple(record for record in waiting if record.step not in whole)
    for step in done:
        state = _add_step(state, step, policy)
    releases = next((each.releases for each in records if each.releases), state.releases)
    return replace(state, pending=pending[-_HISTORY * state.num_ranks :], releases=releases)


def _add_step(state: MonitorState, step: StepPeak, policy: MonitorPolicy) -> MonitorState:
    number = state.num_steps + 1
    used = step.peaks.allocated_bytes
    level, rise_steps = state.level_bytes, state.rise_steps
    before_rise = state.peak_before_rise_bytes
    if number <= policy.settle_steps:
        level = max(level, used)
    elif used > level + max(policy.least_rise_share * step.capacity_bytes, MIB):
        before_rise = before_rise if rise_steps else state.peaks.allocated_bytes
        level, rise_steps = used, (*rise_steps, step.step)[-_HISTORY:]
    return replace(
        state,
        steps=(*state.steps, step)[-_HISTORY:],
        num_steps=number,
        first_step_s=step.time_s if state.first_step_s is None else state.first_step_s,
        peaks=state.peaks | step.peaks,
        level_bytes=level,
        peak_before_rise_bytes=before_rise,
        rise_steps=rise_steps,
    )


def progress_of(
    records: tuple[StepRecord, ...], *, num_ranks: int, checkpoint_step: int | None, policy: MonitorPolicy
) -> ProgressReport:
    """The account of a whole attempt from all its records: what a watch that missed nothing would report."""
    return _progress(absorb(MonitorState(num_ranks=num_ranks), records, policy), checkpoint_step)


def assess(
    state: MonitorState,
    plan: ResourcePlan,
    *,
    total_steps: int | None,
    now_s: float,
    running_since_s: float | None,
    beat: Heartbeat | None = None,
    checkpoint_step: int | None = None,
    policy: MonitorPolicy,
) -> Assessment:
    """Judge ``state``; ``total_steps`` is the run's last step.

    running_since_s: since when all workers run; None while they do not, which may take any time, or nobody knows.
    beat: the newest sign of progress beside the steps.
    """
    progress = _progress(state, checkpoint_step)
    remaining = _remaining(state, total_steps)
    hung = _hung(state, remaining, now_s, running_since_s, beat, policy)
    if not state.steps or hung is not None:
        return Assessment(progress=progress, hung=hung)
    pressure = None
    if remaining != 0:
        pressure = _pressure(state, plan, remaining, progress, policy)
    return Assessment(progress=progress, pressure=pressure)


def _progress(state: MonitorState, checkpoint_step: int | None) -> ProgressReport:
    if not state.steps:
        return ProgressReport(last_step=0, checkpoint_step=checkpoint_step, releases=state.releases)
    last = state.steps[-1]
    return ProgressReport(
        last_step=last.step,
        last_loss=last.loss,
        step_time_s=median(each.step_time_s for each in state.steps[-32:]),
        first_step_s=state.first_step_s,
        peaks=state.peaks,
        explained_peak_bytes=state.explained_peak_bytes,
        growth_step=state.growth_step,
        checkpoint_step=checkpoint_step,
        releases=state.releases,
    )


def _remaining(state: MonitorState, total_steps: int | None) -> int | None:
    """Steps to come; None when that is not known, as past a total that was only estimated."""
    if total_steps is None or not state.steps or state.steps[-1].step > total_steps:
        return None
    return total_steps - state.steps[-1].step


def _hung(
    state: MonitorState,
    remaining: int | None,
    now_s: float,
    running_since_s: float | None,
    beat: Heartbeat | None,
    policy: MonitorPolicy,
) -> Reason | None:
    if not state.steps and running_since_s is None:
        return None
    allowed_s, last_sign_s = policy.startup_s, running_since_s or 0.0
    if state.steps:
        step_time_s = median(each.step_time_s for each in state.steps[-32:])
        last_sign_s = state.steps[-1].time_s
        allowed_s = max(policy.hang_s, policy.hang_steps * step_time_s)
        if remaining == 0 or (beat is not None and beat.time_s > last_sign_s):  # something large is being saved
            allowed_s = max(allowed_s, policy.startup_s)
    if beat is not None:
        last_sign_s = max(last_sign_s, beat.time_s)
    if now_s - last_sign_s <= allowed_s:
        return None
    silent_s = now_s - last_sign_s
    doing = "" if beat is None else f" The last sign of progress was: {progress_text(beat)}."
    return Reason(
        code=ReasonCode.WORKER_HUNG,
        detail=(
            f"Neither a step nor any progress was reported for {silent_s:.0f} s; at most {allowed_s:.0f} s are allowed."
            f"{doing}"
        ),
    )


def progress_text(beat: Heartbeat) -> str:
    """``beat`` in words: what goes on, and how far it is."""
    return beat.phase if beat.done is None else f"{beat.phase} ({beat.done:,})"


def _pressure(
    state: MonitorState, plan: ResourcePlan, remaining: int | None, progress: ProgressReport, policy: MonitorPolicy
) -> PressureReport | None:
    forecast = _forecast(state, remaining, policy)
    reason = forecast.reason if forecast else _usage(state, plan, policy) or _retries(state, policy)
    if reason is None:
        return None
    seen = max(0, state.steps[-1].peaks.reserved_bytes - plan.memory.peak_allocated_bytes)
    growth = round(forecast.pace * (remaining or 0)) if forecast else 0
    return PressureReport(
        reason=reason, progress=progress, extra_bytes_per_gpu=seen, forecast_extra_bytes_per_gpu=seen + growth
    )


def _trends(state: MonitorState, policy: MonitorPolicy) -> tuple[Trend, ...]:
    """The significant trends of the short and the long window of settled steps.

    The last step of settling is the first that counts.
    """
    num_settled = max(0, state.num_steps - policy.settle_steps + 1)
    settled = state.steps[max(0, len(state.steps) - num_settled) :]
    found: list[Trend] = []
    for width in (policy.window_steps, policy.long_window_steps):
        window = settled[-width:]
        if len(window) < _LEAST_POINTS:
            continue
        trend = theil_sen([(each.step, each.peaks.reserved_bytes) for each in window])
        if trend.significant(policy.least_rise_share * window[-1].capacity_bytes):
            found.append(trend)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forecast:
    """That memory will not last; ``pace``: bytes that a GPU gains a step."""

    reason: Reason
    pace: float


def _forecast(state: MonitorState, remaining: int | None, policy: MonitorPolicy) -> _Forecast | None:
    """A trend reaches the capacity within the horizon, or the next jump would pass it."""
    trends = _trends(state, policy)
    if not trends or not _still_rising(state):
        return None
    last = state.steps[-1]
    believed = [each for each in trends if math.isfinite(each.steps_until(last.capacity_bytes))]
    steps_left = min(
        *(each.steps_until(last.capacity_bytes) for each in believed),
        _steps_until_full(state),
        _steps_until_jump(state, policy),
    )
    if remaining is not None and steps_left > remaining:
        return None
    step_time_s = median(each.step_time_s for each in state.steps[-policy.window_steps :])
    if steps_left > policy.horizon_steps and steps_left * step_time_s > policy.horizon_s:
        return None
    room_bytes = last.capacity_bytes - last.peaks.reserved_bytes
    pace = max(_growth_pace(state), *(each.slope for each in believed), room_bytes / max(steps_left, 1.0))
    reason = Reason(
        code=ReasonCode.MEMORY_PRESSURE_FORECAST,
        detail=(
            f"At step {last.step} a GPU holds {format_bytes(last.peaks.reserved_bytes)} of "
            f"{format_bytes(last.capacity_bytes)} and gains {format_bytes(pace)} a "
            f"step since step {state.growth_step}: full in about {steps_left:.0f} steps."
        ),
    )
    return _Forecast(reason=reason, pace=pace)


def _still_rising(state: MonitorState) -> bool:
    """Whether growth set in and its last rise is as recent as its pace says."""
    if state.growth_step is None:
        return False
    pace = _distance(state.rise_steps[-8:])
    return state.steps[-1].step - state.rise_steps[-1] <= 2 * pace + 1


def _steps_until_full(state: MonitorState) -> float:
    """Steps until the capacity at the pace since growth set in."""
    last, pace = state.steps[-1], _growth_pace(state)
    return (last.capacity_bytes - last.peaks.reserved_bytes) / pace if pace > 0 else float("inf")


def _growth_pace(state: MonitorState) -> float:
    """Bytes gained in each step since growth set in; a trend's window may still hold steps before it."""
    if state.growth_step is None:
        return 0.0
    distance = _distance(state.rise_steps)
    steps = state.steps[-1].step - state.growth_step + distance
    return max(0.0, (state.steps[-1].peaks.allocated_bytes - state.peak_before_rise_bytes) / steps)


def _distance(steps: Sequence[int]) -> float:
    """The median distance of two neighbours."""
    return float(median(b - a for a, b in pairwise(steps)))


def _steps_until_jump(state: MonitorState, policy: MonitorPolicy) -> float:
    """Steps until the jump that would pass the capacity, when growth comes in jumps.

    Jumps are rises above noise; they are taken to recur at their median distance with their
    largest size. Infinite with fewer than two jumps.
    """
    window = state.steps[-policy.long_window_steps :]
    last = window[-1]
    least = max(policy.least_rise_share * last.capacity_bytes / 4, MIB)
    pairs = zip(window, window[1:], strict=False)
    jumps = [
        (b.step, b.peaks.reserved_bytes - a.peaks.reserved_bytes)
        for a, b in pairs
        if b.peaks.reserved_bytes - a.peaks.reserved_bytes > least
    ]
    jumps = [(step, size) for step, size in jumps if step > (state.growth_step or 0) - 1]
    if len(jumps) < 2:
        return float("inf")
    size = max(each[1] for each in jumps)
    distance = _distance([step for step, _ in jumps])
    room = last.capacity_bytes - last.peaks.reserved_bytes
    whole_jumps = max(0, int(room // size))
    return max(0.0, jumps[-1][0] + (whole_jumps + 1) * distance - last.step)


def _usage(state: MonitorState, plan: ResourcePlan, policy: MonitorPolicy) -> Reason | None:
    recent = state.steps[-2:]
    if len(recent) < 2:
        return None
    capacity = recent[-1].capacity_bytes
    allowed = max(policy.usage_share * capacity, float(plan.memory.required_bytes))
    if min(each.peaks.reserved_bytes for each in recent) <= allowed:
        return None
    used = recent[-1].peaks.reserved_bytes
    return Reason(
        code=ReasonCode.MEMORY_PRESSURE_USAGE,
        detail=(
            f"A GPU holds {format_bytes(used)} of {format_bytes(capacity)} ({used / capacity:.0%}); "
            f"the plan was predicted to require {format_bytes(plan.memory.required_bytes)}."
        ),
    )


def _retries(state: MonitorState, policy: MonitorPolicy) -> Reason | None:
    window = state.steps[-policy.window_steps :]
    grown = window[-1].num_alloc_retries - window[0].num_alloc_retries
    if len(window) < 2 or grown < policy.retries_per_window:
        return None
    return Reason(
        code=ReasonCode.ALLOCATOR_RETRIES,
        detail=f"The allocator flushed its cache {grown} times in the last {len(window)} steps.",
    )
