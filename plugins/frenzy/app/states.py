"""Changing a run's state, in the one way that is allowed."""

from __future__ import annotations

from dataclasses import replace

from frenzy.app.services import log_event
from frenzy.core.runs.ledger import JobState, RunRecord, check_transition
from frenzy.core.values.errors import Reason
from frenzy.ports import LedgerTx


def move(tx: LedgerTx, run: RunRecord, state: JobState, now_s: float, reason: Reason | None = None) -> RunRecord:
    """Store ``run`` in ``state`` and note it in the history; raises ContractError if not allowed."""
    check_transition(run.state, state)
    if run.state is state and run.reason == reason:
        return run
    changed = replace(run, state=state, reason=reason, updated_s=now_s)
    tx.put_run(changed)
    text = f"{state}: {reason.code}: {reason.sentence}" if reason else str(state)
    log_event(tx, run.run_key, now_s, "state", text, run.num_attempts or None)
    return changed
