"""The scheduler's state: facts, indexed. Events return a new state and touch only what they name."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from frenzy.core.cluster import Cluster, NodeState, Placement
from frenzy.core.has.policy import PaperPolicy, Policy
from frenzy.core.has.room import Need, Room, need_of
from frenzy.core.plan import ResourcePlan
from frenzy.core.queue import Action, QueuedJob, RunningJob, SchedulingFacts, Start


@dataclass(frozen=True, slots=True)
class Rules:
    """What of a policy the indices depend on: what a plan is charged for, and the queue's order."""

    millicpus_per_gpu: int
    counts_host: bool
    uses_priority: bool

    @staticmethod
    def under(policy: Policy) -> Rules:
        paper = isinstance(policy, PaperPolicy)
        counts_host = not isinstance(policy, PaperPolicy) or policy.launchable_only
        return Rules(round(policy.cpus_per_gpu * 1000) if counts_host else 0, counts_host, not paper)

    def need(self, plan: ResourcePlan, excluded_nodes: tuple[str, ...] = ()) -> Need:
        need = need_of(plan, millicpus_per_gpu=self.millicpus_per_gpu, excluded_nodes=excluded_nodes)
        return need if self.counts_host else need._replace(host_bytes=0, group_size=1)

    def queue_order(self, job: QueuedJob) -> tuple[int, float, str]:
        """Sort key of the queue, total: priority descending, then time of submission, then run key."""
        return (-job.priority if self.uses_priority else 0, job.submitted_s, job.run_key)


@dataclass(frozen=True, slots=True)
class SchedulingState:
    """Facts with indices: ``room`` is free now, ``empty`` would be if nothing ran.

    waiting: in queue order. A run may be in ``waiting`` and ``running`` at once while the workers
    of its last attempt are not yet seen gone; it cannot start then.
    """

    cluster: Cluster
    rules: Rules
    room: Room
    empty: Room
    waiting: tuple[QueuedJob, ...]
    running: Mapping[str, RunningJob]

    @staticmethod
    def of(facts: SchedulingFacts, policy: Policy) -> SchedulingState:
        """The state of ``facts``."""
        rules = Rules.under(policy)
        return SchedulingState(
            cluster=facts.cluster,
            rules=rules,
            room=Room.of(facts.cluster, ((rules.need(job.plan), job.placement) for job in facts.running)),
            empty=Room.of(facts.cluster),
            waiting=tuple(sorted(facts.queued, key=rules.queue_order)),
            running={job.run_key: job for job in facts.running},
        )

    @property
    def facts(self) -> SchedulingFacts:
        return SchedulingFacts(cluster=self.cluster, queued=self.waiting, running=tuple(self.running.values()))

    def submit(self, job: QueuedJob) -> SchedulingState:
        """State once ``job`` waits."""
        waiting = list(self.waiting)
        insort(waiting, job, key=self.rules.queue_order)
        return replace(self, waiting=tuple(waiting))

    def withdraw(self, run_key: str) -> SchedulingState:
        """State once ``run_key`` no longer waits."""
        return replace(self, waiting=tuple(job for job in self.waiting if job.run_key != run_key))

    def start(self, started: Iterable[RunningJob]) -> SchedulingState:
        """State once the jobs in ``started`` hold their GPUs and wait no longer."""
        new = {job.run_key: job for job in started}
        room = self.room
        for job in new.values():
            room = room.hold(self.rules.need(job.plan), job.placement)
        waiting = tuple(job for job in self.waiting if job.run_key not in new)
        return replace(self, room=room, waiting=waiting, running={**self.running, **new})

    def finish(self, run_key: str) -> SchedulingState:
        """State once the workers of ``run_key`` are gone."""
        running = dict(self.running)
        job = running.pop(run_key)
        return replace(self, room=self.room.release(self.rules.need(job.plan), job.placement), running=running)

    def with_cluster(self, cluster: Cluster) -> SchedulingState:
        """State once nodes have come, gone or changed; a rebuild of the indices."""
        held = ((self.rules.need(job.plan), job.placement) for job in self.running.values())
        return replace(self, cluster=cluster, room=Room.of(cluster, held), empty=Room.of(cluster))


def all_nodes_ready(cluster: Cluster) -> Cluster:
    """``cluster`` as it would be with no node drained or lost."""
    return Cluster(cluster.gpu_types, tuple(replace(node, state=NodeState.READY) for node in cluster.nodes))


def running_job(job: QueuedJob, plan: ResourcePlan, placement: Placement, *, now_s: float) -> RunningJob:
    """``job`` once started at ``now_s`` with ``plan``, expected to take as long as predicted."""
    return RunningJob(
        run_key=job.run_key,
        job_name=job.job_name,
        plan=plan,
        placement=placement,
        started_s=now_s,
        expected_end_s=now_s + plan.predicted_run_s,
        priority=job.priority,
        queue=job.queue,
        team=job.team,
    )


def apply_actions(facts: SchedulingFacts, actions: Iterable[Action], *, now_s: float) -> SchedulingFacts:
    """``facts`` once every Start in ``actions`` happened at ``now_s``."""
    starts = {action.run_key: action for action in actions if isinstance(action, Start)}
    started = tuple(
        running_job(job, starts[job.run_key].plan, starts[job.run_key].placement, now_s=now_s)
        for job in facts.queued
        if job.run_key in starts
    )
    queued = tuple(job for job in facts.queued if job.run_key not in starts)
    return replace(facts, queued=queued, running=facts.running + started)
