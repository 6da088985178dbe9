"""One reconciliation: what the ledger wants looked at, looked at, and reported."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from frenzy.adapters.api_client import ApiClient, NotFoundError
from frenzy.airflow.tasks.workers import Workers, workers
from frenzy.api import endpoints as api
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import ReconcileFinding, ReconcileReport, ReconcileSummary, ReconcileTarget
from frenzy.ports import WorkersAccount, WorkersState

_STOP_GRACE_S = 2.0
# For a store that throttles, of all attempts together.
_STORE_PATIENCE_S = 30.0


def reconcile_once(client: ApiClient, log: Any) -> ReconcileSummary:
    """Look at the workers behind every lease, stop those that are to be, and report what was found."""
    targets = client.send(api.reconcile_targets())
    until_s = time.monotonic() + _STORE_PATIENCE_S
    findings = tuple(_look(workers(), target, log, until_s) for target in targets)
    summary = client.send(api.reconcile(ReconcileReport(findings=findings)))
    for line in summary.lines:
        log.info("%s", line)
    _remove_strays(client, workers(), targets, log)
    _stop_preparers(client, workers(), log)
    return summary


def _look(reach: Workers, target: ReconcileTarget, log: Any, until_s: float) -> ReconcileFinding:
    """What can be proved of one attempt's workers; a launcher that fails proves nothing.

    until_s: how long the result of workers that are gone is tried to be read, as time.monotonic() tells it.
    """
    try:
        account = reach.launcher.account(target.spec)
        if target.stop and account.state is not WorkersState.GONE:  # none may be started any more, either
            log.info("Ending the workers of %s attempt %d.", target.run_key, target.attempt)
            reach.launcher.stop(target.spec, grace_s=_STOP_GRACE_S)
    except Exception as error:
        log.warning("The workers of %s attempt %d could not be looked at: %s", target.run_key, target.attempt, error)
        account = WorkersAccount(state=WorkersState.UNKNOWN)
    until_s = until_s if account.state is WorkersState.GONE else 0.0
    return ReconcileFinding(
        run_key=target.run_key,
        attempt=target.attempt,
        workers=str(account.state),
        result=reach.result(target.run_key, target.attempt, log, until_s=until_s),
        reason=account.reason,
        lost_nodes=account.lost_nodes,
    )


def _remove_strays(client: ApiClient, reach: Workers, targets: Iterable[ReconcileTarget], log: Any) -> None:
    """Remove what is left of attempts that this ledger has ended; of runs it does not know, nothing."""
    watched = {(each.run_key, each.attempt) for each in targets}
    try:
        strays = [each for each in reach.launcher.remains() if each not in watched]
        for run_key, attempt in strays:
            if _has_ended(client, run_key, attempt):
                log.info("Removing what is left of %s attempt %d.", run_key, attempt)
                reach.launcher.remove(run_key, attempt)
    except Exception as error:
        log.warning("What is left of ended attempts could not be removed: %s", error)


def _stop_preparers(client: ApiClient, reach: Workers, log: Any) -> None:
    """End what prepares the data of runs that this ledger knows and that need them no more: its task died."""
    try:
        for run_key in reach.preparer.remains():
            if not _is_preparing(client, run_key):
                log.info("Ending what prepares the data of %s.", run_key)
                reach.preparer.stop(run_key)
    except Exception as error:
        log.warning("What prepares data for nobody could not be ended: %s", error)


def _is_preparing(client: ApiClient, run_key: str) -> bool:
    try:
        return client.send(api.run_view(run_key)).run.state is JobState.PREPARING
    except NotFoundError:
        return True  # another installation's


def _has_ended(client: ApiClient, run_key: str, attempt: int) -> bool:
    try:
        view = client.send(api.run_view(run_key))
    except NotFoundError:
        return False
    return any(each.attempt == attempt and not each.is_live for each in view.attempts)
