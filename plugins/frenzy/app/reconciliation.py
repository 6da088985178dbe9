"""Reconciliation: the ledger against Airflow, the workers and the inventory.

Everything here is also done by whoever causes it; reconciliation is for those who died before.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from frenzy.app.cancellation import cancel_in
from frenzy.app.inventory import refresh_inventory
from frenzy.app.place import launch_spec
from frenzy.app.schedule_pass import run_pass
from frenzy.app.services import Services, log_event, require_attempt, require_run
from frenzy.app.settlement import settle
from frenzy.core.runs.ledger import FINAL_STATES, Attempt, JobState, Lease, LeaseState, RunRecord
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.protocol import EndReport, ReconcileFinding, ReconcileReport, ReconcileSummary, ReconcileTarget
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import FrenzyError, Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Start
from frenzy.ports import LedgerTx, WorkersState

log = logging.getLogger(__name__)

# A placed attempt whose workers never came keeps its GPUs for so many lease times when its launch task is over, and
# for so long while that task is still to come: an executor may have to wait for a machine to run it on.
_PATIENCE_LEASES = 4.0
_LAUNCH_PATIENCE_S = 3600.0


def reconcile_targets(services: Services) -> tuple[ReconcileTarget, ...]:
    """Refresh the inventory, mend the pools, end what Airflow has ended, mark overdue leases; what to look at.

    An inventory that cannot tell, as with a mistake in the cluster file, keeps no GPUs from being freed.
    """
    now_s, cluster = services.clock.now_s(), _inventory(services)
    with services.ledger.transaction() as tx:
        if cluster is not None:
            refresh_inventory(tx, cluster, partial(_inventory, services))
        tx.mirror_pools(tx.cluster())  # somebody may have changed or deleted one in Airflow
        has_cancelled = _cancel_dead_dag_runs(tx, services, now_s)
        _mark_overdue(tx, now_s)
        if has_cancelled:
            run_pass(tx, services, now_s)
        leases = tx.held_leases()
        tx.read_ahead(each.run_key for each in leases)
        return tuple(_target(tx, services, lease) for lease in leases)


def _inventory(services: Services) -> Cluster | None:
    try:
        return services.inventory.cluster()
    except FrenzyError as error:
        log.error("The cluster stays as it was known: %s", error)
        return None


def reconcile(services: Services, report: ReconcileReport) -> ReconcileSummary:
    """Reconcile with what was found and run a pass."""
    now_s = services.clock.now_s()
    lines: list[str] = []
    with services.ledger.transaction() as tx:
        for finding in report.findings:
            lines += _end_if_gone(tx, services, finding, now_s)
        started = sum(isinstance(action, Start) for action in run_pass(tx, services, now_s))
        suspects = sum(lease.state is LeaseState.SUSPECT for lease in tx.held_leases())
    return ReconcileSummary(num_suspect=suspects, num_released=len(lines), num_started=started, lines=tuple(lines))


def _cancel_dead_dag_runs(tx: LedgerTx, services: Services, now_s: float) -> bool:
    """Cancel runs whose DAG run has ended; whether there were any."""
    outlived = (require_run(tx, each) for each in tx.outlived())
    dead = [run for run in outlived if not run.cancel_requested]
    for run in dead:
        reason = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Its DAG run was ended in Airflow.")
        cancel_in(tx, services, run, reason, now_s)
    return bool(dead)


def _mark_overdue(tx: LedgerTx, now_s: float) -> None:
    for lease in tx.held_leases():
        if lease.state is LeaseState.LIVE and lease.expires_s < now_s:
            tx.put_lease(replace(lease, state=LeaseState.SUSPECT))
            log_event(tx, lease.run_key, now_s, "lease", "No heartbeat: the lease is suspect.", lease.attempt)


def _target(tx: LedgerTx, services: Services, lease: Lease) -> ReconcileTarget:
    run = require_run(tx, lease.run_key)
    attempt = require_attempt(tx, lease.run_key, lease.attempt)
    return ReconcileTarget(
        run_key=lease.run_key,
        attempt=lease.attempt,
        suspect=lease.state is LeaseState.SUSPECT,
        stop=_must_stop(attempt, run.cancel_requested or run.state in FINAL_STATES),
        spec=without_masked(launch_spec(tx, services, run, attempt), run),
    )


def _must_stop(attempt: Attempt, run_is_over: bool) -> bool:
    broken = attempt.stop_reason is not None and attempt.stop_reason.code in (
        ReasonCode.LAUNCH_FAILED,
        ReasonCode.WORKER_HUNG,
    )
    return run_is_over or broken


def _end_if_gone(tx: LedgerTx, services: Services, finding: ReconcileFinding, now_s: float) -> list[str]:
    """End the attempt if its workers are proved gone; one line for the log if it was ended."""
    attempt = require_attempt(tx, finding.run_key, finding.attempt)
    lease = tx.lease(finding.run_key, finding.attempt)
    if not attempt.is_live or lease is None or lease.state is LeaseState.ENDED:
        return []
    reason = _gone(tx, services, attempt, lease, finding, now_s)
    if reason is None:
        _end_stuck_launch(tx, attempt, lease, finding, now_s)
        return []
    known = finding.reason or (reason if finding.result is None else None)
    report = EndReport(result=finding.result, reason=known, lost_nodes=finding.lost_nodes)
    settle(tx, services, attempt, report, now_s)
    return [f"{finding.run_key} attempt {finding.attempt}: {reason.code}: {reason.sentence}"]


def _gone(
    tx: LedgerTx, services: Services, attempt: Attempt, lease: Lease, finding: ReconcileFinding, now_s: float
) -> Reason | None:
    run = require_run(tx, finding.run_key)
    unattended = lease.state is LeaseState.SUSPECT or run.cancel_requested or _must_stop(attempt, False)
    # A monitor renews the lease also of workers whose launch task, which reports their end, died before them.
    unattended = unattended or tx.launch_is_over(run.identity)
    if finding.workers == WorkersState.GONE and (unattended or finding.result is not None):
        return Reason(code=ReasonCode.WORKERS_LOST, detail="The workers are gone and nobody had reported it.")
    if finding.workers == WorkersState.NOT_STARTED:
        waited_s = now_s - lease.granted_s
        if _never_comes(tx, run, waited_s, _PATIENCE_LEASES * services.lease_s):
            detail = f"No worker was started within {waited_s:.0f} s of the placement."
            return Reason(code=ReasonCode.LEASE_EXPIRED, detail=detail)
    return None


def _never_comes(tx: LedgerTx, run: RunRecord, waited_s: float, patience_s: float) -> bool:
    """Whether the launch task starts no workers any more; one that has yet to begin will be refused.

    One that was told to start them may be about to, however long ago reconciliation looked: its end proves that it does
    not, or that the launcher was told to stop them (``ReconcileTarget.stop``) and then finds them gone.
    """
    if waited_s > patience_s and tx.launch_is_over(run.identity):
        return True
    has_begun = run.state is not JobState.PLACED
    return not has_begun and (run.cancel_requested or waited_s > max(patience_s, _LAUNCH_PATIENCE_S))


def _end_stuck_launch(tx: LedgerTx, attempt: Attempt, lease: Lease, finding: ReconcileFinding, now_s: float) -> None:
    """Let the next reconciliation stop an attempt whose launch task was about to start workers for far too long."""
    stuck = finding.workers == WorkersState.NOT_STARTED and now_s - lease.granted_s > _LAUNCH_PATIENCE_S
    if stuck and attempt.stop_reason is None:
        reason = Reason(code=ReasonCode.LAUNCH_FAILED, detail="The launch task has begun, but starts no worker.")
        tx.put_attempt(replace(attempt, stop_reason=reason))
