"""The snapshot that a scheduling pass decides on, read from the ledger.

A move that is under way counts as done: the run is where it will be, and what it leaves is free. So
no second move is made for the same want. That workers may still hold what is to become free is for
``moves`` to mind, when a start is granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from frenzy.app.services import Services, candidates_of
from frenzy.core.lifecycle.moves import (
    ElasticRules,
    elasticity,
    has_room,
    is_movable,
    is_under_way,
    measured_extra_bytes,
    plans_to_move_to,
    restart_s,
    work_left,
)
from frenzy.core.lifecycle.nodes_to_spare import with_nodes_to_spare
from frenzy.core.lifecycle.reschedule import exceeded_plan, plans_with_headroom
from frenzy.core.runs.ledger import (
    Attempt,
    JobState,
    Lease,
    LeaseState,
    NextAttempt,
    QueueEntry,
    RunRecord,
    since_registered,
)
from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import deadline_s
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Elasticity, QueuedJob, RunningJob, SchedulingFacts
from frenzy.ports import LedgerTx

# A run that has stopped for a move is queued again by its tasks; its place is kept for it so long.
_KEPT_PLACE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What all facts of one snapshot are read with."""

    tx: LedgerTx
    rules: ElasticRules
    policy: Policy
    cluster: Cluster
    now_s: float

    @staticmethod
    def of(tx: LedgerTx, services: Services, now_s: float) -> _Moment:
        return _Moment(tx=tx, rules=services.elastic, policy=services.policy, cluster=tx.cluster(), now_s=now_s)

    def avoided(self, next_attempt: NextAttempt, plans: Iterable[ResourcePlan]) -> tuple[str, ...]:
        """Nodes not to be used, as of now: the cluster may have come to have no others for ``plans``."""
        return with_nodes_to_spare(next_attempt, plans, self.cluster, self.policy).excluded_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """One run with its attempts since it was registered, the last of which is ``attempt``."""

    tx: LedgerTx
    run: RunRecord
    attempts: tuple[Attempt, ...]
    attempt: Attempt

    @property
    def plans(self) -> tuple[ResourcePlan, ...]:
        """What it may run with, from the table its attempt was placed from; its own plan is among them."""
        own = self.attempt.plan
        extra_bytes = measured_extra_bytes(self.attempt)
        known = plans_with_headroom(candidates_of(self.tx, self.run), self.attempt.next_attempt)
        roomy = tuple(plan for plan in known if has_room(plan, extra_bytes))
        return roomy if any(plan.shape == own.shape for plan in roomy) else (own, *roomy)


def scheduling_facts(tx: LedgerTx, services: Services, now_s: float, *, foreseeing: bool = False) -> SchedulingFacts:
    """The snapshot. A run whose old workers still hold GPUs, or that is to pause, is not queued yet.

    foreseeing: it is to be played forward; jobs that cannot be moved only because they have not begun are told
    with all they may be moved to.
    """
    at, leases = _Moment.of(tx, services, now_s), tx.held_leases()
    holders = {lease.run_key for lease in leases}
    recovering = tx.runs(states=[JobState.RECOVERING])
    _read_ahead(tx, leases, recovering)
    # Only those that run may be moved; a plan table is long.
    movable = [*recovering, *(run for run in map(tx.run, holders) if run is not None)]
    tx.plan_tables(each.plan_table for each in movable)
    jobs: list[QueuedJob | RunningJob] = []
    ready = (each for each in tx.queue() if each.run_key not in holders and not pauses(each, now_s))
    jobs += [_queued(at, entry) for entry in ready]
    held = (_holding(at, lease, foreseeing=foreseeing) for lease in leases)
    jobs += [job for job in held if job is not None]
    jobs += [_as_if_moved(at, each) for each in _between_attempts(at, recovering, holders)]
    return SchedulingFacts(
        cluster=at.cluster,
        queued=tuple(job for job in jobs if isinstance(job, QueuedJob)),
        running=tuple(job for job in jobs if isinstance(job, RunningJob)),
    )


def present_facts(tx: LedgerTx, services: Services, now_s: float) -> SchedulingFacts:
    """Who holds GPUs and who waits at this moment, whatever is under way: for those who look, not for decisions."""
    at, leases = _Moment.of(tx, services, now_s), tx.held_leases()
    holders = {lease.run_key for lease in leases}
    _read_ahead(tx, leases)
    subjects = (_subject(tx, lease) for lease in leases)
    return SchedulingFacts(
        cluster=at.cluster,
        queued=tuple(_queued(at, entry) for entry in tx.queue() if entry.run_key not in holders),
        running=tuple(_running(at, each) for each in subjects if each is not None),
    )


def newcomer(
    tx: LedgerTx, services: Services, run: RunRecord, plans: tuple[ResourcePlan, ...], now_s: float
) -> QueuedJob:
    """``run``, which the ledger need not know, as it would wait for its first attempt with one of ``plans``."""
    first = NextAttempt(attempt=1, reason=Reason(code=ReasonCode.BEST_PLAN))
    return _waiting(_Moment.of(tx, services, now_s), run, plans, first, elasticity(run, (), services.elastic))


def _read_ahead(tx: LedgerTx, leases: Iterable[Lease], others: Iterable[RunRecord] = ()) -> None:
    """One look for all that is asked for job by job after it: how often the ledger is read does not grow with them."""
    waiting, running = (each.run_key for each in tx.queue()), (each.run_key for each in leases)
    tx.read_ahead([*waiting, *running, *(each.run_key for each in others)])


def pauses(entry: QueueEntry, now_s: float) -> bool:
    """Whether the run is not to start yet, whatever is free."""
    return entry.next_attempt.not_before_s > now_s


def _queued(at: _Moment, entry: QueueEntry) -> QueuedJob:
    run = at.tx.run(entry.run_key)
    assert run is not None, "a queue entry has a run (foreign key)"
    attempts = since_registered(run, at.tx.attempts(run.run_key))
    done = entry.next_attempt.checkpoint_step or 0
    planned = (run.total_steps or 0) - done
    return _waiting(
        at,
        run,
        entry.plans,
        entry.next_attempt,
        elasticity(run, attempts, at.rules),
        submitted_s=entry.submitted_s,
        ordered=entry.ordered,
        work_done=done / planned if planned > 0 else 0.0,
    )


def _waiting(
    at: _Moment,
    run: RunRecord,
    plans: tuple[ResourcePlan, ...],
    next_attempt: NextAttempt,
    elastic: Elasticity | None,
    *,
    submitted_s: float | None = None,
    ordered: bool = False,
    work_done: float = 0.0,
) -> QueuedJob:
    return QueuedJob(
        run_key=run.run_key,
        job_name=run.job.name,
        submitted_s=run.created_s if submitted_s is None else submitted_s,
        plans=plans,
        ordered=ordered,
        work_done=work_done,
        priority=run.job.priority,
        queue=run.job.queue,
        team=run.job.team,
        objective=run.job.objective,
        excluded_nodes=at.avoided(next_attempt, plans),
        elasticity=elastic,
        memory_constrained=exceeded_plan(next_attempt, plans),
        deadline_s=deadline_s(run.job),
    )


def _holding(at: _Moment, lease: Lease, *, foreseeing: bool) -> QueuedJob | RunningJob | None:
    """The run behind ``lease`` where it is, or where it will be once it was moved, if its heartbeats come."""
    subject = _subject(at.tx, lease)
    if subject is None:
        return None
    run, attempts, attempt = subject.run, subject.attempts, subject.attempt
    if is_under_way(run, attempt) and lease.state is LeaseState.LIVE:
        return _as_if_moved(at, subject)
    running = _running(at, subject)
    may_move = is_movable(run, attempt, lease, at.cluster) or (foreseeing and _has_yet_to_begin(run, attempt, lease))
    elastic = elasticity(run, attempts, at.rules) if may_move else None
    if elastic is None:
        return running
    own = next(plan for plan in subject.plans if plan.shape == attempt.plan.shape)
    return replace(running, plan=own, plans=plans_to_move_to(attempt, subject.plans), elasticity=elastic)


def _subject(tx: LedgerTx, lease: Lease) -> _Subject | None:
    """The run behind ``lease``, if its heartbeats come."""
    run = tx.run(lease.run_key)
    attempts = () if run is None else since_registered(run, tx.attempts(run.run_key))
    attempt = next((each for each in attempts if each.attempt == lease.attempt), None)
    return None if run is None or attempt is None else _Subject(tx=tx, run=run, attempts=attempts, attempt=attempt)


def _has_yet_to_begin(run: RunRecord, attempt: Attempt, lease: Lease) -> bool:
    is_asked = run.cancel_requested or attempt.stop_reason is not None
    return attempt.first_step_s is None and lease.state is LeaseState.LIVE and not is_asked


def _running(at: _Moment, subject: _Subject) -> RunningJob:
    run, attempt, now_s = subject.run, subject.attempt, at.now_s
    job = RunningJob(
        run_key=run.run_key,
        job_name=run.job.name,
        plan=attempt.plan,
        placement=attempt.placement,
        started_s=attempt.created_s,
        expected_end_s=expected_end_s(run, attempt, now_s),
        priority=run.job.priority,
        queue=run.job.queue,
        team=run.job.team,
        submitted_s=run.created_s,
        ready_s=_ready_s(at, subject),
        objective=run.job.objective,
        excluded_nodes=at.avoided(attempt.next_attempt, [attempt.plan]),
        memory_constrained=exceeded_plan(attempt.next_attempt, [attempt.plan]),
        deadline_s=deadline_s(run.job),
    )
    work, progress = work_left(run, attempt), job.progress(now_s)
    return replace(job, work_left=work.left + progress, work_done=max(0.0, work.done - progress))


def _ready_s(at: _Moment, subject: _Subject) -> float:
    """When its first step was done; before it, when that may be expected, but not in the past."""
    first_step_s = subject.attempt.first_step_s
    if first_step_s is not None:
        return first_step_s
    return max(at.now_s, subject.attempt.created_s + restart_s(subject.attempts, at.rules))


def expected_end_s(run: RunRecord, attempt: Attempt, now_s: float) -> float:
    """When the attempt should end: by its measured step time once there is one, else as predicted."""
    if attempt.step_time_s and attempt.last_step and run.total_steps:
        return now_s + max(0, run.total_steps - attempt.last_step) * attempt.step_time_s
    return max(now_s, attempt.created_s + attempt.plan.predicted_run_s)


def _as_if_moved(at: _Moment, subject: _Subject) -> QueuedJob | RunningJob:
    """Where a run will be once its move is done: on its target, or waiting."""
    run, attempt, work = subject.run, subject.attempt, work_left(subject.run, subject.attempt)
    target = attempt.move_to
    if target is None:
        waiting = _waiting(at, run, subject.plans, attempt.next_attempt, elasticity(run, subject.attempts, at.rules))
        return replace(waiting, work_left=work.left, work_done=work.done)
    asked_s = at.now_s if attempt.stop_asked_s is None else attempt.stop_asked_s
    ready_s = max(at.now_s, asked_s + restart_s(subject.attempts, at.rules))
    return replace(
        _running(at, subject),
        plan=target.plan,
        placement=target.placement,
        started_s=asked_s,
        ready_s=ready_s,
        expected_end_s=ready_s + work.left * target.plan.predicted_run_s,
        work_left=work.left,
        work_done=work.done,
    )


def _between_attempts(at: _Moment, recovering: Iterable[RunRecord], holders: set[str]) -> list[_Subject]:
    """Those of ``recovering`` that have just stopped for a move, and are not queued again yet."""
    found = []
    for run in recovering:
        attempts = since_registered(run, at.tx.attempts(run.run_key))
        if run.run_key in holders or not attempts or at.tx.queue_entry(run.run_key) is not None:
            continue
        last = attempts[-1]
        recent = last.ended_s is not None and at.now_s - last.ended_s < _KEPT_PLACE_S
        if recent and is_under_way(run, last):
            found.append(_Subject(tx=at.tx, run=run, attempts=attempts, attempt=last))
    return found
