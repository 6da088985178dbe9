"""The verdict on a run whose attempt is over, or is to be made over first."""

from __future__ import annotations

import time
from typing import Any, Final

from frenzy.adapters.api_client import ApiClient
from frenzy.airflow.tasks.workers import Workers, workers
from frenzy.api import endpoints as api
from frenzy.core.runs.ledger import Attempt, JobState
from frenzy.core.runs.protocol import EndReport, RunView, Verdict
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import WorkersAccount, WorkersState

_OVER: Final = (WorkersState.GONE, WorkersState.NOT_STARTED)
_PATIENCE_S: Final = 120.0
_STORE_PATIENCE_S: Final = 60.0
_CANCEL_GRACE_S: Final = 2.0


def settled_verdict(client: ApiClient, run_key: str, log: Any) -> Verdict:
    """What follows for the run. Raises TemporaryError when its workers cannot be ended."""
    end_unwatched(client, run_key, log)
    return client.send(api.decide(run_key))


def end_unwatched(client: ApiClient, run_key: str, log: Any) -> None:
    """End what the run's launch task left. Raises TemporaryError when the workers cannot be ended.

    The launch task normally reports the end of its attempt. Where it could not (it was ended by hand, its process
    died, its time was up), its workers are stopped here, at a checkpoint if they may.
    """
    view = client.send(api.run_view(run_key))
    live = next((each for each in view.attempts if each.is_live), None)
    if live is not None and view.run.state is not JobState.PLACED:
        _put_to_rest(client, workers(), view, live, log)


def _put_to_rest(client: ApiClient, reach: Workers, view: RunView, live: Attempt, log: Any) -> None:
    log.warning("Attempt %d has no launch task any more; its workers are ended now.", live.attempt)
    spec = client.send(api.place(live.run_key)).spec
    account = WorkersAccount(state=WorkersState.NOT_STARTED)
    if spec is not None and spec.attempt == live.attempt:
        grace_s = _CANCEL_GRACE_S if view.run.cancel_requested else reach.settings.stop_grace_s
        reach.stop(spec, grace_s=grace_s, reason=view.run.reason if view.run.cancel_requested else None, log=log)
        account = _wait_until_gone(reach, spec, time.monotonic() + grace_s + _PATIENCE_S)
    result = reach.result(live.run_key, live.attempt, log, until_s=time.monotonic() + _STORE_PATIENCE_S)
    detail = "The launch task ended before its workers did."
    reason = Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail) if result is None else None
    report = EndReport(result=result, reason=account.reason or reason, lost_nodes=account.lost_nodes)
    client.send(api.end(live.run_key, live.attempt, report))
    reach.launcher.remove(live.run_key, live.attempt)


def _wait_until_gone(reach: Workers, spec: LaunchSpec, deadline_s: float) -> WorkersAccount:
    while (account := reach.launcher.account(spec)).state not in _OVER:
        if time.monotonic() > deadline_s:
            raise TemporaryError(Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS), retry_after_s=_PATIENCE_S)
        time.sleep(reach.settings.poll_s)
    return account
