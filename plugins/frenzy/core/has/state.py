"""The scheduler's state: facts, indexed. Events return a new state and touch only what they name."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from frenzy.core.has.choices import Capacity, Tables
from frenzy.core.has.options import Contender, Rules
from frenzy.core.has.placement import place_in
from frenzy.core.has.policy import HasPolicy, Policy
from frenzy.core.has.room import Need, Room
from frenzy.core.has.standing import Standing
from frenzy.core.has.timeline import Ends
from frenzy.core.has.waiting import Waiting
from frenzy.core.values.cluster import Cluster, NodeState, Placement
from frenzy.core.values.plan import ResourcePlan
from frenzy.core.values.queue import Action, Hold, Preempt, QueuedJob, Resize, RunningJob, SchedulingFacts, Start

End = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Seen:
    """What is remembered of decisions.

    at_s: when the last one was made; looked_at_all: whether it looked at all jobs. weight: of all, when one last did;
    num_changes: jobs that came or left since. num_decisions: of those that did not look at all jobs.
    """

    at_s: float
    looked_at_all: bool
    weight: float
    num_changes: int = 0
    num_decisions: int = 0


class _KnownEnds(NamedTuple):
    """What the expected ends on a GPU type were made of, and what came of them."""

    ends: tuple[End, ...]
    found: Ends


@dataclass(frozen=True, slots=True)
class SchedulingState:
    """Facts with indices; equal for equal facts, however it came about.

    room: what is free now. empty: what would be free if nothing ran. waiting: in queue order; a
    run may be in ``waiting`` and ``running`` at once while the workers of its last attempt are
    not yet seen gone, and cannot start then. ends: for each GPU type the expected end (infinite
    if not known) and run key of each running job on it, ascending.
    """

    cluster: Cluster
    rules: Rules
    room: Room
    empty: Room
    waiting: Waiting
    running: Mapping[str, RunningJob]
    ends: Mapping[str, tuple[End, ...]]
    standing: Standing | None
    seen: Seen | None = field(default=None, compare=False, repr=False)
    _fits_empty: dict[Need, bool] = field(default_factory=dict, compare=False, repr=False)
    _known_ends: dict[str, _KnownEnds] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(facts: SchedulingFacts, policy: Policy) -> SchedulingState:
        """The state of ``facts`` under ``policy``."""
        rules = Rules(policy)
        running = {job.run_key: job for job in facts.running}
        room = Room.of(facts.cluster, _held(rules, running.values()))
        waiting = Waiting.of((rules.contender(job, facts.cluster) for job in facts.queued), rules.queue_order)
        return SchedulingState(
            cluster=facts.cluster,
            rules=rules,
            room=room,
            empty=Room.of(facts.cluster),
            waiting=waiting,
            running=running,
            ends=_ends(room, running.values()),
            standing=_standing(facts.cluster, rules, waiting, running.values()),
        )

    def decided(self, now_s: float, *, looked_at_all: bool) -> SchedulingState:
        """State once a decision on it was made at ``now_s``; see ``elastic.looks_at_all``."""
        if self.standing is None:
            return self
        before = self.seen or Seen(now_s, True, self.standing.weight)
        if looked_at_all:
            seen = Seen(now_s, True, self.standing.weight, 0, before.num_decisions)
        else:
            seen = Seen(now_s, False, before.weight, before.num_changes, before.num_decisions + (before.at_s != now_s))
        return replace(self, seen=seen)

    def _changed(self) -> Seen | None:
        """What is remembered once one more job came or left."""
        seen = self.seen
        if seen is None:
            return None
        return Seen(seen.at_s, seen.looked_at_all, seen.weight, seen.num_changes + 1, seen.num_decisions)

    @property
    def facts(self) -> SchedulingFacts:
        queued = tuple(contender.job for contender in self.waiting)
        return SchedulingFacts(cluster=self.cluster, queued=queued, running=tuple(self.running.values()))

    @property
    def may_start(self) -> bool:
        """Whether any waiting job finds as many idle GPUs as its smallest plan takes; where types are mixed, always."""
        lines = self.waiting.lines.values()
        return self.rules.counts_gpus_only or any(line.jobs.first.may_fit(self.room) for line in lines)

    def submit(self, job: QueuedJob) -> SchedulingState:
        """State once ``job`` waits."""
        contender = self.rules.contender(job, self.cluster)
        waiting = self.waiting.put(contender)
        if self.standing is not None:
            return replace(self, waiting=waiting, standing=self.standing.submit(contender), seen=self._changed())
        standing = _standing(self.cluster, self.rules, waiting, self.running.values()) if job.elasticity else None
        return replace(self, waiting=waiting, standing=standing)

    def withdraw(self, run_key: str) -> SchedulingState:
        """State once ``run_key`` no longer waits."""
        standing, contender = self.standing, self.waiting.find(run_key)
        if contender is None:
            return self
        if standing is not None:
            standing = standing.withdraw(contender)
        return replace(self, waiting=self.waiting.without([run_key]), standing=standing, seen=self._changed())

    def with_front(self, num_jobs: int) -> SchedulingState:
        """State in which only the first ``num_jobs`` of the queue wait; it is for passes that move no job."""
        return replace(self, waiting=self.waiting.front(num_jobs), standing=None)

    def start(self, started: Iterable[RunningJob]) -> SchedulingState:
        """State once the jobs in ``started`` hold their GPUs and wait no longer."""
        new = {job.run_key: job for job in started}
        room = self.room
        added: dict[str, list[End]] = {}
        for job in new.values():
            room = room.hold(self.rules.need(job.plan), job.placement)
            for gpu_type in room.types_of(job.placement):
                added.setdefault(gpu_type, []).append(_end(job))
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
            standing=self._standing_once_started(new, waiting, running),
        )

    def _standing_once_started(
        self, new: Mapping[str, RunningJob], waiting: Waiting, running: Mapping[str, RunningJob]
    ) -> Standing | None:
        standing: Standing | None = self.standing
        if standing is None:
            movable = any(job.elasticity is not None for job in new.values())
            return _standing(self.cluster, self.rules, waiting, running.values()) if movable else None
        for job in new.values():
            standing = standing.start(job)
        for contender in [self.waiting.find(run_key) for run_key in new]:
            standing = standing.withdraw(contender) if standing is not None and contender is not None else standing
        return standing

    def finish(self, run_key: str) -> SchedulingState:
        """State once the workers of ``run_key`` are gone. Raises KeyError if it does not run."""
        running = dict(self.running)
        job = running.pop(run_key)
        ends = dict(self.ends)
        for gpu_type in self.room.types_of(job.placement):
            at = bisect_left(ends[gpu_type], _end(job))
            ends[gpu_type] = ends[gpu_type][:at] + ends[gpu_type][at + 1 :]
            if not ends[gpu_type]:
                del ends[gpu_type]
        room = self.room.release(self.rules.need(job.plan), job.placement)
        standing = self.standing.finish(job) if self.standing is not None else None
        return replace(self, room=room, running=running, ends=ends, standing=standing, seen=self._changed())

    def move(self, job: RunningJob) -> SchedulingState:
        """State once the running job of the same key holds ``job``'s GPUs in place of its own."""
        return self.finish(job.run_key).start([job])

    def requeue(self, job: QueuedJob) -> SchedulingState:
        """State once the running job of the same key has stopped and waits as ``job``."""
        return self.finish(job.run_key).submit(job)

    def after(self, actions: Iterable[Action], now_s: float) -> SchedulingState:
        """State once ``actions`` have happened at ``now_s``: what gives its GPUs back does so before any is taken."""
        state, entering = self, list[RunningJob]()
        for action in actions:
            if isinstance(action, Hold):
                continue
            job = state._job_as_it_waits(action.run_key, now_s)
            if isinstance(action, Preempt):
                state = state.requeue(job)
                continue
            if isinstance(action, Resize):
                state = state.finish(action.run_key)
            entering.append(restarted(job, action.plan, action.placement, now_s=now_s))
        return state.start(entering) if entering else state

    def _job_as_it_waits(self, run_key: str, now_s: float) -> QueuedJob:
        """The job of that key, stopped at a checkpoint if it runs."""
        if run_key in self.running:
            return self.running[run_key].stopped(now_s)
        contender = self.waiting.find(run_key)
        assert contender is not None, "only active jobs are acted on"
        return contender.job

    def with_cluster(self, cluster: Cluster) -> SchedulingState:
        """State once nodes have come, gone or changed: indices of the nodes are made anew."""
        room = Room.of(cluster, _held(self.rules, self.running.values()))
        waiting = Waiting.of((self.rules.contender(each.job, cluster) for each in self.waiting), self.waiting.order)
        return replace(
            self,
            cluster=cluster,
            room=room,
            empty=Room.of(cluster),
            ends=_ends(room, self.running.values()),
            waiting=waiting,
            standing=_standing(cluster, self.rules, waiting, self.running.values()),
            seen=None,
            _fits_empty={},
            _known_ends={},
        )

    def fits_empty(self, need: Need) -> bool:
        """Whether ``need`` would fit if nothing ran; found once for all states of the same nodes."""
        if need not in self._fits_empty:
            self._fits_empty[need] = place_in(self.empty, need) is not None
        return self._fits_empty[need]

    def ends_on(self, gpu_type: str) -> Ends:
        """The expected ends on a type of the cluster; found once for all states between which none of its jobs starts
        or ends.
        """
        room, ends = self.room.by_type[gpu_type], self.ends.get(gpu_type, ())
        known = self._known_ends.get(gpu_type)
        if known is None or known.found.before is not room or known.ends is not ends:
            jobs = ((end_s, self.running[run_key]) for end_s, run_key in ends)
            known = self._known_ends[gpu_type] = _KnownEnds(ends, Ends(room, jobs, self.rules))
        return known.found


def _standing(
    cluster: Cluster, rules: Rules, waiting: Iterable[Contender], running: Iterable[RunningJob]
) -> Standing | None:
    if not isinstance(rules.policy, HasPolicy):
        return None
    return Standing.of(rules.policy, Tables(rules, Capacity.of(cluster)), waiting, running)


def _held(rules: Rules, jobs: Iterable[RunningJob]) -> Iterable[tuple[Need, Placement]]:
    return ((rules.need(job.plan), job.placement) for job in jobs)


def _ends(room: Room, jobs: Iterable[RunningJob]) -> dict[str, tuple[End, ...]]:
    ends: dict[str, list[End]] = {}
    for job in jobs:
        for gpu_type in room.types_of(job.placement):
            ends.setdefault(gpu_type, []).append(_end(job))
    return {gpu_type: tuple(sorted(on_type)) for gpu_type, on_type in ends.items()}


def _end(job: RunningJob) -> End:
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
        pressed=job.pressed,
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
