"""One scheduling pass: facts from the ledger, ``schedule`` decides, the ledger commits.

Whoever changes the facts runs a pass, inside the transaction that changed them.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from frenzy.app.services import Services, log_event
from frenzy.app.states import move
from frenzy.core.errors import Reason, ReasonCode
from frenzy.core.has import schedule
from frenzy.core.ledger import Attempt, JobState, Lease, LeaseState, QueueEntry, RunRecord
from frenzy.core.queue import Action, Hold, QueuedJob, RunningJob, SchedulingFacts, Start
from frenzy.ports import LedgerConflict, LedgerTx

log = logging.getLogger(__name__)


def run_pass(tx: LedgerTx, services: Services, now_s: float) -> tuple[Action, ...]:
    """Run one pass and commit its actions through ``tx``."""
    facts = scheduling_facts(tx, now_s)
    actions = schedule(facts, now_s=now_s, policy=services.policy)
    for action in actions:
        if isinstance(action, Start):
            _try_to_grant(tx, services, action, now_s)
        elif isinstance(action, Hold):
            _hold(tx, action)
    _hold_for_old_workers(tx)
    return actions


def scheduling_facts(tx: LedgerTx, now_s: float) -> SchedulingFacts:
    """The snapshot a pass decides on. A run whose old workers still hold GPUs is not queued yet."""
    leases = tx.held_leases()
    holders = {lease.run_key for lease in leases}
    queued = tuple(_queued(tx, entry) for entry in tx.queue() if entry.run_key not in holders)
    running = tuple(job for lease in leases if (job := _running(tx, lease, now_s)) is not None)
    return SchedulingFacts(cluster=tx.cluster(), queued=queued, running=running)


def _queued(tx: LedgerTx, entry: QueueEntry) -> QueuedJob:
    run = tx.run(entry.run_key)
    assert run is not None, "a queue entry has a run (foreign key)"
    return QueuedJob(
        run_key=entry.run_key,
        job_name=run.job.name,
        submitted_s=entry.submitted_s,
        plans=entry.plans,
        priority=run.job.priority,
        queue=run.job.queue,
        team=run.job.team,
        ordered=entry.ordered,
        objective=run.job.objective,
        excluded_nodes=entry.next_attempt.excluded_nodes,
    )


def _running(tx: LedgerTx, lease: Lease, now_s: float) -> RunningJob | None:
    run = tx.run(lease.run_key)
    attempt = next((each for each in tx.attempts(lease.run_key) if each.attempt == lease.attempt), None)
    if run is None or attempt is None:
        return None
    return RunningJob(
        run_key=lease.run_key,
        job_name=run.job.name,
        plan=attempt.plan,
        placement=lease.placement,
        started_s=lease.granted_s,
        expected_end_s=expected_end_s(run, attempt, lease, now_s),
        priority=run.job.priority,
        queue=run.job.queue,
        team=run.job.team,
    )


def expected_end_s(run: RunRecord, attempt: Attempt, lease: Lease, now_s: float) -> float:
    """When the attempt should end: by its measured step time once there is one, else as predicted."""
    if attempt.step_time_s and attempt.last_step and run.total_steps:
        return now_s + max(0, run.total_steps - attempt.last_step) * attempt.step_time_s
    return max(now_s, lease.granted_s + attempt.plan.predicted_run_s)


def _try_to_grant(tx: LedgerTx, services: Services, start: Start, now_s: float) -> None:
    """A lease that the ledger refuses leaves its run waiting; what else the transaction changed stands."""
    try:
        _grant(tx, services, start, now_s)
    except LedgerConflict as conflict:
        log.error("The lease of run %s was refused: %s", start.run_key, conflict)
        entry = tx.queue_entry(start.run_key)
        assert entry is not None, "the lease comes first; the entry is dropped after it"
        tx.put_queue_entry(replace(entry, hold=conflict.reason))


def _grant(tx: LedgerTx, services: Services, start: Start, now_s: float) -> None:
    entry, run = tx.queue_entry(start.run_key), tx.run(start.run_key)
    assert entry is not None and run is not None, "schedule() starts queued runs only"
    number = entry.next_attempt.attempt
    tx.put_lease(
        Lease(
            run_key=run.run_key,
            attempt=number,
            gpu_type=start.plan.gpu_type,
            placement=start.placement,
            state=LeaseState.LIVE,
            granted_s=now_s,
            heartbeat_s=now_s,
            expires_s=now_s + services.lease_s,
        )
    )
    tx.put_attempt(
        Attempt(
            run_key=run.run_key,
            attempt=number,
            plan=start.plan,
            placement=start.placement,
            created_s=max(now_s, run.created_s),  # older ones belong to an earlier generation
            next_attempt=entry.next_attempt,
        )
    )
    tx.drop_queue_entry(run.run_key)
    nodes = ", ".join(f"{each.num_gpus} on {each.node}" for each in start.placement.allocations)
    reason = Reason(code=ReasonCode.BEST_PLAN, detail=f"Placed {start.plan.plan_id}: {nodes}.")
    move(tx, replace(run, num_attempts=number), JobState.PLACED, now_s, reason)
    pool = tx.cluster().types_by_name[start.plan.gpu_type].pool
    if not tx.assign_launch_pool(run.identity, pool, start.plan.num_gpus):
        log_event(tx, run.run_key, now_s, "pool", f"Airflow's pool {pool} does not mirror this attempt.", number)


def _hold(tx: LedgerTx, hold: Hold) -> None:
    entry = tx.queue_entry(hold.run_key)
    assert entry is not None, "schedule() holds queued runs only"
    changed = replace(entry, hold=hold.reason, position=hold.position, expected_start_s=hold.expected_start_s)
    if changed != entry:
        tx.put_queue_entry(changed)


def _hold_for_old_workers(tx: LedgerTx) -> None:
    holders = {lease.run_key for lease in tx.held_leases()}
    reason = Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS)
    for entry in tx.queue():
        if entry.run_key in holders and entry.hold != reason:
            tx.put_queue_entry(replace(entry, hold=reason))
