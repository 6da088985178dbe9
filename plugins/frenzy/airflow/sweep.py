"""One sweep: what the ledger wants looked at, looked at, and reported."""

from __future__ import annotations

from typing import Any

from frenzy.adapters import api_calls as api
from frenzy.adapters.api_client import ApiClient
from frenzy.airflow.workers import Workers, workers
from frenzy.core.protocol import SweepFinding, SweepReport, SweepSummary, SweepTarget
from frenzy.ports import WorkersState

_STOP_GRACE_S = 2.0


def sweep_once(client: ApiClient, log: Any) -> SweepSummary:
    """Look at the workers behind every lease, stop those that are to be, and report what was found."""
    targets = client.send(api.sweep_targets())
    findings = tuple(_look(workers(), target, log) for target in targets)
    summary = client.send(api.sweep(SweepReport(findings=findings)))
    for line in summary.lines:
        log.info("%s", line)
    return summary


def _look(reach: Workers, target: SweepTarget, log: Any) -> SweepFinding:
    """What can be proved of one attempt's workers; a launcher that fails proves nothing."""
    try:
        state = reach.launcher.state(target.spec)
        if target.stop and state in (WorkersState.ALIVE, WorkersState.UNKNOWN):
            log.info("Ending the workers of %s attempt %d.", target.run_key, target.attempt)
            reach.launcher.stop(target.spec, grace_s=_STOP_GRACE_S)
        result = reach.runs.result(target.run_key, target.attempt)
    except Exception as error:
        log.warning("The workers of %s attempt %d could not be looked at: %s", target.run_key, target.attempt, error)
        state, result = WorkersState.UNKNOWN, None
    return SweepFinding(run_key=target.run_key, attempt=target.attempt, workers=str(state), result=result)
