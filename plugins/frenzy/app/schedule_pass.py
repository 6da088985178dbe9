"""One scheduling pass: facts from the ledger, the scheduler decides, the ledger commits.

Whoever changes the facts runs a pass, inside the transaction that changed them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from frenzy.app.facts import pauses, scheduling_facts
from frenzy.app.migration_requests import holding, holdings, request_migration
from frenzy.app.services import Services, candidates_of, log_event, require_run
from frenzy.app.states import move
from frenzy.core.lifecycle.handover import Held, wait_for_leaving
from frenzy.core.lifecycle.reschedule import memory_move
from frenzy.core.runs.ledger import Attempt, JobState, Lease, LeaseState, NextAttempt, QueueEntry, RunRecord
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Action, Hold, Preempt, Resize, Start
from frenzy.ports import LedgerConflict, LedgerTx

log = logging.getLogger(__name__)


def run_pass(tx: LedgerTx, services: Services, now_s: float) -> tuple[Action, ...]:
    """Run one pass and commit its actions through ``tx``; returns those that took effect.

    Moves are asked for first: a start on GPUs that they free waits until they are free.
    """
    facts = scheduling_facts(tx, services, now_s)
    actions = services.schedule(facts, now_s=now_s, policy=services.current_policy)
    done: list[Action] = [
        action
        for action in actions
        if isinstance(action, Resize | Preempt) and request_migration(tx, services, action, actions, now_s)
    ]
    starts = [each for each in actions if isinstance(each, Start) and tx.queue_entry(each.run_key) is not None]
    granted, waiting = _start(tx, services, starts, now_s)
    done += granted
    holds = [each for each in actions if isinstance(each, Hold) and tx.queue_entry(each.run_key) is not None]
    _keep_holds(tx, holds, waiting, now_s)
    return (*done, *holds)


def _start(
    tx: LedgerTx, services: Services, starts: Sequence[Start], now_s: float
) -> tuple[list[Start], dict[str, Reason]]:
    """Grant ``starts``; those granted, and by run key why others still wait: jobs that are being moved still hold their
    GPUs, or quota, or the ledger refused their lease.
    """
    granted: list[Start] = []
    waiting: dict[str, Reason] = {}
    if not starts:
        return granted, waiting
    held = Held.of(holdings(tx), tx.cluster(), services.current_policy)
    for start in starts:
        job = require_run(tx, start.run_key).job
        outcome = wait_for_leaving(start, held, queue=job.queue, team=job.team) or _try_to_grant(
            tx, services, start, now_s
        )
        if isinstance(outcome, Reason):
            waiting[start.run_key] = outcome
        else:
            held = held.beside(holding(require_run(tx, start.run_key), outcome))
            granted.append(start)
    return granted, waiting


def _try_to_grant(tx: LedgerTx, services: Services, start: Start, now_s: float) -> Attempt | Reason:
    """A lease that the ledger refuses leaves its run waiting; what else the transaction changed stands."""
    try:
        return _grant(tx, services, start, now_s)
    except LedgerConflict as conflict:
        log.error("The lease of run %s was refused: %s", start.run_key, conflict)
        return conflict.reason


def _grant(tx: LedgerTx, services: Services, start: Start, now_s: float) -> Attempt:
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
    attempt = Attempt(
        run_key=run.run_key,
        attempt=number,
        plan=start.plan,
        placement=start.placement,
        created_s=max(now_s, run.created_s),  # older ones belong to an earlier generation
        next_attempt=_with_why_this_plan(entry.next_attempt, start),
    )
    tx.put_attempt(attempt)
    tx.drop_queue_entry(run.run_key)
    reason = _why_placed(entry, start)
    granted = replace(run, num_attempts=number, plan_table=_with_reason(tx, run, start.plan, reason))
    move(tx, granted, JobState.PLACED, now_s, reason)
    pool = tx.cluster().types_by_name[start.plan.gpu_type].pool
    if not tx.assign_launch_pool(run.identity, pool, start.plan.num_gpus):
        log_event(tx, run.run_key, now_s, "pool", f"Airflow's pool {pool} does not mirror this attempt.", number)
    return attempt


def _with_why_this_plan(following: NextAttempt, start: Start) -> NextAttempt:
    """``following``, whose reason also says why it is this plan, where it is none that another attempt ended for."""
    reason = start.reason
    if following.reason.code is not ReasonCode.BEST_PLAN or reason is None:
        return following
    return replace(following, reason=replace(reason, detail=f"{following.reason.detail} {reason.detail}".strip()))


def _why_placed(entry: QueueEntry, start: Start) -> Reason:
    """The plan and its nodes, with the decision's own reason for it, or that it was taken for memory."""
    nodes = ", ".join(f"{each.num_gpus} on {each.node}" for each in start.placement.allocations)
    reason = memory_move(entry.next_attempt, start.plan) or start.reason or Reason(code=ReasonCode.BEST_PLAN_NOW)
    return replace(reason, detail=f"Placed {start.plan.plan_id}: {nodes}. {reason.detail}".rstrip())


def _with_reason(tx: LedgerTx, run: RunRecord, plan: ResourcePlan, reason: Reason) -> str:
    """Its plan table, in which a plan that was taken for memory says so: its rank alone would not explain it."""
    if reason.code is not ReasonCode.MOVED_FOR_MEMORY:
        return run.plan_table
    known = candidates_of(tx, run)
    return tx.put_plan_table(
        tuple(replace(each, reason=reason) if each.plan.shape == plan.shape else each for each in known)
    )


def _keep_holds(tx: LedgerTx, holds: Sequence[Hold], waiting: Mapping[str, Reason], now_s: float) -> None:
    """Store why each run waits, and from when on it might run, where that has changed.

    waiting: by run key, of those that were to start, which are before all others.
    """
    hold_of = {each.run_key: each for each in holds}
    holders = {lease.run_key for lease in tx.held_leases()}
    changed = []
    for entry in tx.queue():
        held, hold = entry, hold_of.get(entry.run_key)
        if hold is not None:
            position = len(waiting) + hold.position
            held = replace(held, hold=hold.reason, position=position, expected_start_s=hold.expected_start_s)
        elif entry.run_key in waiting:
            held = replace(held, hold=waiting[entry.run_key], expected_start_s=None)
        if entry.run_key in holders:
            held = replace(held, hold=Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS))
        if pauses(entry, now_s):  # it waits for what ended its last attempt
            following = entry.next_attempt
            held = replace(held, hold=following.reason, position=None, expected_start_s=following.not_before_s)
        if held != entry:
            changed.append(held)
    tx.put_holds(changed)
