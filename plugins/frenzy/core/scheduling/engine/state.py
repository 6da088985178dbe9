"""The scheduler's state: facts, indexed, made anew for each decision. Steps of one decision return a new state."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from frenzy.core.scheduling.engine.entries import waiting_entry
from frenzy.core.scheduling.engine.plan_tables import Capacity, Rules, Tables
from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.scheduling.engine.queue_index import Waiting
from frenzy.core.scheduling.engine.room import FreeCapacity, Need, as_known
from frenzy.core.values.cluster import Cluster, NodeState, Placement
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

    cluster: Cluster
    rules: Rules
    tables: Tables
    capacity: Capacity
    room: FreeCapacity
    waiting: Waiting
    running: Mapping[str, RunningJob]
    ends: Mapping[str, tuple[End, ...]]

    @staticmethod
    def of(facts: SchedulingFacts, policy: Policy) -> SchedulingState:
        """The state of ``facts`` under ``policy``."""
        rules, cluster = Rules(policy), as_known(facts.cluster)
        tables, capacity, numbers = Tables.of(policy, cluster), Capacity.of(cluster), rules.numbers
        running = {job.run_key: job for job in facts.running}
        room = FreeCapacity.of(cluster, ((rules.need(job.plan), job.placement) for job in running.values()))
        waiting = [waiting_entry(job, tables, capacity, numbers) for job in facts.queued]
        return SchedulingState(
            cluster=cluster,
            rules=rules,
            tables=tables,
            capacity=capacity,
            room=room,
            waiting=Waiting.of(waiting, by_priority=rules.by_priority),
            running=running,
            ends=_ends(room, running.values()),
        )

    @property
    def facts(self) -> SchedulingFacts:
        queued = tuple([entry.queued for entry in self.waiting])
        return SchedulingFacts(cluster=self.cluster, queued=queued, running=tuple(self.running.values()))

    def submit(self, job: QueuedJob) -> SchedulingState:
        """State once ``job`` waits."""
        entry = waiting_entry(job, self.tables, self.capacity, self.rules.numbers)
        return replace(self, waiting=self.waiting.put(entry))

    def withdraw(self, run_key: str) -> SchedulingState:
        """State once ``run_key`` no longer waits."""
        return replace(self, waiting=self.waiting.without((run_key,)))

    def with_only(self, run_keys: Collection[str]) -> SchedulingState:
        """State in which only the jobs of ``run_keys`` wait."""
        return replace(self, waiting=self.waiting.only(run_keys))

    def start(self, started: Iterable[RunningJob]) -> SchedulingState:
        """State once the jobs in ``started`` hold their GPUs and wait no longer."""
        new = {job.run_key: job for job in started}
        room = self.room
        added: dict[str, list[End]] = {}
        for job in new.values():
            room = room.hold(self.rules.need(job.plan), job.placement)
            for gpu_type in room.types_of(job.placement):
                added.setdefault(gpu_type, []).append(end_of(job))
        waiting, running = self.waiting.without(new), {**self.running, **new}
        return replace(
            self,
            room=room,
            waiting=waiting,
            running=running,
            ends={
                **self.ends,
                **{gpu_type: tuple(sorted((*self.ends.get(gpu_type, ()), *more))) for gpu_type, more in added.items()},
            },
        )

    def finish(self, run_key: str) -> SchedulingState:
        """State once the workers of ``run_key`` are gone. Raises KeyError if it does not run."""
        running = dict(self.running)
        job = running.pop(run_key)
        ends = dict(self.ends)
        for gpu_type in self.room.types_of(job.placement):
            at = bisect_left(ends[gpu_type], end_of(job))
            ends[gpu_type] = ends[gpu_type][:at] + ends[gpu_type][at + 1 :]
            if not ends[gpu_type]:
                del ends[gpu_type]
        room = self.room.release(self.rules.need(job.plan), job.placement)
        return replace(self, room=room, running=running, ends=ends)

    def move(self, job: RunningJob) -> SchedulingState:
        """State once the running job of the same key holds ``job``'s GPUs in place of its own."""
        return self.finish(job.run_key).start([job])

    def requeue(self, job: QueuedJob) -> SchedulingState:
        """State once the running job of the same key has stopped and waits as ``job``."""
        return self.finish(job.run_key).submit(job)

    def fits_empty(self, need: Need) -> bool:
        """Whether ``need`` would fit if nothing ran."""
        return self.capacity.fits_empty(need)


def _ends(room: FreeCapacity, jobs: Iterable[RunningJob]) -> dict[str, tuple[End, ...]]:
    ends: dict[str, list[End]] = {}
    for job in jobs:
        for gpu_type in room.types_of(job.placement):
            ends.setdefault(gpu_type, []).append(end_of(job))
    return {gpu_type: tuple(sorted(on_type)) for gpu_type, on_type in ends.items()}


def end_of(job: RunningJob) -> End:
    """When it is expected to end; last, where nobody knows."""
    return (math.inf if job.expected_end_s is None else job.expected_end_s, job.run_key)


def all_nodes_ready(cluster: Cluster) -> Cluster:
    """``cluster`` as it would be with no node drained or lost."""
    return Cluster(cluster.gpu_types, tuple(replace(node, state=NodeState.READY) for node in cluster.nodes))


def running_job(
    job: QueuedJob, plan: ResourcePlan, placement: Placement, *, now_s: float, restart_s: float = 0.0
) -> RunningJob:
    """``job`` once started at ``now_s`` with ``plan``, expected to take as long as predicted.

    restart_s: until its first step, for one that goes on from a checkpoint.
    """
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
    starts = {key: action for key, action in chosen.items() if isinstance(action, Start | Resize)}
    stopped = tuple(job.stopped(now_s) for job in facts.running if job.run_key in chosen)
    active = facts.queued + stopped
    started = tuple(
        restarted(job, starts[job.run_key].plan, starts[job.run_key].placement, now_s=now_s)
        for job in active
        if job.run_key in starts
    )
    queued = tuple(job for job in active if job.run_key not in starts)
    kept = tuple(job for job in facts.running if job.run_key not in chosen)
    return replace(facts, queued=queued, running=kept + started)


def restarted(job: QueuedJob, plan: ResourcePlan, placement: Placement, *, now_s: float) -> RunningJob:
    """``job`` once started at ``now_s``, its first step a restart behind if it goes on from a checkpoint."""
    restart_s = job.elasticity.restart_s if job.elasticity is not None and job.work_done > 0 else 0.0
    return running_job(job, plan, placement, now_s=now_s, restart_s=restart_s)
