"""Migrations of running jobs that the scheduler requests: they save a checkpoint, stop, and are queued again.

Requesting is all that happens here. The monitor passes the request on, the end of the attempt frees the
GPUs, ``decide`` sends the run to the queue, as after every attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from frenzy.app.services import Services, live_attempt
from frenzy.app.states import move
from frenzy.core.lifecycle.handover import Holding
from frenzy.core.lifecycle.moves import elasticity, is_movable, is_under_way, move_reason, predicted_change, work_left
from frenzy.core.lifecycle.reschedule import exceeded_plan
from frenzy.core.runs.ledger import Attempt, JobState, MoveTarget, RunRecord, since_registered
from frenzy.core.values.cluster import NodeState, Placement
from frenzy.core.values.errors import Reason
from frenzy.core.values.scheduling_facts import Action, Preempt, Resize, Start
from frenzy.ports import LedgerTx

log = logging.getLogger(__name__)


def request_migration(
    tx: LedgerTx, services: Services, action: Resize | Preempt, actions: Sequence[Action], now_s: float
) -> bool:
    """Mark the run's attempt: it is to save a checkpoint and stop. False if it cannot be asked now.

    actions: all of the pass; they tell which job gets what this one leaves.
    """
    run, attempt = tx.run(action.run_key), live_attempt(tx, action.run_key)
    if run is None or attempt is None or not _may_migrate(tx, services, run, attempt):
        log.warning("Run %s is not moved: it has no running attempt that could be.", action.run_key)
        return False
    if isinstance(action, Preempt):
        target, reason = None, action.reason
    else:
        target = MoveTarget(plan=action.plan, placement=action.placement)
        if _is_where_it_is(target, attempt):
            return False
        reason = _reason(tx, run, attempt, target, actions)
    tx.put_attempt(replace(attempt, stop_reason=reason, stop_asked_s=now_s, move_to=target))
    move(tx, run, JobState.CHECKPOINTING, now_s, reason)
    return True


def _may_migrate(tx: LedgerTx, services: Services, run: RunRecord, attempt: Attempt) -> bool:
    attempts = since_registered(run, tx.attempts(run.run_key))
    elastic = elasticity(run, attempts, services.elastic)
    lease = tx.lease(run.run_key, attempt.attempt)
    return elastic is not None and lease is not None and is_movable(run, attempt, lease, tx.cluster())


def _is_where_it_is(target: MoveTarget, attempt: Attempt) -> bool:
    return target.plan.shape == attempt.plan.shape and target.placement == attempt.placement


def _reason(tx: LedgerTx, run: RunRecord, attempt: Attempt, target: MoveTarget, actions: Sequence[Action]) -> Reason:
    taking = _taking(attempt, actions)
    other = None if taking is None else tx.run(taking.run_key)
    name = None if other is None else other.job.name
    return move_reason(
        attempt.plan,
        target,
        f"{name} (run {other.run_key})" if other is not None and name == run.job.name else name,
        work=work_left(run, attempt),
        its_change=_change(tx, other, taking) if other is not None and isinstance(taking, Resize) else None,
        for_memory=other is not None and _is_memory_constrained(tx, other),
        drained=_drained(tx, attempt),
    )


def _change(tx: LedgerTx, run: RunRecord, move: Resize) -> str | None:
    attempt = live_attempt(tx, run.run_key)
    return None if attempt is None else predicted_change(work_left(run, attempt), attempt.plan, move.plan)


def _drained(tx: LedgerTx, attempt: Attempt) -> list[str]:
    nodes = tx.cluster().nodes_by_name
    held = [each.node for each in attempt.placement.allocations]
    return [name for name in held if name in nodes and nodes[name].state is NodeState.DRAINING]


def _is_memory_constrained(tx: LedgerTx, run: RunRecord) -> bool:
    """Whether ``run`` waits because its memory exceeded its GPUs."""
    entry = tx.queue_entry(run.run_key)
    return entry is not None and exceeded_plan(entry.next_attempt, entry.plans)


def _taking(attempt: Attempt, actions: Sequence[Action]) -> Start | Resize | None:
    """What gives GPUs of ``attempt`` to another run: a start before all, else a move."""
    nodes = {each.node for each in attempt.placement.allocations}
    taking = [
        each
        for each in actions
        if isinstance(each, Start | Resize) and each.run_key != attempt.run_key and _touches(each.placement, nodes)
    ]
    return min(taking, key=lambda each: each.kind != "start", default=None)


def _touches(placement: Placement, nodes: set[str]) -> bool:
    return any(each.node in nodes for each in placement.allocations)


def holdings(tx: LedgerTx) -> list[Holding]:
    """What every run really holds now, by its leases."""
    found = []
    for lease in tx.held_leases():
        run = tx.run(lease.run_key)
        attempt = next((each for each in tx.attempts(lease.run_key) if each.attempt == lease.attempt), None)
        if run is not None and attempt is not None:
            found.append(holding(run, attempt))
    return found


def holding(run: RunRecord, attempt: Attempt) -> Holding:
    """What ``attempt`` of ``run`` holds."""
    return Holding(
        job_name=run.job.name,
        queue=run.job.queue,
        team=run.job.team,
        plan=attempt.plan,
        placement=attempt.placement,
        is_leaving=is_under_way(run, attempt),
    )
