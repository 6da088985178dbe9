"""Queueing a run for its next attempt, and telling it where it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.app.plan_listing import next_plans
from frenzy.app.preparing import with_data
from frenzy.app.schedule_pass import run_pass
from frenzy.app.services import Services, live_attempt, require_run
from frenzy.app.states import move
from frenzy.core.lifecycle.disruptions import LOSS_REASONS
from frenzy.core.lifecycle.moves import MOVE_REASONS
from frenzy.core.lifecycle.reschedule import final_state, follow_up
from frenzy.core.runs.ledger import (
    FINAL_STATES,
    Attempt,
    JobState,
    NextAttempt,
    QueueEntry,
    RunRecord,
    since_registered,
)
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.protocol import PlaceStatus, PlaceView
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import LedgerTx

# Attempts that ended for them count against no budget of failures.
_NO_FAILURES: Final = MOVE_REASONS | LOSS_REASONS | {ReasonCode.REHEARSED}


def enqueue(services: Services, run_key: str) -> PlaceView:
    """Put the run into the queue for its next attempt and run a pass.

    Repeated calls are harmless: a queued or placed run stays as it is.
    """
    now_s, saved_step = services.clock.now_s(), _saved_before(services, run_key)
    with services.ledger.transaction() as tx:
        run = require_run(tx, run_key)
        if tx.queue_entry(run_key) is None and live_attempt(tx, run_key) is None and not run.cancel_requested:
            _enqueue_next(tx, services, run, now_s, saved_step)
            run_pass(tx, services, now_s)
        return _place_view(tx, services, run_key)


def place_status(services: Services, run_key: str) -> PlaceView:
    """Where the run stands in the queue, or where it was placed."""
    with services.ledger.reading() as tx:
        return _place_view(tx, services, run_key)


def _saved_before(services: Services, run_key: str) -> int | None:
    """The step of the newest checkpoint that attempts before a clear have left.

    Asked outside the transaction: it may take a store far away to know.
    """
    with services.ledger.reading() as tx:
        run = require_run(tx, run_key)
    goes_on = run.state is JobState.RECOVERING
    return services.runs.newest_checkpoint(run_key) if run.num_attempts and not goes_on else None


def _enqueue_next(tx: LedgerTx, services: Services, run: RunRecord, now_s: float, saved_step: int | None) -> None:
    if run.state in FINAL_STATES and run.state is not JobState.FAILED_NO_RESOURCE:
        run = move(tx, replace(run, num_reschedules=0), JobState.QUEUED, now_s)
    run = with_data(tx, run, run.prepared, now_s)
    following = next_attempt_of(tx, run, None if run.stale_checkpoints else saved_step)
    if isinstance(following, Reason):
        move(tx, run, final_state(following), now_s, following)
        return
    choice = next_plans(tx, services, run, following)
    if choice.candidates:
        run = replace(run, plan_table=tx.put_plan_table(choice.candidates))
    if choice.refusal is not None:
        tx.put_run(run)
        move(tx, run, choice.final_state, now_s, choice.refusal)
        return
    if following.previous is not None and following.reason.code not in _NO_FAILURES:
        run = replace(run, num_reschedules=run.num_reschedules + 1)
    move(tx, run, JobState.QUEUED, now_s, following.reason if following.previous else None)
    tx.put_queue_entry(
        QueueEntry(
            run_key=run.run_key,
            submitted_s=run.created_s,
            enqueued_s=now_s,
            plans=choice.plans,
            next_attempt=choice.following,
            ordered=choice.ordered,
        )
    )


def next_attempt_of(tx: LedgerTx, run: RunRecord, saved_step: int | None = None) -> NextAttempt | Reason:
    """The next attempt's facts; attempts of earlier generations (before a clear) only give its number.

    saved_step: of their newest checkpoint; None where the run trains something else now.
    """
    attempts = since_registered(run, tx.attempts(run.run_key))
    recovering = run.state is JobState.RECOVERING
    if attempts and recovering:
        return follow_up(run, attempts)
    return NextAttempt(
        attempt=run.num_attempts + 1,
        reason=Reason(code=ReasonCode.BEST_PLAN, detail=_why_it_begins(run, saved_step)),
        checkpoint_step=saved_step,
    )


def _why_it_begins(run: RunRecord, saved_step: int | None) -> str:
    if not run.num_attempts:
        return "First attempt."
    return "Started again, without a checkpoint." if not saved_step else f"Resumed from step {saved_step}."


def _place_view(tx: LedgerTx, services: Services, run_key: str) -> PlaceView:
    run = require_run(tx, run_key)
    live = live_attempt(tx, run_key)
    spec = None if live is None else without_masked(launch_spec(tx, services, run, live), run)
    if run.cancel_requested or run.state is JobState.CANCELLED:
        return PlaceView(run_key=run_key, status=PlaceStatus.CANCELLED, reason=run.reason, spec=spec)
    if live is not None:
        return PlaceView(run_key=run_key, status=PlaceStatus.PLACED, reason=run.reason, spec=spec)
    entry = tx.queue_entry(run_key)
    if entry is not None:
        return PlaceView(
            run_key=run_key,
            status=PlaceStatus.WAITING,
            reason=entry.hold,
            position=entry.position,
            expected_start_s=entry.expected_start_s,
        )
    return PlaceView(run_key=run_key, status=PlaceStatus.REFUSED, reason=run.reason)


def launch_spec(tx: LedgerTx, services: Services, run: RunRecord, attempt: Attempt) -> LaunchSpec:
    """The specification for the workers of ``attempt``."""
    cluster = tx.cluster()
    return LaunchSpec(
        run_key=run.run_key,
        attempt=attempt.attempt,
        job=run.job,
        plan=attempt.plan,
        gpu=cluster.types_by_name[attempt.plan.gpu_type],
        placement=attempt.placement,
        run_dir=services.runs.run_dir(run.run_key),
        nodes=cluster.nodes_of(attempt.placement),
        masked=run.masked,
        prepared=run.prepared,
    )
