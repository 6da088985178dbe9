"""What the tasks and triggers report of an attempt, and what the ledger wants of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from frenzy.app.place import launch_spec
from frenzy.app.plan_listing import next_plans
from frenzy.app.schedule_pass import run_pass
from frenzy.app.script_releases import is_news, with_releases
from frenzy.app.services import Services, candidates_of, log_event, require_attempt, require_run
from frenzy.app.states import move
from frenzy.core.lifecycle.evidence import believed_reason, bounds_of, check_pressure, check_progress
from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.lifecycle.reschedule import KILLING_REASONS, follow_up
from frenzy.core.planning.script_plans import REHEARSAL_STEPS
from frenzy.core.runs.ledger import Attempt, JobState, Lease, LeaseState, RunRecord, since_registered
from frenzy.core.runs.protocol import AttemptStarted, Directive, DirectiveKind, PressureReport, ProgressReport
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.units import format_bytes
from frenzy.ports import LeasedAttempt, LedgerTx

_T = TypeVar("_T")
_Change = Callable[[LedgerTx, RunRecord, Attempt, float], Attempt]


def attempt_launching(services: Services, run_key: str, attempt: int) -> Directive:
    """The launch task is about to start the workers: CONTINUE with their spec, or KILL / ENDED: do not.

    Before any can be, checkpoints of something else are removed.
    """
    stale = _clear_stale_checkpoints(services, run_key, attempt)

    def change(tx: LedgerTx, run: RunRecord, record: Attempt, now_s: float) -> Attempt:
        if _may_begin(run, record):
            if stale:
                run = replace(run, stale_checkpoints="", prepared_before=None)
            move(tx, run, JobState.STARTING, now_s)
        return record

    directive = _report(services, run_key, attempt, change)
    if directive.kind in (DirectiveKind.KILL, DirectiveKind.ENDED):
        return directive
    with services.ledger.reading() as tx:
        spec = launch_spec(tx, services, require_run(tx, run_key), require_attempt(tx, run_key, attempt))
    return replace(directive, spec=spec)


def _clear_stale_checkpoints(services: Services, run_key: str, attempt: int) -> bool:
    """Whether there were any. Outside a transaction: a store far away takes its time, and a repeated call goes on."""
    with services.ledger.reading() as tx:
        run, record = require_run(tx, run_key), require_attempt(tx, run_key, attempt)
    if not run.stale_checkpoints or not _may_begin(run, record):
        return False
    services.runs.clear_checkpoints(run_key)
    return True


def _may_begin(run: RunRecord, record: Attempt) -> bool:
    return record.is_live and run.state is JobState.PLACED and not run.cancel_requested


def attempt_started(services: Services, run_key: str, attempt: int, message: AttemptStarted) -> Directive:
    """The workers were started and can be found by ``launcher_ref``."""

    def change(tx: LedgerTx, run: RunRecord, record: Attempt, now_s: float) -> Attempt:
        log_event(tx, run_key, now_s, "launch", f"Workers started ({message.launcher_ref}).", attempt)
        return replace(record, launcher_ref=message.launcher_ref, started_s=record.started_s or now_s)

    return _report(services, run_key, attempt, change)


def report_progress(services: Services, run_key: str, attempt: int, message: ProgressReport) -> Directive:
    """Store how far the attempt is; renews its lease. Raises ContractError for what cannot be true of it.

    A report that changes nothing else does not wait for the ledger's writers.
    """
    directive = _heartbeat(services, run_key, attempt, message)
    if directive is not None:
        return directive

    def change(tx: LedgerTx, run: RunRecord, record: Attempt, now_s: float) -> Attempt:
        check_progress(message, bounds_of(run, record, now_s))
        changed = _progressed(tx, services, run, record, message, now_s)
        return _end_rehearsal(tx, changed, now_s) if _is_rehearsed(tx, run, changed) else changed

    return _report(services, run_key, attempt, change)


def report_pressure(services: Services, run_key: str, attempt: int, message: PressureReport) -> Directive:
    """The monitor wants the run moved: agreed if another plan is left and it ran long enough.

    A hang is no question of plans: the workers are ended and the run recovers. Raises ContractError for what
    cannot be true of the attempt.
    """

    def change(tx: LedgerTx, run: RunRecord, record: Attempt, now_s: float) -> Attempt:
        check_pressure(message, bounds_of(run, record, now_s))
        reason = believed_reason(message.reason)
        record = _progressed(tx, services, run, record, message.progress, now_s)
        if reason.code in KILLING_REASONS:
            return replace(record, stop_reason=record.stop_reason or reason)
        if record.stop_reason is not None:
            return record
        asked = replace(
            record,
            stop_reason=reason,
            stop_asked_s=now_s,
            extra_bytes_per_gpu=message.extra_bytes_per_gpu,
            forecast_extra_bytes_per_gpu=message.forecast_extra_bytes_per_gpu,
        )
        refusal = _refusal_to_move(tx, services, run, asked, now_s)
        if refusal is not None:
            _note_once(tx, run_key, attempt, refusal, now_s)
            return record
        move(tx, _fresh(tx, run_key), JobState.CHECKPOINTING, now_s, reason)
        return asked

    return _report(services, run_key, attempt, change)


def directive_of(run: RunRecord, attempt: Attempt) -> Directive:
    """What the ledger wants of ``attempt`` now."""
    if not attempt.is_live:
        return Directive(kind=DirectiveKind.ENDED, reason=attempt.outcome)
    if run.cancel_requested:
        return Directive(kind=DirectiveKind.KILL, reason=run.reason)
    if attempt.stop_reason is not None:
        kind = DirectiveKind.KILL if attempt.stop_reason.code in KILLING_REASONS else DirectiveKind.CHECKPOINT_AND_STOP
        return Directive(kind=kind, reason=attempt.stop_reason)
    return Directive(kind=DirectiveKind.CONTINUE)


def _report(services: Services, run_key: str, attempt: int, change: _Change) -> Directive:
    now_s = services.clock.now_s()
    with services.ledger.transaction() as tx:
        run, record = require_run(tx, run_key), require_attempt(tx, run_key, attempt)
        if record.is_live:
            last_heartbeat_s = _renew(tx, services, run_key, attempt, now_s)
            changed = change(tx, run, record, now_s)
            if changed != record:
                tx.put_attempt(changed)
            if _has_become_movable(record, changed, services.elastic, last_heartbeat_s, now_s):
                run_pass(tx, services, now_s)
            run, record = _fresh(tx, run_key), require_attempt(tx, run_key, attempt)
        return directive_of(run, record)


def _heartbeat(services: Services, run_key: str, attempt: int, message: ProgressReport) -> Directive | None:
    """The answer to a report that only says how far the attempt is; None where it does, or might do, more."""
    now_s = services.clock.now_s()
    with services.ledger.reading() as tx:
        run, record, lease = require_run(tx, run_key), require_attempt(tx, run_key, attempt), tx.lease(run_key, attempt)
        if not record.is_live:
            return directive_of(run, record)
        check_progress(message, bounds_of(run, record, now_s))
        progressed = merge_progress(record, message)
        needs_more = _begins(run, message) or _is_rehearsed(tx, run, progressed) or is_news(record, message.releases)
    if lease is None or lease.state is not LeaseState.LIVE or needs_more:
        return None
    if _has_become_movable(record, progressed, services.elastic, lease.heartbeat_s, now_s):
        return None
    before = LeasedAttempt(attempt=record, lease=lease)
    after = LeasedAttempt(attempt=progressed, lease=_renewed(lease, services, now_s))
    return directive_of(run, record) if services.ledger.renew(before, after) else None


def _is_rehearsed(tx: LedgerTx, run: RunRecord, record: Attempt) -> bool:
    """Whether a rehearsal has shown what it was made for, and another plan may be better than to go on.

    One after which the same plan had to be rehearsed again goes on: its stops are counted by no budget.
    """
    if not record.plan.memory.is_rehearsal or record.stop_reason is not None or not record.explained_peak_bytes:
        return False
    before = record.next_attempt
    was_same = before.previous is not None and before.previous.shape == record.plan.shape
    if before.reason.code is ReasonCode.REHEARSED and was_same:
        return False
    steps = record.last_step - (record.next_attempt.checkpoint_step or 0)
    if steps < REHEARSAL_STEPS:
        return False
    return bool(run.job.workload is not None and run.job.workload.honours) or any(
        each.feasible and each.plan.gpu_type != record.plan.gpu_type for each in candidates_of(tx, run)
    )


def _end_rehearsal(tx: LedgerTx, record: Attempt, now_s: float) -> Attempt:
    taken = format_bytes(record.explained_peak_bytes or 0)
    detail = f"{record.plan.plan_id} took {taken} in its first {record.last_step} steps; plans are made with that."
    reason = Reason(code=ReasonCode.REHEARSED, detail=detail)
    move(tx, _fresh(tx, record.run_key), JobState.CHECKPOINTING, now_s, reason)
    return replace(record, stop_reason=reason, stop_asked_s=now_s)


def _begins(run: RunRecord, message: ProgressReport) -> bool:
    """Whether this is the first step that is reported."""
    return bool(message.last_step) and run.state in (JobState.PLACED, JobState.STARTING)


def _has_become_movable(
    before: Attempt, after: Attempt, rules: ElasticRules, last_heartbeat_s: float, now_s: float
) -> bool:
    """Whether the attempt has just done its first step, or has by now run for the least time between two moves."""
    if not rules.enabled or not after.last_step or after.first_step_s is None:
        return False
    return not before.last_step or last_heartbeat_s < after.first_step_s + rules.min_run_s <= now_s


def _fresh(tx: LedgerTx, run_key: str) -> RunRecord:
    return require_run(tx, run_key)


def _renew(tx: LedgerTx, services: Services, run_key: str, attempt: int, now_s: float) -> float:
    """Renew the lease; when its heartbeat before this one came."""
    lease = tx.lease(run_key, attempt)
    if lease is None or lease.state is LeaseState.ENDED:
        return now_s
    tx.put_lease(_renewed(lease, services, now_s))
    return lease.heartbeat_s


def _renewed(lease: Lease, services: Services, now_s: float) -> Lease:
    return replace(lease, state=LeaseState.LIVE, heartbeat_s=now_s, expires_s=now_s + services.lease_s)


def _progressed(
    tx: LedgerTx, services: Services, run: RunRecord, record: Attempt, message: ProgressReport, now_s: float
) -> Attempt:
    if _begins(run, message):
        move(tx, run, JobState.RUNNING, now_s)
        log_event(tx, run.run_key, now_s, "progress", f"Training: step {message.last_step} is done.", record.attempt)
    record = with_releases(tx, services, run, record, message.releases, now_s)
    return merge_progress(record, message)


def merge_progress(record: Attempt, message: ProgressReport) -> Attempt:
    """``record`` with what ``message`` knows; a field that the message leaves out is kept.

    Not so the loss of an earlier step: a newer step without one has diverged. A message may know of less than was told
    before: a monitor that was started anew, or the account of an attempt's end.
    """
    if message.last_step < record.last_step:
        message = replace(
            message, last_step=record.last_step, last_loss=record.last_loss, step_time_s=record.step_time_s
        )
    known_loss = None if message.last_step > record.last_step else record.last_loss
    return replace(
        record,
        last_step=message.last_step,
        last_loss=_first_known(message.last_loss, known_loss),
        step_time_s=_first_known(message.step_time_s, record.step_time_s),
        first_step_s=_first_known(record.first_step_s, message.first_step_s),
        peaks=message.peaks | record.peaks if message.peaks and record.peaks else message.peaks or record.peaks,
        explained_peak_bytes=_explained_peak_bytes(record, message),
        growth_step=_first_known(record.growth_step, message.growth_step),
        checkpoint_step=_first_known(message.checkpoint_step, record.checkpoint_step),
    )


def _explained_peak_bytes(record: Attempt, message: ProgressReport) -> int | None:
    """The highest peak before growth set in, of the one who saw it do so first."""
    if record.growth_step is None and message.growth_step is not None:
        return message.explained_peak_bytes
    if record.growth_step is not None:
        return record.explained_peak_bytes
    known = [each for each in (record.explained_peak_bytes, message.explained_peak_bytes) if each is not None]
    return max(known, default=None)


def _first_known(first: _T | None, second: _T | None) -> _T | None:
    return second if first is None else first


def _refusal_to_move(tx: LedgerTx, services: Services, run: RunRecord, asked: Attempt, now_s: float) -> Reason | None:
    """Why a forecast move is not worth making now; None when it is."""
    if not run.job.on_memory_pressure.forecast:
        return Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="on_memory_pressure.forecast is off.")
    if not run.job.can_move:
        return Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="workload.resumable is false.")
    running_s = now_s - (asked.first_step_s or now_s)
    if running_s < run.job.on_memory_pressure.min_run_s:
        return Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="on_memory_pressure.min_run_s is not over.")
    return _nowhere_to_go(tx, services, run, asked)


def _nowhere_to_go(tx: LedgerTx, services: Services, run: RunRecord, asked: Attempt) -> Reason | None:
    attempts = since_registered(run, tx.attempts(run.run_key))
    supposed = tuple(
        replace(asked, outcome=asked.stop_reason) if each.attempt == asked.attempt else each for each in attempts
    )
    following = follow_up(run, supposed)
    if isinstance(following, Reason):
        return following
    return next_plans(tx, services, run, following).refusal


def _note_once(tx: LedgerTx, run_key: str, attempt: int, refusal: Reason, now_s: float) -> None:
    text = f"Not moved: {refusal.code}: {refusal.sentence}"
    if not any(event.text == text and event.attempt == attempt for event in tx.events(run_key)):
        log_event(tx, run_key, now_s, "pressure", text, attempt)
