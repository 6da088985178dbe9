"""What ``frenzy down`` leaves: the jobs that have not ended, read from the ledger once Airflow is stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frenzy.core.runs.ledger import ACTIVE_STATES, RunRecord

if TYPE_CHECKING:
    from frenzy.cli.embedded.stack import Stack
    from frenzy.ports import RunStore


def left_jobs(stack: Stack) -> tuple[str, ...]:
    """One line for each job that has not ended: where it stands, and how it goes on."""
    from frenzy.adapters.connection_settings import extras_in
    from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger
    from frenzy.cli.embedded.airflow_env import CONNECTION_VARIABLE
    from frenzy.settings import LauncherKind, load_settings
    from frenzy.wiring import run_store

    environ = stack.environment()
    settings = load_settings(environ, extras_in(json.loads(environ[CONNECTION_VARIABLE]).get("extra")))
    ledger = SqlLedger.at(environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    runs = run_store(settings)
    try:
        with ledger.reading() as tx:
            left = tx.runs(states=ACTIVE_STATES)
            running = {lease.run_key for lease in tx.held_leases()}
    finally:
        ledger.close()
    in_pods = settings.launcher is LauncherKind.KUBERNETES
    return tuple(
        f"{run.job.name}: {_stand(run, _checkpoints(runs, run), run.run_key in running, in_pods)}" for run in left
    )


def _checkpoints(runs: RunStore, run: RunRecord) -> Sequence[int]:
    return () if run.stale_checkpoints else runs.checkpoint_steps(run.run_key)


def _stand(run: RunRecord, checkpoints: Sequence[int], is_running: bool, in_pods: bool) -> str:
    if is_running and in_pods:
        return "its pods train on"
    if checkpoints:
        of = f" of {run.total_steps}" if run.total_steps else ""
        return f"checkpoint at step {max(checkpoints)}{of}"
    return "no checkpoint yet, begins anew" if is_running else "waits"
