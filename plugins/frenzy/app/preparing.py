"""The data of a run are prepared before it queues for GPUs, and what was prepared is frozen."""

from __future__ import annotations

from dataclasses import replace

from frenzy.app.queries import view_of
from frenzy.app.services import Services, log_event, require_run
from frenzy.app.states import move
from frenzy.core.lifecycle.evidence import believed_reason
from frenzy.core.lifecycle.reschedule import final_state
from frenzy.core.runs.ledger import FINAL_STATES, JobState, Preparation, RunRecord, since_registered
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.protocol import DirectiveKind, PreparedReport, PreparingDirective, PreparingReport, RunView
from frenzy.core.runs.steps import steps_of
from frenzy.core.values.errors import ContractError, Reason, ReasonCode
from frenzy.core.values.prepared_data import PreparedData, PreparingSpec
from frenzy.core.values.telemetry import Heartbeat, printable
from frenzy.ports import LedgerTx

_BEFORE_THE_QUEUE = frozenset({JobState.PLANNED, JobState.PREPARING})
_OWN_CODES = frozenset({ReasonCode.BAD_CONFIG_OR_DATA, ReasonCode.DATA_NOT_PREPARED})
_LONGEST_PHASE = 200
# In the place of a digest: no specification brings those data back.
_OTHER_DATA = "data"
_MOST_DONE = 10**18


def preparing(services: Services, run_key: str, report: PreparingReport) -> PreparingDirective:
    """The run's data are being prepared: how far, and whether to go on. Repeatable.

    One whose data could not be prepared starts over with a report that begins: its task was cleared.
    """
    now_s = services.clock.now_s()
    with services.ledger.transaction() as tx:
        run = require_run(tx, run_key)
        if not _may_prepare(tx, run, report):
            over = run.cancel_requested or run.state in FINAL_STATES
            return PreparingDirective(kind=DirectiveKind.KILL if over else DirectiveKind.ENDED, reason=run.reason)
        if run.state is not JobState.PREPARING:
            run = move(tx, run, JobState.PREPARING, now_s, run.reason if run.state is JobState.PLANNED else None)
        known = _noted(tx, run_key, report, now_s)
    spec = PreparingSpec(
        run_key=run_key,
        number=known.number,
        job=run.job,
        run_dir=services.runs.run_dir(run_key),
        masked=run.masked,
    )
    return PreparingDirective(kind=DirectiveKind.CONTINUE, spec=spec if report.begins else None)


def prepared(services: Services, run_key: str, report: PreparedReport) -> RunView:
    """The run's data are prepared, and frozen; or they cannot be, which ends the run. The first account stands.

    Raises ContractError for what cannot be true of its data.
    """
    now_s = services.clock.now_s()
    with services.ledger.transaction() as tx:
        run = require_run(tx, run_key)
        if run.state is JobState.PREPARING and report.prepared is not None:
            _freeze(tx, run, report.prepared, now_s)
        elif run.state is JobState.PREPARING:
            give_up(tx, run, report.reason, now_s)
        return view_of(tx, require_run(tx, run_key))


def give_up(tx: LedgerTx, run: RunRecord, why: Reason | None, now_s: float) -> RunRecord:
    """End ``run``, whose data nobody prepares any more."""
    reason = _named(without_masked(why, run) if why is not None else None)
    return move(tx, run, final_state(reason), now_s, reason)


def with_data(tx: LedgerTx, run: RunRecord, found: PreparedData | None, now_s: float) -> RunRecord:
    """``run`` as it trains on ``found``, or on what its workers prepare; checkpoints of other data are stale."""
    before = run.prepared_before
    if run.stale_checkpoints:
        return replace(run, prepared=found)
    if before is not None and (found is None or (found.digest, found.tokenizer) != (before.digest, before.tokenizer)):
        text = "The data have changed since its checkpoints were saved; it starts anew."
        log_event(tx, run.run_key, now_s, "data", text)
        run = replace(run, stale_checkpoints=_OTHER_DATA)
    return replace(run, prepared=found, prepared_before=None)


def _may_prepare(tx: LedgerTx, run: RunRecord, report: PreparingReport) -> bool:
    if run.cancel_requested or run.prepared is not None:
        return False
    if run.state in _BEFORE_THE_QUEUE:
        return run.state is JobState.PREPARING or report.begins
    failed = run.state in FINAL_STATES and run.reason is not None and run.reason.code in _OWN_CODES
    return report.begins and failed and not since_registered(run, tx.attempts(run.run_key))


def _noted(tx: LedgerTx, run_key: str, report: PreparingReport, now_s: float) -> Preparation:
    before = tx.preparations([run_key]).get(run_key)
    known = before or Preparation(run_key=run_key, number=0, begun_s=now_s, seen_s=now_s)
    if report.begins and (report.found is None or report.found != known.number):
        known = Preparation(run_key=run_key, number=known.number + 1, begun_s=now_s, seen_s=now_s)
    known = replace(known, seen_s=now_s, progress=_believed(report.progress, now_s) or known.progress)
    tx.put_preparation(known)
    return known


def _believed(sign: Heartbeat | None, now_s: float) -> Heartbeat | None:
    """``sign``, as a process wrote it that reads what users give: within bounds, and fit to be shown."""
    if sign is None:
        return None
    done = None if sign.done is None else max(0, min(sign.done, _MOST_DONE))
    return Heartbeat(phase=printable(sign.phase)[:_LONGEST_PHASE], time_s=now_s, done=done)


def _freeze(tx: LedgerTx, run: RunRecord, found: PreparedData, now_s: float) -> None:
    found.check()
    steps = steps_of(run.job.training, num_sequences=found.num_train)
    if found.total_steps != steps:
        raise ContractError(f"PreparedData.total_steps: {found.total_steps}, but the job has {steps}")
    planned = move(tx, with_data(tx, run, found, now_s), JobState.PLANNED, now_s, run.reason)
    tx.put_run(replace(planned, total_steps=steps))
    text = f"The data are prepared: {found.num_tokens:,} tokens, {found.num_train:,} sequences, {steps:,} steps."
    log_event(tx, run.run_key, now_s, "data", text)


def _named(why: Reason | None) -> Reason:
    """What ends the run: what is wrong with the data, or that they were not prepared, and why."""
    remedy = "Clear the run's task prepare: it goes on with what is there already."
    if why is None:
        detail = "The task prepare ended before the data were prepared."
        return Reason(code=ReasonCode.DATA_NOT_PREPARED, detail=detail, remedy=remedy)
    why = believed_reason(why)
    if why.code in _OWN_CODES:
        return replace(why, remedy=why.remedy or remedy) if why.code is ReasonCode.DATA_NOT_PREPARED else why
    detail = f"The data could not be prepared: {why.code}: {why.sentence}"
    return Reason(code=ReasonCode.DATA_NOT_PREPARED, detail=detail, remedy=why.remedy or remedy)
