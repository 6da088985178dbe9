"""The scheduler's state: facts, indexed, made anew for each decision. Steps of one decision return a new state."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType

from frenzy.core.scheduling.engine.entries import Entry, waiting_entry
from frenzy.core.scheduling.engine.plan_tables import Capacity, RankedPlan, Tables
from frenzy.core.scheduling.engine.policy_settings import PaperPolicy, Policy
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.room import FreeCapacity, minus, plus
from frenzy.core.values.cluster import Cluster, Placement
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Action, Hold, QueuedJob, Resize, RunningJob, SchedulingFacts, Start

End = tuple[float, str]


@dataclass(frozen=True, slots=True, eq=False)
class SchedulingState:
    """Facts with indices.

    room: what is free now. waiting: in queue order; a
    run may be in ``waiting`` and ``running`` at once while the workers of its last attempt are
    not yet seen gone, and cannot start then. ends: for each GPU type the expected end (infinite
    if not known) and run key of each running job on it, ascending.
    """

    policy: Policy
    tables: Tables
    capacity: Capacity
    room: FreeCapacity
    waiting: tuple[Entry, ...]
    running: Mapping[str, RunningJob]
    ends: Mapping[str, tuple[End, ...]]

    @staticmethod
    def of(facts: SchedulingFacts, policy: Policy) -> SchedulingState:
        """The state of ``facts`` under ``policy``."""
        capacity, numbers = Capacity.of(facts.cluster), policy.numbers
        tables = Tables.of(policy, capacity)
        running = {job.run_key: job for job in facts.running}
        room = capacity.left_by((policy.need(job.plan), job.placement) for job in running.values())
        waiting = [waiting_entry(job, tables, capacity, numbers) for job in facts.queued]
        return SchedulingState(
            policy=policy,
            tables=tables,
            capacity=capacity,
            room=room,
            waiting=_in_queue_order(waiting, policy),
            running=running,
            ends=_ends(room, running.values()),
        )

    @property
    def cluster(self) -> Cluster:
        return self.capacity.cluster

    @property
    def facts(self) -> SchedulingFacts:
        queued = tuple([entry.queued for entry in self.waiting])
        return SchedulingFacts(cluster=self.cluster, queued=queued, running=tuple(self.running.values()))

    def after(self, actions: Iterable[Action], now_s: float) -> SchedulingState:
        """State once ``actions`` are done at ``now_s``; what they stop is not made to wait again."""
        chosen = {each.run_key: each for each in actions}
        ended = [job for key, job in self.running.items() if key in chosen]
        active = [entry.queued for entry in self.waiting if entry.run_key in chosen]
        started = _started([*active, *(job.stopped(now_s) for job in ended)], chosen, now_s)
        return self._with(ended, started) if chosen else self

    def without(self, run_keys: Collection[str]) -> SchedulingState:
        """State once the workers of the running jobs ``run_keys`` are gone."""
        return self._with([job for key, job in self.running.items() if key in run_keys], [])

    def _with(self, ended: Sequence[RunningJob], started: Sequence[RunningJob]) -> SchedulingState:
        """State once ``ended`` hold no GPUs any more, and ``started`` theirs, and wait no longer."""
        need, gone, new = self.policy.need, {job.run_key for job in ended}, {job.run_key: job for job in started}
        room = self.room.changed([(need(job.plan), job.placement) for job in ended], plus)
        room = room.changed([(need(job.plan), job.placement) for job in started], minus)
        ends = {name: [each for each in on_type if each[1] not in gone] for name, on_type in self.ends.items()}
        return replace(
            self,
            room=room,
            waiting=tuple([each for each in self.waiting if each.run_key not in new]) if new else self.waiting,
            running={**{key: job for key, job in self.running.items() if key not in gone}, **new},
            ends=_ends(room, started, ends),
        )

    def possible(self, entry: Entry, quotas: QuotaUse) -> list[RankedPlan]:
        """What of ``entry`` a node has room for, if nothing runs, and ``quotas`` allow; as the job prefers them."""
        return [
            each
            for each in entry.others.listed
            if each.gpu_type in self.capacity.speed
            and self.capacity.fits_empty(each.need)
            and quotas.exceeded(entry.job, each.gpu_type, each.num_gpus) is None
        ]


def _in_queue_order(entries: Iterable[Entry], policy: Policy) -> tuple[Entry, ...]:
    """By priority, which the published algorithm does not know, submission, then run key."""
    # Sorts are stable, and need no tuples, which the collector would look through.
    in_order = sorted(entries, key=attrgetter("run_key"))
    in_order.sort(key=attrgetter("job.submitted_s"))
    if not isinstance(policy, PaperPolicy):
        in_order.sort(key=attrgetter("job.priority"), reverse=True)
    return tuple(in_order)


def _ends(
    room: FreeCapacity, jobs: Iterable[RunningJob], before: Mapping[str, list[End]] = MappingProxyType({})
) -> dict[str, tuple[End, ...]]:
    """Those of ``jobs`` beside those of ``before``."""
    ends = dict(before)
    for job in jobs:
        for gpu_type in room.types_of(job.placement):
            ends.setdefault(gpu_type, []).append(end_of(job))
    return {gpu_type: tuple(sorted(on_type)) for gpu_type, on_type in ends.items() if on_type}


def end_of(job: RunningJob) -> End:
    """When it is expected to end; last, where nobody knows."""
    return (math.inf if job.expected_end_s is None else job.expected_end_s, job.run_key)


def running_job(
    job: QueuedJob, plan: ResourcePlan, placement: Placement, *, now_s: float, restart_s: float | None = None
) -> RunningJob:
    """``job`` once started at ``now_s`` with ``plan``, expected to take as long as predicted.

    restart_s: until its first step; as its elasticity says, if it goes on from a checkpoint, where it is not given.
    """
    if restart_s is None:
        restart_s = job.elasticity.restart_s if job.elasticity is not None and job.work_done > 0 else 0.0
    return RunningJob(
        run_key=job.run_key,
        job_name=job.job_name,
        plan=plan,
        placement=placement,
        started_s=now_s,
        expected_end_s=now_s + restart_s + job.work_left * plan.predicted_run_s,
        ready_s=now_s + restart_s if restart_s else None,
        priority=job.priority,
        queue=job.queue,
        team=job.team,
        submitted_s=job.submitted_s,
        plans=job.plans if job.elasticity else (),
        objective=job.objective,
        excluded_nodes=job.excluded_nodes,
        work_left=job.work_left,
        work_done=job.work_done,
        asked_gpus=job.asked_gpus,
        elasticity=job.elasticity,
        memory_constrained=job.memory_constrained,
        deadline_s=job.deadline_s,
    )


def apply_actions(facts: SchedulingFacts, actions: Iterable[Action], *, now_s: float) -> SchedulingFacts:
    """``facts`` once every action happened at ``now_s``; a job that starts again is ready its restart time later."""
    chosen = {action.run_key: action for action in actions if not isinstance(action, Hold)}
    active = facts.queued + tuple(job.stopped(now_s) for job in facts.running if job.run_key in chosen)
    started = _started(active, chosen, now_s)
    gone = {job.run_key for job in started}
    queued = tuple(job for job in active if job.run_key not in gone)
    kept = tuple(job for job in facts.running if job.run_key not in chosen)
    return replace(facts, queued=queued, running=(*kept, *started))


def _started(active: Iterable[QueuedJob], chosen: Mapping[str, Action], now_s: float) -> list[RunningJob]:
    """Those of ``active`` that ``chosen`` start, or start again."""
    starts = {key: each for key, each in chosen.items() if isinstance(each, Start | Resize)}
    return [
        running_job(job, starts[job.run_key].plan, starts[job.run_key].placement, now_s=now_s)
        for job in active
        if job.run_key in starts
    ]
