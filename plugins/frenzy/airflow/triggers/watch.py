"""The watch over one attempt: read its telemetry, judge it, report it, obey the answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, Final

from frenzy.adapters.api_client import AsyncApiClient
from frenzy.airflow.failures import said
from frenzy.airflow.tasks.workers import Workers
from frenzy.api import endpoints as api
from frenzy.core.lifecycle.evidence import believed, bounds_of
from frenzy.core.lifecycle.monitor import Assessment, MonitorPolicy, MonitorState, absorb, assess, progress_text
from frenzy.core.lifecycle.signs import Signs, heard
from frenzy.core.runs.ledger import Attempt
from frenzy.core.runs.protocol import Directive, DirectiveKind, PressureReport, ProgressReport, RunView
from frenzy.core.values.errors import Reason
from frenzy.core.values.launch import Control, ControlAction, LaunchSpec
from frenzy.core.values.telemetry import SAVING, Heartbeat, StepRecord
from frenzy.core.values.units import format_bytes
from frenzy.ports import TelemetryCursor

# A report is due when something changed, but not more often; a directive is learned as fast as this. Near the
# attempt's end each look reports: the ledger's answer tells when it has ended.
_REPORT_S: Final = 2.0
# An end that takes longer, for a large model to be saved, is told of soon enough at the usual times.
_NEAR_S: Final = 20.0
_HEARTBEATS_PER_LEASE: Final = 3.0
_KILL_GRACE_S: Final = 2.0
_LOG_S: Final = 10.0
# A checkpoint that should be there is looked for, in a listing, at every so many looks.
_LOOKS_PER_CHECKPOINT: Final = 5
# Decoded in a second or two; more, of all attempts at once, would hold up a triggerer's other triggers.
_MANY_RECORDS: Final = 20_000
# By which the workers' pace is known, and when they did the last. They are among the newest, which are one object.
_AGAIN_STEPS: Final = 16


def untold(attempt: Attempt) -> TelemetryCursor:
    """From where telemetry is read anew: of many records, from a little before the last that the ledger was told of."""
    is_long = attempt.last_step * attempt.plan.num_gpus > _MANY_RECORDS
    since = max(0, attempt.last_step - _AGAIN_STEPS)
    steps = tuple((rank, since) for rank in range(attempt.plan.num_gpus)) if is_long else ()
    return replace(TelemetryCursor.start(len(attempt.placement.allocations)), steps=steps)


class Watch:
    """One attempt under watch. ``look`` is called again and again until ``ended``."""

    def __init__(self, *, spec: LaunchSpec, view: RunView, workers: Workers, client: AsyncApiClient, log: Any) -> None:
        (attempt,) = (each for each in view.attempts if each.attempt == spec.attempt)
        self.ended = not attempt.is_live
        self._spec, self._workers, self._client, self._log = spec, workers, client, log
        self._policy = MonitorPolicy(hang_s=workers.settings.hang_s, startup_s=workers.settings.startup_s)
        self._signs = Signs()
        self._listened_s = float("-inf")
        # What was known at the last look; the newest sign's own time, and when this watch saw that it was new. The
        # first sign is its own beginning.
        self._known: tuple[int, Heartbeat | None] | None = None
        self._sign_s, self._news_s = time.time(), time.monotonic()
        self._run, self._attempt = view.run, attempt
        self._total_steps = view.run.total_steps
        self._started_s = attempt.started_s or time.time()
        self._running_since_s: float | None = None
        self._asked_s = float("-inf")
        self._cursor = untold(attempt)
        self._is_late, self._has_news = bool(self._cursor.steps), False
        self._state = MonitorState(num_ranks=spec.plan.num_gpus)
        if self._is_late and attempt.peaks is not None:
            # Steps in which it holds less are no rise.
            self._state = replace(self._state, peaks=attempt.peaks, level_bytes=attempt.peaks.allocated_bytes)
        self._checkpoint_step: int | None = None
        self._num_looks = 0
        self._reported_s = self._logged_s = float("-inf")
        self._judged: tuple[int, Reason | None] = (-1, None)
        self._stop_by_s: float | None = None
        self._near_since_s: float | None = None
        self._killed = self._has_doubted = False

    async def look(self) -> None:
        """Read what is new and tell the ledger if it is time. Raises FrenzyError when that fails."""
        await asyncio.to_thread(self._read)
        judgement = assess(
            self._state,
            self._spec.plan,
            total_steps=self._total_steps,
            now_s=self._now_s(),
            running_since_s=self._running_since_s,
            beat=self._signs.newest,
            checkpoint_step=self._checkpoint_step,
            policy=self._policy,
        )
        pressure = self._pressure(judgement)
        if pressure is not None or self._report_is_due():
            await self._obey(await self._tell(pressure, judgement.progress))
        await self._insist()

    def summary(self) -> dict[str, Any]:
        """What the monitor task leaves in its XCom."""
        progress = self._state
        return {
            "attempt": self._spec.attempt,
            "steps_seen": progress.num_steps,
            "measured_peak_bytes": progress.peaks.allocated_bytes,
            "explained_peak_bytes": progress.explained_peak_bytes,
            "predicted_peak_bytes": self._spec.plan.memory.peak_allocated_bytes,
            "growth_step": progress.growth_step,
        }

    def _read(self) -> None:
        page = self._workers.runs.telemetry(self._spec.run_key, self._spec.attempt, self._cursor)
        self._state = absorb(self._state, self._believed(page.records), self._policy)
        self._cursor, self._has_news = page.cursor, page.cursor != self._cursor
        if self._may_have_checkpoint():
            self._checkpoint_step = self._workers.runs.newest_checkpoint(self._spec.run_key)
        if self._is_quiet():
            self._listen()
        self._note_news()
        if self._may_hang_at_start():
            self._asked_s = time.monotonic()
            self._running_since_s = self._workers.launcher.account(self._spec).running_since_s

    def _note_news(self) -> None:
        known = (self._state.num_steps, self._signs.newest)
        if self._known not in (None, known):
            times = [each.time_s for each in (*self._state.steps[-1:], self._signs.newest) if each is not None]
            self._sign_s, self._news_s = max(times), time.monotonic()
        self._known = known

    def _now_s(self) -> float:
        """The time; not further from the newest sign than this watch has waited: a clock may be set, and sleeps."""
        return min(time.time(), self._sign_s + time.monotonic() - self._news_s)

    def _may_have_checkpoint(self) -> bool:
        """Whether one should be there that is not known. At the first look there may be those of earlier attempts."""
        self._num_looks += 1
        last_step = self._state.steps[-1].step if self._state.steps else 0
        asked = self._spec.job.checkpoint
        every = 1 if asked.every_minutes is not None else asked.every_steps
        is_due = last_step // every > (self._checkpoint_step or 0) // every
        return self._num_looks == 1 or (is_due and self._num_looks % _LOOKS_PER_CHECKPOINT == 0)

    def _believed(self, records: tuple[StepRecord, ...]) -> tuple[StepRecord, ...]:
        """Those that can be true; the first look at others is told of."""
        found = believed(records, bounds_of(self._run, self._attempt, time.time()))
        if found.problem is not None and not self._has_doubted:
            self._log.warning("%d records of telemetry are dropped, the first: %s", found.num_dropped, found.problem)
            self._has_doubted = True
        return found.records

    def _is_quiet(self) -> bool:
        """Whether no step came for a while, so that signs of progress tell more."""
        last_sign_s = self._state.steps[-1].time_s if self._state.steps else self._started_s
        return time.time() - last_sign_s > _LOG_S and time.monotonic() - self._listened_s >= _LOG_S

    def _listen(self) -> None:
        self._listened_s = time.monotonic()
        num_nodes = len(self._spec.placement.allocations)
        found = self._workers.runs.heartbeats(self._spec.run_key, self._spec.attempt, num_nodes=num_nodes)
        bounds, before = bounds_of(self._run, self._attempt, time.time()), self._signs.newest
        self._signs = heard(self._signs, found, bounds, num_steps=self._state.num_steps, now_s=time.time())
        if self._signs.newest is not None and self._signs.newest != before:
            self._log.info("No step for now. Going on: %s.", progress_text(self._signs.newest))

    def _may_hang_at_start(self) -> bool:
        """Whether a start takes so long that it must be known since when all workers run: they may only wait."""
        if self._is_late or self._state.steps or self._running_since_s is not None:
            return False
        if time.monotonic() - self._asked_s < _LOG_S:
            return False
        return time.time() - self._started_s > self._policy.startup_s

    def _pressure(self, judgement: Assessment) -> PressureReport | None:
        """What is wrong, once for each new step (or finding), and not once the workers are asked to stop."""
        if self._stop_by_s is not None or self._killed:
            return None
        found = judgement.pressure
        if judgement.hung is not None and not self._has_news:  # else there may be newer records yet to read
            found = PressureReport(
                reason=judgement.hung,
                progress=judgement.progress,
                extra_bytes_per_gpu=0,
                forecast_extra_bytes_per_gpu=0,
            )
        code = None if found is None else found.reason
        now = (judgement.progress.last_step, code)
        if found is None or (now == self._judged and not self._report_is_due()):
            return None
        self._judged = now
        return found

    def _report_is_due(self) -> bool:
        if self._end_is_near():
            return True
        interval_s = min(_REPORT_S, self._workers.settings.lease_s / _HEARTBEATS_PER_LEASE)
        return time.monotonic() - self._reported_s >= interval_s

    def _end_is_near(self) -> bool:
        """Whether the workers were asked to stop or did their last step a short while ago: what follows waits for this
        watch's end.
        """
        did_last_step = bool(self._state.steps) and self._state.steps[-1].step == self._total_steps
        if not did_last_step and self._stop_by_s is None:
            return False
        if self._near_since_s is None:
            self._near_since_s = time.monotonic()
        return time.monotonic() - self._near_since_s < _NEAR_S

    async def _tell(self, pressure: PressureReport | None, progress: ProgressReport) -> Directive:
        key, attempt = self._spec.run_key, self._spec.attempt
        if pressure is not None:
            self._log.info("Pressure at step %d. %s", progress.last_step, said(pressure.reason))
        call = api.progress(key, attempt, progress) if pressure is None else api.pressure(key, attempt, pressure)
        directive = await self._client.send(call, patience_s=10.0)
        self._reported_s = time.monotonic()
        self._log_progress(progress)
        return directive

    def _log_progress(self, progress: ProgressReport) -> None:
        if time.monotonic() - self._logged_s < _LOG_S or not self._state.steps:
            return
        self._logged_s = time.monotonic()
        last = self._state.steps[-1]
        self._log.info(
            "Step %d of %s, loss %s, memory %s of %s (predicted %s).",
            last.step,
            self._total_steps,
            "not a number" if last.loss is None else f"{last.loss:.4f}",
            format_bytes(self._state.peaks.allocated_bytes),
            format_bytes(last.capacity_bytes),
            format_bytes(self._spec.plan.memory.peak_allocated_bytes),
        )

    async def _obey(self, directive: Directive) -> None:
        if directive.kind is DirectiveKind.ENDED:
            self.ended = True
        elif directive.kind is DirectiveKind.KILL:
            await self._kill(_KILL_GRACE_S, directive.reason)
        elif directive.kind is DirectiveKind.CHECKPOINT_AND_STOP and self._stop_by_s is None:
            await self._ask_to_stop(directive.reason)

    async def _ask_to_stop(self, reason: Reason | None) -> None:
        if reason is None:
            return
        self._log.info("Asking the workers for a checkpoint and their end. %s", said(reason))
        control = Control(action=ControlAction.CHECKPOINT_AND_STOP, reason=reason)
        await asyncio.to_thread(self._workers.runs.put_control, self._spec.run_key, self._spec.attempt, control)
        # They look once a step.
        step_time_s = self._state.steps[-1].step_time_s if self._state.steps else 0.0
        self._stop_by_s = time.monotonic() + 2 * step_time_s + self._workers.settings.stop_grace_s

    async def _insist(self) -> None:
        """End workers that were asked to stop and did not. Time for a checkpoint is as long as it grows, to a limit."""
        now = time.monotonic()
        if self._stop_by_s is None or now <= self._stop_by_s:
            return
        if now > self._stop_by_s + self._policy.startup_s or not await asyncio.to_thread(self._saves_on):
            await self._kill(self._workers.settings.stop_grace_s, None)

    def _saves_on(self) -> bool:
        """Whether the workers still write a checkpoint, as far as their signs tell."""
        grace_s = self._workers.settings.stop_grace_s
        if time.monotonic() - self._listened_s >= min(grace_s, _LOG_S):
            self._listen()
        sign, silence_s = self._signs.newest, max(grace_s, 2 * _LOG_S)
        return sign is not None and sign.phase.startswith(SAVING) and time.time() - sign.time_s <= silence_s

    async def _kill(self, grace_s: float, reason: Reason | None) -> None:
        if self._killed:
            return
        self._log.info("Ending the workers. %s", "They did not stop in time." if reason is None else said(reason))
        await asyncio.to_thread(self._workers.stop, self._spec, grace_s=grace_s, reason=reason, log=self._log)
        self._killed = True
