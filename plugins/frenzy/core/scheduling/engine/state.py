"""The scheduler's state: facts, indexed, made anew for each decision; and what every active job could hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.capacity.free_capacity import FreeCapacity
from frenzy.core.capacity.queue_use import QuotaUse
from frenzy.core.scheduling.engine.job_plans import NO_PLANS, JobPlans, KnownPlans, RankedPlan
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy, PaperPolicy, Policy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.job import Objective
from frenzy.core.values.scheduling_facts import (
    Action,
    Elasticity,
    QueuedJob,
    RunningJob,
    SchedulingFacts,
    started_of,
)

End = tuple[float, str]


class Entry(NamedTuple):
    """One active job in a pass.

    others: what it could hold instead of what it holds. left: in multiples of its plans' ``unit_s``. first_s: by it the
    job is served among those of its priority: due_s, or earlier. by_cost: it goes by cost, not by time. in_order: it
    takes the first plan that can be had. by_s: time until its deadline, if that can be met.

    Of one that runs: current: what it holds. is_fixed: it keeps that whatever happens. has_moves: others may make it
    move; without, it may only grow into idle GPUs. is_displaced: it runs on a node that takes no new work. num_held:
    GPUs it holds on nodes that take new work.
    """

    job: QueuedJob | RunningJob
    run_key: str
    others: JobPlans
    left: float
    restart_s: float
    due_s: float
    first_s: float
    by_cost: bool
    in_order: bool = False
    by_s: float = math.inf
    current: RankedPlan | None = None
    is_fixed: bool = False
    has_moves: bool = True
    is_displaced: bool = False
    num_held: int = 0
    moves_again_s: float = 0.0

    @property
    def queued(self) -> QueuedJob:
        """The job of an entry that waits."""
        assert isinstance(self.job, QueuedJob)
        return self.job

    @property
    def held(self) -> RankedPlan:
        """What the job of an entry that runs holds."""
        assert self.current is not None
        return self.current

    @property
    def is_kept(self) -> bool:
        """Whether what it holds is its own until it has its turn; else others before it may take that."""
        return self.current is not None and (not self.has_moves or self.is_displaced)

    @property
    def place(self) -> tuple[int, float, str]:
        """Where it stands in line, ascending: by priority, then by ``first_s``."""
        return (-self.job.priority, self.first_s, self.run_key)

    def run_s(self, ranked: RankedPlan) -> float:
        """How long what is left takes with ``ranked``."""
        return self.left * ranked.unit_s

    def lost_s(self, unit_s: float, while_s: float) -> float:
        """What a job that runs loses by a move to a plan of ``unit_s``: to its end, or until it has its GPUs back.

        That is ``while_s`` later, and takes one more restart.
        """
        slower = unit_s / max(self.held.unit_s, 1e-9)
        if slower <= 1.0:
            return self.restart_s
        until_back_s = self.restart_s + (1.0 - 1.0 / slower) * while_s
        return self.restart_s + min(self.run_s(self.held) * (slower - 1.0), until_back_s)


def due_s(job: QueuedJob | RunningJob, work: float, policy: BackfillPolicy, capacity: Capacity) -> float:
    """When the job is due: its submission plus ``slowdown`` times what the whole cluster would take for ``work``."""
    return job.submitted_s + policy.slowdown * work / max(capacity.effective, 1e-9)


def _waiting_entry(job: QueuedJob, known: KnownPlans, capacity: Capacity, policy: Policy) -> Entry:
    """The entry of a waiting job, which does not depend on time."""
    numbers, plans = policy.numbers, known.of_waiting(job)
    left = believed_left(job.work_left, job.work_done, numbers)
    due = due_s(job, plans.work(left), numbers, capacity)
    is_ordered = job.ordered or not isinstance(policy, BackfillPolicy)
    return Entry(job, job.run_key, plans, left, job.restart_s, due, due, job.objective is Objective.COST, is_ordered)


def is_settled(job: RunningJob, now_s: float) -> bool:
    """Whether ``job`` may be moved and was not moved just now."""
    return job.elasticity is not None and job.ran_s(now_s) >= max(job.elasticity.min_run_s, 1e-9)


def _moves_again_s(elasticity: Elasticity, left_s: float, ran_s: float, policy: BackfillPolicy) -> float:
    """What the moves cost that are likely to follow one that it makes of its own accord.

    It kept its plan for ``ran_s``, and is believed to keep the next one ``payback`` times as long.
    """
    return elasticity.restart_s * max(0.0, left_s / (policy.payback * max(ran_s, 1e-9)) - 1.0)


def _work_of_running(current: RankedPlan, others: JobPlans, left: float, *, is_displaced: bool) -> float:
    """A job that has to leave its GPUs is not counted with what it has, if it could have anything else."""
    own, least = left * current.unit_s * current.gpus, others.work(left)
    return own if others.least is None else least if is_displaced else min(own, least)


def believed_left(left: float, done: float, policy: BackfillPolicy) -> float:
    """What is left of a job, in multiples of its plans' run times; a share of what it did, past its estimate."""
    return left if left > 0 else max(policy.overrun_share * done, 1e-9)


@dataclass(frozen=True, slots=True, eq=False)
class SchedulingState:
    """Facts with indices; the steps of a decision return a new state.

    room: what is free now. waiting: in queue order; a run may also be in ``running`` while the workers of its last
    attempt are not yet gone. ends: by GPU type the expected end and run key of each running job on it, ascending.
    """

    policy: Policy
    plans: KnownPlans
    capacity: Capacity
    room: FreeCapacity
    waiting: tuple[Entry, ...]
    running: Mapping[str, RunningJob]
    ends: Mapping[str, tuple[End, ...]]

    @staticmethod
    def of(facts: SchedulingFacts, policy: Policy) -> SchedulingState:
        """The state of ``facts`` under ``policy``."""
        capacity = Capacity.of(facts.cluster)
        plans = KnownPlans.of(policy, capacity)
        running = {job.run_key: job for job in facts.running}
        room = capacity.left_by((policy.need(job.plan), job.placement) for job in running.values())
        entries = [_waiting_entry(job, plans, capacity, policy) for job in facts.queued]
        waiting = tuple(in_order(entries, policy, by="job.submitted_s"))
        return SchedulingState(policy, plans, capacity, room, waiting, running, _ends(room, running.values()))

    @property
    def startable(self) -> list[Entry]:
        """Those of ``waiting`` that hold no GPUs any more."""
        running = self.running
        return [each for each in self.waiting if each.run_key not in running]

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
        started = started_of([*active, *(job.stopped(now_s) for job in ended)], chosen, now_s)
        return self._with(ended, started) if chosen else self

    def without(self, run_keys: Collection[str]) -> SchedulingState:
        """State once the workers of the running jobs ``run_keys`` are gone."""
        return self._with([job for key, job in self.running.items() if key in run_keys], [])

    def _with(self, ended: Sequence[RunningJob], started: Sequence[RunningJob]) -> SchedulingState:
        """State once ``ended`` hold no GPUs any more, and ``started`` theirs, and wait no longer."""
        need, gone, new = self.policy.need, {job.run_key for job in ended}, {job.run_key: job for job in started}
        room = self.room.changed([(need(job.plan), job.placement) for job in ended], 1)
        room = room.changed([(need(job.plan), job.placement) for job in started], -1)
        ends = {name: [each for each in on_type if each[1] not in gone] for name, on_type in self.ends.items()}
        return replace(
            self,
            room=room,
            waiting=tuple([each for each in self.waiting if each.run_key not in new]) if new else self.waiting,
            running={**{key: job for key, job in self.running.items() if key not in gone}, **new},
            ends=_ends(room, started, ends),
        )

    def running_entry(self, job: RunningJob, now_s: float) -> Entry:
        """The entry at ``now_s`` of a job that runs."""
        capacity, policy = self.capacity, self.policy.numbers
        allocations, elasticity = job.placement.allocations, job.elasticity
        is_displaced = any(each.node in capacity.not_ready for each in allocations) if capacity.not_ready else False
        current, others = self.plans.of_running(job, is_displaced=is_displaced)
        ran_s, may_move = job.ran_s(now_s), is_settled(job, now_s)
        progress = ran_s / max(current.unit_s, 1e-9)
        left = believed_left(job.work_left - progress, job.work_done + progress, policy)
        others = others if may_move else NO_PLANS
        work = _work_of_running(current, others, left, is_displaced=is_displaced)
        # What was given for its memory is not taken back by its equals.
        due = -math.inf if job.memory_constrained else due_s(job, work, policy, capacity)
        return Entry(
            job,
            job.run_key,
            others,
            left,
            elasticity.restart_s if elasticity is not None else 0.0,
            due,
            due,
            job.objective is Objective.COST,
            current=current,
            is_fixed=not may_move,
            has_moves=is_displaced or job.moves_left(now_s) >= 1,
            is_displaced=is_displaced,
            # What it holds on a node that has left the cluster is nobody's.
            num_held=sum([each.num_gpus for each in allocations if each.node in capacity.ready]),
            moves_again_s=0.0
            if elasticity is None
            else _moves_again_s(elasticity, left * current.unit_s, ran_s, policy),
        )

    def possible(self, entry: Entry, quotas: QuotaUse | None = None) -> list[RankedPlan]:
        """What of ``entry`` would fit if nothing ran, and ``quotas``, or empty ones, allow; as the job prefers them."""
        quotas = quotas or QuotaUse(self.policy.numbers.queues)
        return [
            each
            for each in entry.others.listed
            if self.capacity.fits_empty(each.need) and quotas.exceeded(entry.job, each.gpu_type, each.num_gpus) is None
        ]


def in_order(entries: Iterable[Entry], policy: Policy, *, by: str) -> list[Entry]:
    """By priority, which the published algorithm does not know, then the attribute ``by``, then run key."""
    # Sorts are stable, and need no tuples, which the collector would look through.
    found = sorted(entries, key=attrgetter("run_key"))
    found.sort(key=attrgetter(by))
    if not isinstance(policy, PaperPolicy):
        found.sort(key=attrgetter("job.priority"), reverse=True)
    return found


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
