"""Read-only views of the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from frenzy.app.facts import expected_end_s, present_facts, scheduling_facts
from frenzy.app.queue_usage import QueueUsage, usage_of
from frenzy.app.services import Services, candidates_of, require_run
from frenzy.core.lifecycle.evidence import believed, bounds_of
from frenzy.core.lifecycle.monitor import progress_text
from frenzy.core.lifecycle.reschedule import memory_move
from frenzy.core.lifecycle.why import slow_steps, why
from frenzy.core.planning.selection import fitting
from frenzy.core.runs.access import Caller, Sight, may_manage, outline, see_all
from frenzy.core.runs.ledger import (
    FINAL_STATES,
    Attempt,
    JobState,
    Lease,
    LeaseState,
    Preparation,
    QueueEntry,
    RunRecord,
)
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import (
    AttemptMemory,
    Explanation,
    GpusView,
    GpuTypeRow,
    HolderRow,
    MemoryView,
    NodeRow,
    PreparingRow,
    QueueRow,
    QueueView,
    RankMemory,
    RunningRow,
)
from frenzy.core.scheduling import Explanation as Decided
from frenzy.core.scheduling import explain as explain_decision
from frenzy.core.values.cluster import held_by_node
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.telemetry import StepPeak, StepRecord, fold_steps
from frenzy.core.values.units import format_bytes
from frenzy.ports import LedgerTx

_MAX_POINTS = 600
_PLANS_NAMED = 3
# Of all attempts that one answer shows: a record costs about 50 us.
_MOST_RECORDS = 20_000


def view_of(tx: LedgerTx, run: RunRecord) -> RunView:
    """All that is known of ``run``, without its masked texts."""
    entry, attempts = tx.queue_entry(run.run_key), tx.attempts(run.run_key)
    lease = tx.lease(run.run_key, attempts[-1].attempt) if attempts else None
    view = RunView(
        run=run,
        candidates=candidates_of(tx, run),
        queue_entry=entry,
        lease=None if lease is None or lease.state is LeaseState.ENDED else lease,
        attempts=attempts,
        events=tx.events(run.run_key),
        preparation=_preparation(tx, run),
        why=without_masked(why(run, attempts, entry), run),
    )
    return without_masked(view, run)


def _preparation(tx: LedgerTx, run: RunRecord) -> Preparation | None:
    """How far its data are, while they are being prepared."""
    return tx.preparations([run.run_key]).get(run.run_key) if run.state is JobState.PREPARING else None


def run_view(services: Services, run_key: str) -> RunView:
    """The run of ``run_key``; raises NotFound."""
    with services.ledger.reading() as tx:
        return view_of(tx, require_run(tx, run_key))


def shown_to(services: Services, caller: Caller, view: RunView) -> RunView:
    """``view`` without the specification, unless ``caller`` is of the run's owner, team or administrators."""
    run = view.run
    if may_manage(caller, owner=run.owner, team=run.job.team, rules=services.queues.rules()):
        return view
    return replace(view, run=replace(run, job=outline(run.job), model_config=None, masked=()))


def list_runs(services: Services, *, limit: int = 50, sees: Sight = see_all) -> tuple[RunView, ...]:
    """The newest runs, without their events, and without the plans and the model's config, which are long."""
    with services.ledger.reading() as tx:
        runs = tx.runs(limit=limit, dag_ids=_restricted(tx, sees))
        tx.read_ahead(run.run_key for run in runs)
        return tuple(_row_of(tx, run) for run in runs)


def _row_of(tx: LedgerTx, run: RunRecord) -> RunView:
    entry = tx.queue_entry(run.run_key)
    view = RunView(
        run=replace(run, model_config=None),
        queue_entry=None if entry is None else replace(entry, plans=()),
        attempts=tx.attempts(run.run_key),
        preparation=_preparation(tx, run),
    )
    return without_masked(view, run)


def _restricted(tx: LedgerTx, sees: Sight) -> frozenset[str] | None:
    """The DAGs whose runs may be shown; None where that is all of them."""
    known = tx.dag_ids()
    seen = sees(known)
    return None if seen == known else seen


def runs_of_dag_run(services: Services, dag_id: str, run_id: str) -> tuple[RunView, ...]:
    """The training runs inside one DAG run, oldest first."""
    with services.ledger.reading() as tx:
        return tuple(view_of(tx, run) for run in reversed(tx.runs(dag_run=(dag_id, run_id))))


def queue_view(services: Services, sees: Sight = see_all) -> QueueView:
    """Who waits and why, in the order they will be served; who runs where. Places count those that are not shown."""
    now_s = services.clock.now_s()
    with services.ledger.reading() as tx:
        rules = services.queues.rules()
        standing = usage_of(present_facts(tx, services, now_s), rules) if rules else QueueUsage()
        queued = sorted(tx.queue(), key=_place_in_line)
        tx.read_ahead([*(each.run_key for each in queued), *(each.run_key for each in tx.held_leases())])
        waiting = [_queue_row(tx, entry, index) for index, entry in enumerate(queued, start=1)]
        running = [_running_row(tx, lease, now_s) for lease in tx.held_leases()]
        preparing = _preparing_rows(tx)
    shown = (*(each.dag_id for each in waiting), *(each.dag_id for each in running))
    seen = sees({*shown, *(each.dag_id for each in preparing)})
    return QueueView(
        now_s=now_s,
        waiting=tuple(each for each in waiting if each.dag_id in seen),
        running=tuple(each for each in running if each.dag_id in seen),
        preparing=tuple(each for each in preparing if each.dag_id in seen),
        shares=standing.shares,
        quotas=standing.quotas,
    )


def _preparing_rows(tx: LedgerTx) -> list[PreparingRow]:
    """Longest first."""
    runs = {each.run_key: each for each in tx.runs(states=[JobState.PREPARING])}
    known = sorted(tx.preparations(runs).values(), key=lambda each: (each.begun_s, each.run_key))
    return [_preparing_row(runs[each.run_key], each) for each in known]


def _preparing_row(run: RunRecord, preparation: Preparation) -> PreparingRow:
    sign = preparation.progress
    return PreparingRow(
        run_key=run.run_key,
        job_name=run.job.name,
        dag_id=run.identity.dag_id,
        run_id=run.identity.run_id,
        since_s=preparation.begun_s,
        progress="starting" if sign is None else progress_text(sign),
        queue=run.job.queue,
        team=run.job.team,
    )


def _place_in_line(entry: QueueEntry) -> tuple[float, float, str]:
    """Where the last decision about it put the run; decisions need not look at all, so two may have the same place."""
    return (math.inf if entry.position is None else entry.position, entry.enqueued_s, entry.run_key)


def _queue_row(tx: LedgerTx, entry: QueueEntry, position: int) -> QueueRow:
    run = require_run(tx, entry.run_key)
    return QueueRow(
        run_key=run.run_key,
        job_name=run.job.name,
        dag_id=run.identity.dag_id,
        run_id=run.identity.run_id,
        position=position,
        state=run.state,
        priority=run.job.priority,
        queue=run.job.queue,
        team=run.job.team,
        waiting_since_s=entry.enqueued_s,
        reason=entry.hold,
        expected_start_s=entry.expected_start_s,
        wanted_plan_id=entry.plans[0].plan_id if entry.plans else None,
        owner=run.owner,
    )


def _running_row(tx: LedgerTx, lease: Lease, now_s: float) -> RunningRow:
    run = require_run(tx, lease.run_key)
    attempt = next(each for each in tx.attempts(lease.run_key) if each.attempt == lease.attempt)
    end_s = expected_end_s(run, attempt, now_s)
    if attempt.first_step_s is None:  # all of it is to come
        end_s = max(end_s, now_s + attempt.plan.predicted_run_s)
    return RunningRow(
        run_key=run.run_key,
        job_name=run.job.name,
        dag_id=run.identity.dag_id,
        run_id=run.identity.run_id,
        state=run.state,
        attempt=attempt.attempt,
        plan_id=attempt.plan.plan_id,
        num_gpus=lease.num_gpus,
        gpu_type=lease.gpu_type,
        nodes=tuple(each.node for each in lease.placement.allocations),
        last_step=attempt.reached_step,
        total_steps=run.total_steps,
        last_loss=attempt.last_loss,
        predicted_peak_bytes=attempt.plan.memory.peak_allocated_bytes,
        measured_peak_bytes=attempt.measured_peak_bytes,
        capacity_bytes=attempt.plan.gpu_memory_bytes,
        num_reschedules=run.num_reschedules,
        expected_end_s=end_s,
        reason=run.reason,
        queue=run.job.queue,
        team=run.job.team,
        owner=run.owner,
    )


def gpus_view(services: Services, sees: Sight = see_all) -> GpusView:
    """Capacity and what is free, by type and by node; who holds what, of the runs that may be shown."""
    with services.ledger.reading() as tx:
        cluster, leases = tx.cluster(), tx.held_leases()
        tx.read_ahead(each.run_key for each in leases)
        dag_of = {each.run_key: require_run(tx, each.run_key).identity.dag_id for each in leases}
    seen = sees(dag_of.values())
    holders: dict[str, list[HolderRow]] = {}
    for lease in leases:
        for each in lease.placement.allocations if dag_of[lease.run_key] in seen else ():
            holders.setdefault(each.node, []).append(HolderRow(run_key=lease.run_key, num_gpus=each.num_gpus))
    held = held_by_node(each.placement for each in leases)
    suspect = held_by_node(each.placement for each in leases if each.state is LeaseState.SUSPECT)
    types = tuple(
        GpuTypeRow(
            gpu_type=each.name,
            kind=each.kind,
            memory_bytes=each.memory_bytes,
            num_gpus=cluster.num_gpus_by_type[each.name],
            num_free=sum(n.num_usable - held.get(n.name, 0) for n in cluster.nodes if n.gpu_type == each.name),
            num_suspect=sum(suspect.get(n.name, 0) for n in cluster.nodes if n.gpu_type == each.name),
            pool=each.pool,
            flops_per_s=each.flops_per_s,
        )
        for each in cluster.gpu_types
    )
    nodes = tuple(
        NodeRow(
            node=node.name,
            gpu_type=node.gpu_type,
            state=node.state,
            num_gpus=node.num_gpus,
            num_free=node.num_usable - held.get(node.name, 0),
            holders=tuple(holders.get(node.name, ())),
        )
        for node in cluster.nodes
    )
    return GpusView(types=types, nodes=nodes)


def memory_view(services: Services, run_key: str) -> MemoryView:
    """The memory curves of all attempts of the run."""
    view = run_view(services, run_key)
    return MemoryView(
        run_key=run_key,
        job_name=view.run.job.name,
        state=view.run.state,
        attempts=tuple(
            _attempt_memory(services, view.run, attempt, most_records=_MOST_RECORDS // len(view.attempts))
            for attempt in view.attempts
        ),
    )


def _attempt_memory(services: Services, run: RunRecord, attempt: Attempt, *, most_records: int) -> AttemptMemory:
    sample = services.runs.telemetry_sample(attempt.run_key, attempt.attempt, most_records=most_records)
    records = believed(sample, bounds_of(run, attempt, services.clock.now_s())).records
    return AttemptMemory(
        attempt=attempt.attempt,
        plan_id=attempt.plan.plan_id,
        num_gpus=attempt.plan.num_gpus,
        predicted_peak_bytes=attempt.plan.memory.peak_allocated_bytes,
        required_bytes=attempt.plan.memory.required_bytes,
        capacity_bytes=attempt.plan.gpu_memory_bytes,
        growth_step=attempt.growth_step,
        outcome=attempt.outcome,
        steps=_thinned(fold_steps(records)),
        ranks=_ranks(records, attempt),
    )


def _ranks(records: Iterable[StepRecord], attempt: Attempt) -> tuple[RankMemory, ...]:
    """Ranks are counted through the placement's nodes, in order."""
    nodes = [each.node for each in attempt.placement.allocations for _ in range(each.num_gpus)]
    by_rank: dict[int, list[StepRecord]] = {}
    for each in records:
        by_rank.setdefault(each.rank, []).append(each)
    return tuple(_rank(rank, nodes[rank : rank + 1], by_rank[rank]) for rank in sorted(by_rank))


def _rank(rank: int, node: Sequence[str], records: Sequence[StepRecord]) -> RankMemory:
    last = max(records, key=lambda each: each.step)
    return RankMemory(
        rank=rank,
        node=next(iter(node), None),
        peak_bytes=max(each.peaks.allocated_bytes for each in records),
        last_bytes=last.peaks.allocated_bytes,
        last_step=last.step,
        capacity_bytes=last.capacity_bytes,
        num_alloc_retries=sum(each.num_alloc_retries for each in records),
    )


def _thinned(steps: tuple[StepPeak, ...]) -> tuple[StepPeak, ...]:
    """At most ``_MAX_POINTS`` steps, evenly spread, first and last kept; and as many that a validation followed."""
    validated = [index for index, each in enumerate(steps) if each.validation_loss is not None]
    return tuple(steps[index] for index in sorted({*_evenly(range(len(steps))), *_evenly(validated)}))


def _evenly(indices: Sequence[int]) -> Sequence[int]:
    if len(indices) <= _MAX_POINTS:
        return indices
    stride = (len(indices) - 1) / (_MAX_POINTS - 1)
    return [indices[round(number * stride)] for number in range(_MAX_POINTS)]


def explain(services: Services, run_key: str) -> Explanation:
    """Why the run is where it is, in sentences."""
    now_s = services.clock.now_s()
    with services.ledger.reading() as tx:
        run = require_run(tx, run_key)
        attempts = tx.attempts(run_key)
        lines = [f"Job {run.job.name!r} is {run.state}."]
        lines += _plan_lines(run, candidates_of(tx, run), attempts, tx.queue_entry(run_key))
        lines += [line for attempt in attempts for line in _attempt_lines(attempt)]
        if run.state is JobState.CHECKPOINTING and run.reason is not None:
            lines.append(f"It is saving a checkpoint to stop: {run.reason.code}: {run.reason.sentence}")
        preparation = _preparation(tx, run)
        if preparation is not None:
            lines.append(f"Its data are being prepared: {_preparing_row(run, preparation).progress}.")
        if run.state is JobState.QUEUED:
            lines += _waiting_lines(tx, services, run_key, now_s)
        elif run.state is JobState.RUNNING:
            told = _decided(tx, services, run_key, now_s)
            lines += () if told is None else told.lines
        if run.reason is not None and run.state in FINAL_STATES:
            told_of = attempts[-1].outcome if attempts else None
            sentence = None if told_of == run.reason else run.reason.sentence
            lines += [line for line in (sentence, run.reason.remedy) if line]
    shown = tuple(without_masked(each, run) for each in lines)
    return Explanation(run_key=run_key, state=run.state, reason=without_masked(run.reason, run), lines=shown)


def _plan_lines(
    run: RunRecord, candidates: Sequence[Candidate], attempts: Sequence[Attempt], entry: QueueEntry | None
) -> Iterable[str]:
    """After an attempt the first of all plans is no news: what it wants now, or why it runs what it runs, is."""
    feasible = [each for each in candidates if each.feasible]
    if not candidates:
        return
    listed = f"{fitting(len(feasible))} the cluster; refused: {len(candidates) - len(feasible)}."
    ended_in_queue = run.state is JobState.CANCELLED and any(each.outcome != run.reason for each in attempts)
    if run.num_attempts > 1 or ended_in_queue or entry is not None and run.num_attempts:
        yield f"Planned anew after an attempt: {listed}"
        return
    yield listed
    for best in sorted(feasible, key=lambda each: each.rank or 0)[:1]:
        memory = best.plan.memory
        yield (
            f"Ranked first, {best.plan.plan_id}: {best.reason.sentence} Predicted peak "
            f"{format_bytes(memory.peak_allocated_bytes)} of {format_bytes(best.plan.gpu_memory_bytes)}."
        )


def _attempt_lines(attempt: Attempt) -> Iterable[str]:
    nodes = ", ".join(f"{each.num_gpus} on {each.node}" for each in attempt.placement.allocations)
    measured = format_bytes(attempt.measured_peak_bytes) if attempt.measured_peak_bytes else "not yet measured"
    steps = f"steps up to {attempt.last_step}" if attempt.last_step else "no step"
    yield (
        f"Attempt {attempt.attempt}: {attempt.plan.plan_id} ({nodes}), {steps}, "
        f"peak {measured}, predicted {format_bytes(attempt.plan.memory.peak_allocated_bytes)}."
    )
    slow = slow_steps(attempt)
    if slow is not None:
        yield slow
    moved = memory_move(attempt.next_attempt, attempt.plan)
    chosen = attempt.next_attempt.reason if attempt.next_attempt.reason.code is ReasonCode.BEST_PLAN_NOW else moved
    if chosen is not None:
        yield f"Why this plan: {chosen.code}: {chosen.sentence}"
    if attempt.outcome is not None:
        yield f"It ended: {attempt.outcome.code}: {attempt.outcome.sentence}"


def _waiting_lines(tx: LedgerTx, services: Services, run_key: str, now_s: float) -> Iterable[str]:
    entry = tx.queue_entry(run_key)
    if entry is None:
        return
    after = entry.next_attempt.previous
    if after is not None:
        plans = ", ".join(each.plan_id for each in entry.plans[:_PLANS_NAMED])
        more = len(entry.plans) - _PLANS_NAMED
        yield f"After {after.plan_id} it takes {plans}{f' or one of {more} more' if more > 0 else ''}."
    told = _decided(tx, services, run_key, now_s)
    if told is None or (told.reason is None and _is_for_a_move(entry)):
        told = Decided(entry.hold, ())
    if told.reason is not None:
        yield f"It waits: {told.reason.code}: {told.reason.sentence}"
    yield from told.lines
    if told.reason is not None and told.reason.remedy:
        yield f"What would help: {told.reason.remedy}"


def _is_for_a_move(entry: QueueEntry) -> bool:
    """Whether it was decided to start, and waits for GPUs that a job still leaves: only the pass sees that."""
    return entry.hold is not None and entry.hold.code is ReasonCode.WAITING_FOR_MOVE


def _decided(tx: LedgerTx, services: Services, run_key: str, now_s: float) -> Decided | None:
    """What a decision at ``now_s`` says of the run; None where it is not asked about it."""
    facts = scheduling_facts(tx, services, now_s)
    known = {*(each.run_key for each in facts.queued), *(each.run_key for each in facts.running)}
    return explain_decision(facts, run_key, now_s, services.current_policy) if run_key in known else None
