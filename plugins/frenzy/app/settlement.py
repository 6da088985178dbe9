"""An attempt ends: its GPUs are released, its lesson is kept, and it is decided what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from frenzy.app.observe import merge_progress
from frenzy.app.place import next_attempt_of
from frenzy.app.plan_listing import next_plans
from frenzy.app.preparing import give_up
from frenzy.app.queries import view_of
from frenzy.app.schedule_pass import run_pass
from frenzy.app.script_releases import with_releases
from frenzy.app.services import Services, live_attempt, log_event, require_attempt, require_run
from frenzy.app.states import move
from frenzy.core.lifecycle.disruptions import with_node_of_rank
from frenzy.core.lifecycle.evidence import believed_end, bounds_of
from frenzy.core.lifecycle.reschedule import DONE_REASONS, MEMORY_REASONS, OUT_OF_MEMORY, classify, final_state
from frenzy.core.planning.script_plans import REHEARSAL_STEPS
from frenzy.core.runs.ledger import (
    FINAL_STATES,
    Attempt,
    CalibrationSample,
    JobState,
    LeaseState,
    RunRecord,
)
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.protocol import EndReport, RunView, Verdict, VerdictKind
from frenzy.core.runs.script_key import script_key
from frenzy.core.runs.steps import steps_are_estimated
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.values.launch import AttemptResult
from frenzy.ports import LedgerTx

# The first steps of an attempt are not its pace: kernels are chosen and memory is reserved.
_LEAST_STEPS: Final = 8


def end_attempt(services: Services, run_key: str, attempt: int, report: EndReport) -> RunView:
    """The attempt's workers are gone: store its outcome, release its GPUs, run a pass.

    Repeated calls are harmless; the first account stands.
    """
    now_s = services.clock.now_s()
    with services.ledger.transaction() as tx:
        record = require_attempt(tx, run_key, attempt)
        if record.is_live:
            settle(tx, services, record, report, now_s)
            run_pass(tx, services, now_s)
        return view_of(tx, require_run(tx, run_key))


def settle(tx: LedgerTx, services: Services, record: Attempt, report: EndReport, now_s: float) -> None:
    """End ``record`` in the ledger and release its lease; the caller runs the pass.

    Only what can be true of the attempt is kept of ``report``.
    """
    run = require_run(tx, record.run_key)
    report = believed_end(without_masked(report, run), record, bounds_of(run, record, now_s))
    if report.progress is not None:
        record = merge_progress(record, report.progress)
    if report.result is not None and report.result.total_steps > 0:
        counted = report.result.total_steps
        if steps_are_estimated(run) and counted != run.total_steps and not report.result.stopped_early:
            text = f"The data make {counted} steps; {run.total_steps} were estimated before the tokens were counted."
            log_event(tx, run.run_key, now_s, "data", text, record.attempt)
        run = replace(run, total_steps=counted)
        tx.put_run(run)
    record = with_releases(tx, services, run, record, _releases(report), now_s)
    outcome = _outcome(run, record, report)
    lost = with_node_of_rank(
        report.lost_nodes,
        record.placement.allocations,
        code=outcome.code,
        failing_rank=None if report.result is None else report.result.first_failing_rank,
    )
    ended = replace(_with_result(record, report.result), ended_s=now_s, outcome=outcome, lost_nodes=lost)
    tx.put_attempt(ended)
    release(tx, run.run_key, record.attempt, outcome, now_s)
    log_event(tx, run.run_key, now_s, "end", f"Attempt ended: {outcome.code}: {outcome.sentence}", record.attempt)
    _learn(tx, run, ended, services.predictor_versions, now_s)
    _move_on(tx, run, outcome, now_s)


def _outcome(run: RunRecord, record: Attempt, report: EndReport) -> Reason:
    outcome = classify(report.result, record.stop_reason, report.reason)
    if run.cancel_requested and outcome.code not in DONE_REASONS:
        return run.reason or Reason(code=ReasonCode.CANCELLED_BY_USER)
    return outcome


def _with_result(record: Attempt, result: AttemptResult | None) -> Attempt:
    if result is None:
        return record
    return replace(
        record,
        result=result,
        last_step=max(record.last_step, result.last_step),
        last_loss=record.last_loss if result.final_loss is None else result.final_loss,
        checkpoint_step=record.checkpoint_step if result.checkpoint_step is None else result.checkpoint_step,
    )


def release(tx: LedgerTx, run_key: str, attempt: int, reason: Reason, now_s: float) -> None:
    """End the attempt's lease, if it still holds anything."""
    lease = tx.lease(run_key, attempt)
    if lease is not None and lease.state is not LeaseState.ENDED:
        tx.put_lease(replace(lease, state=LeaseState.ENDED, ended_s=now_s, end_reason=reason))


def _releases(report: EndReport) -> Mapping[str, str]:
    """As the workers' account has them; of workers that left none, as they said them while they ran."""
    found = {} if report.result is None else report.result.releases
    return found or ({} if report.progress is None else report.progress.releases)


def _learn(tx: LedgerTx, run: RunRecord, ended: Attempt, versions: Mapping[str, str], now_s: float) -> None:
    """Keep predicted against measured, if the attempt ran at all and held nothing but the job.

    What a user's callback holds is no error of the model, and nobody can tell it from one. A script whose model nobody
    names is measured for its own next runs, by as many steps as a rehearsal has at least; what a whole run grew by, the
    next one needs too. One that names its model may hold what no model predicts.
    """
    key, censored = script_key(run), _model_fell_short(ended)
    if run.job.training.callbacks or (run.job.workload is not None and not key):
        return
    if not _began_to_train(ended) and not (key and censored):
        return
    is_whole = ended.outcome is not None and ended.outcome.code in DONE_REASONS
    if key and not is_whole and not censored and _num_steps(ended) < REHEARSAL_STEPS:
        return
    explained = ended.measured_peak_bytes if key and is_whole else ended.explained_peak_bytes
    measured = ended.plan.gpu_memory_bytes if censored else explained
    if not measured:
        return
    gpu = tx.cluster().types_by_name.get(ended.plan.gpu_type)
    tx.add_sample(
        CalibrationSample(
            run_key=run.run_key,
            attempt=ended.attempt,
            time_s=now_s,
            family=key or str((run.model_config or {}).get("model_type", "unknown")),
            gpu_type=ended.plan.gpu_type,
            plan=ended.plan,
            predicted_bytes=0 if key else ended.plan.memory.model_peak_bytes,
            measured_bytes=measured,
            censored=censored,
            versions=versions,
            kind=None if gpu is None else gpu.kind,
            adapters=run.job.training.lora is not None,
            peaks=ended.peaks,
            step_time_s=ended.step_time_s if _num_steps(ended) >= _LEAST_STEPS else None,
            is_whole=is_whole,
        )
    )


def _num_steps(ended: Attempt) -> int:
    return ended.last_step - (ended.next_attempt.checkpoint_step or 0)


def _model_fell_short(ended: Attempt) -> bool:
    """The attempt ran out of memory by itself: no growth explains it."""
    if ended.outcome is None or ended.outcome.code not in OUT_OF_MEMORY:
        return False
    return ended.growth_step is None


def _began_to_train(ended: Attempt) -> bool:
    """Before that, something else may hold the card's memory."""
    return ended.result is None or ended.result.total_steps > 0


def _move_on(tx: LedgerTx, run: RunRecord, outcome: Reason, now_s: float) -> None:
    if run.state in FINAL_STATES:
        return
    if outcome.code in DONE_REASONS | {ReasonCode.CANCELLED_BY_USER}:
        move(tx, run, final_state(outcome), now_s, outcome)
    else:
        move(tx, run, JobState.RECOVERING, now_s, outcome)


def decide(services: Services, run_key: str) -> Verdict:
    """What follows for the run: done, another attempt, or failure. May be asked again.

    Raises TemporaryError while workers of the last attempt are not yet proved gone.
    """
    now_s = services.clock.now_s()
    with services.ledger.transaction() as tx:
        run = require_run(tx, run_key)
        if run.state is JobState.PREPARING:  # its task died, and with it what comes after
            return _verdict_of(give_up(tx, run, None, now_s))
        live = live_attempt(tx, run_key)
        settled = run if live is None else _give_up_launch(tx, services, run, live, now_s)
        if settled is not None:
            recovering = settled.state is JobState.RECOVERING
            return _follow(tx, services, settled, now_s) if recovering else _verdict_of(settled)
    raise TemporaryError(
        Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS)
    )  # outside the transaction, which keeps the order to end the workers


def _give_up_launch(tx: LedgerTx, services: Services, run: RunRecord, live: Attempt, now_s: float) -> RunRecord | None:
    """The launch task ended without ending its attempt: end it if no worker can exist.

    None when workers may exist: they are to be ended, whoever sees them.
    """
    if run.state is JobState.PLACED:  # it had not come to the job's part of it yet
        never = Reason(code=ReasonCode.LEASE_EXPIRED, detail="The launch task ended before it started any worker.")
        settle(tx, services, live, EndReport(reason=never), now_s)
        run_pass(tx, services, now_s)
        return require_run(tx, run.run_key)
    if live.stop_reason is None:
        reason = Reason(code=ReasonCode.LAUNCH_FAILED, detail="The launch task ended without a result.")
        tx.put_attempt(replace(live, stop_reason=reason))
    return None


def _follow(tx: LedgerTx, services: Services, run: RunRecord, now_s: float) -> Verdict:
    following = next_attempt_of(tx, run)
    if isinstance(following, Reason):
        ended = move(tx, run, _failed_state(run, following), now_s, following)
        return _verdict_of(ended)
    choice = next_plans(tx, services, run, following)
    if choice.refusal is not None:
        return _verdict_of(move(tx, run, choice.final_state, now_s, choice.refusal))
    return Verdict(kind=VerdictKind.RETRY, reason=following.reason, next_attempt=following)


def _failed_state(run: RunRecord, reason: Reason) -> JobState:
    """A spent budget ends the run in the state of what it was spent on."""
    spent_on_memory = run.reason is not None and run.reason.code in MEMORY_REASONS
    if reason.code is ReasonCode.RESCHEDULE_BUDGET_SPENT and spent_on_memory:
        return JobState.FAILED_OOM
    return final_state(reason)


def _verdict_of(run: RunRecord) -> Verdict:
    reason = run.reason or Reason(code=ReasonCode.WORKERS_LOST)
    if run.state is JobState.SUCCEEDED:
        return Verdict(kind=VerdictKind.DONE, reason=reason)
    if run.state in FINAL_STATES:
        return Verdict(kind=VerdictKind.FAIL, reason=reason)
    return Verdict(kind=VerdictKind.RETRY, reason=reason)
