"""Cancelling a run in whatever phase it is."""

from __future__ import annotations

from dataclasses import replace

from frenzy.app.queries import view_of
from frenzy.app.schedule_pass import run_pass
from frenzy.app.services import Services, live_attempt, require_run
from frenzy.app.settlement import settle
from frenzy.app.states import move
from frenzy.core.runs.ledger import FINAL_STATES, JobState, RunRecord
from frenzy.core.runs.protocol import EndReport, RunView
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.ports import LedgerTx


def cancel(services: Services, run_key: str, reason: Reason) -> RunView:
    """Take the run out of the queue at once, or ask for its workers' end; frees GPUs when proved.

    A run that has ended stays as it is.
    """
    now_s = services.clock.now_s()
    with services.ledger.transaction() as tx:
        run = require_run(tx, run_key)
        if run.state not in FINAL_STATES:
            cancel_in(tx, services, run, reason, now_s)
            run_pass(tx, services, now_s)
        return view_of(tx, require_run(tx, run_key))


def cancel_in(tx: LedgerTx, services: Services, run: RunRecord, reason: Reason, now_s: float) -> None:
    """The same, inside a transaction; the caller runs the pass."""
    because = Reason(code=ReasonCode.CANCELLED_BY_USER, detail=reason.detail)
    run = replace(run, cancel_requested=True, reason=because, updated_s=now_s)
    tx.put_run(run)
    tx.drop_queue_entry(run.run_key)
    live = live_attempt(tx, run.run_key)
    if live is None:
        move(tx, replace(run, reason=None), JobState.CANCELLED, now_s, because)
    elif _never_launched(run):
        settle(tx, services, live, EndReport(reason=because), now_s)
    else:
        tx.put_attempt(replace(live, stop_reason=because))


def _never_launched(run: RunRecord) -> bool:
    """PLACED: the launch task has not yet asked whether it may start workers, and will be refused."""
    return run.state is JobState.PLACED
