"""The queue as a pass sees it, to be looked at or simulated elsewhere."""

from __future__ import annotations

from frenzy.app.facts import scheduling_facts
from frenzy.app.plan_listing import ASSUMED_STEPS
from frenzy.app.services import Services
from frenzy.core.runs.ledger import NextAttempt
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.views import PlanningFacts, QueueSnapshot
from frenzy.ports import LedgerTx


def queue_snapshot(services: Services) -> QueueSnapshot:
    """The facts of a pass at this moment; nothing is decided and nothing changed."""
    now_s = services.clock.now_s()
    with services.ledger.reading() as tx:
        facts = scheduling_facts(tx, services, now_s, foreseeing=True)
        keys = [job.run_key for job in facts.queued] + [job.run_key for job in facts.running]
        planning = {key: found for key in keys if (found := _planning(tx, key)) is not None}
    return QueueSnapshot(
        taken_s=now_s,
        policy=services.policy.name,
        marp_policy=services.marp_policy,
        facts=facts,
        planning=planning,
        queues=services.queues.rules(),
        cpus_per_gpu=services.policy.cpus_per_gpu,
    )


def _planning(tx: LedgerTx, run_key: str) -> PlanningFacts | None:
    run = tx.run(run_key)
    if run is None or run.model_config is None:
        return None
    following = _following(tx, run_key)
    done = 0 if following is None else following.checkpoint_step or 0
    facts = PlanningFacts(
        job=run.job,
        model_config=run.model_config,
        total_steps=max(1, (run.total_steps or ASSUMED_STEPS) - done),
        excluded_shapes=() if following is None else following.excluded_shapes,
        extra_bytes_per_gpu=0 if following is None else following.extra_bytes_per_gpu,
    )
    return without_masked(facts, run)


def _following(tx: LedgerTx, run_key: str) -> NextAttempt | None:
    """What the run was planned with last: for its place in the queue, or for the attempt that runs."""
    entry = tx.queue_entry(run_key)
    if entry is not None:
        return entry.next_attempt
    attempts = tx.attempts(run_key)
    return attempts[-1].next_attempt if attempts else None
