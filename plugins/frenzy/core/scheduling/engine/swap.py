"""Swaps: a job whose memory exceeded its GPUs gets larger ones from a job that fits elsewhere.

Such a job has stopped at a checkpoint, and can go on only where there is more memory. It goes before its
equals: it takes what is idle; else a running job moves for it, perhaps to the GPUs that it gave up itself. Both
run on. Of the jobs that could move, the one moves by which least time is lost.

A job is not moved for one of lower priority, before its least run time, without moves left, or when it would
lose more than the other would otherwise wait. What was given for memory is not taken back: the job is served
before its equals while it runs (``entries``), and makes nobody move by that (``shares``). So no two jobs ever
change places back and forth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from frenzy.core.scheduling.engine.entries import Entry, believed_left, is_settled
from frenzy.core.scheduling.engine.placement import place_in
from frenzy.core.scheduling.engine.plan_tables import RankedPlan
from frenzy.core.scheduling.engine.policy_settings import HasPolicy
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.room import FreeCapacity, Need
from frenzy.core.scheduling.engine.state import SchedulingState, restarted
from frenzy.core.values.cluster import Placement
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Action, Resize, RunningJob, Start

# Of a very large cluster's jobs only those are looked at that could lose least.
_MAX_TRIED = 64


class Refusal(StrEnum):
    """Why a running job does not move for one under memory pressure."""

    MORE_IMPORTANT = "its priority is higher"
    NOT_MOVABLE = "it may not be moved, or not yet"
    TOO_SOON = "it has not run for its least time between two moves"
    NO_MOVES = "it was moved as often as it may be for now"
    LEAVING = "its node is being drained"
    TOO_SMALL = "its GPUs would not be enough"
    NO_OTHER_PLACE = "it fits nowhere else"
    LOSES_MORE = "it would lose more time than is lost by waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """``moved`` goes elsewhere, so that ``start`` is possible; None where idle GPUs will do. loss_s: of both."""

    start: Start
    moved: Resize | None = None
    loss_s: float = 0.0

    @property
    def actions(self) -> tuple[Action, ...]:
        return (self.start,) if self.moved is None else (self.moved, self.start)


def served_first(state: SchedulingState, now_s: float, policy: HasPolicy) -> tuple[tuple[Action, ...], SchedulingState]:
    """What is done for the jobs under memory pressure before all else, and ``state`` once it is done."""
    actions: list[Action] = []
    for entry in [each for each in state.waiting if each.job.memory_constrained and each.run_key not in state.running]:
        found = _Search(state, entry, now_s, policy).best()
        if found is not None:
            actions += found.actions
            state = _after(state, found, entry, now_s)
    return tuple(actions), state


def refusals(
    state: SchedulingState, entry: Entry, now_s: float, policy: HasPolicy
) -> Iterator[tuple[RunningJob, Refusal]]:
    """The jobs that hold what ``entry`` could use, each with why it does not move; none once one does."""
    search = _Search(state, entry, now_s, policy)
    if search.best() is not None:
        return
    told: set[str] = set()
    for ranked in search.plans:
        for job in search.holders(ranked.gpu_type):
            if job.run_key not in told:
                told.add(job.run_key)
                verdict = search.judged(job, ranked)
                yield job, verdict if isinstance(verdict, Refusal) else Refusal.LOSES_MORE


def _after(state: SchedulingState, swap: Swap, entry: Entry, now_s: float) -> SchedulingState:
    if swap.moved is not None:
        stopped = state.running[swap.moved.run_key].stopped(now_s)
        state = state.move(restarted(stopped, swap.moved.plan, swap.moved.placement, now_s=now_s))
    return state.start([restarted(entry.queued, swap.start.plan, swap.start.placement, now_s=now_s)])


@dataclass(slots=True)
class _Search:
    """The search for one job's place.

    _types: those that jobs of higher priority wait for, and it leaves alone. _movable: for each type the jobs
    that may be asked to move, with how much longer than now they would at least take elsewhere, as a share.
    """

    state: SchedulingState
    entry: Entry
    now_s: float
    policy: HasPolicy
    plans: list[RankedPlan] = field(init=False)
    _types: set[str] = field(init=False)
    _quotas: QuotaUse = field(init=False)
    _ends: dict[str, list[tuple[float, int]]] = field(init=False, default_factory=dict)
    _movable: dict[str, list[tuple[RunningJob, float]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        state, job = self.state, self.entry.queued
        self._quotas = QuotaUse.of(self.policy, state.running.values())
        self._types = _wanted_before(state, job.priority, self._quotas)
        self.plans = [
            ranked
            for ranked in self.entry.others.listed
            if ranked.gpu_type not in self._types
            and self._quotas.exceeded(job, ranked.gpu_type, ranked.num_gpus) is None
            and state.fits_empty(ranked.need)
        ]

    def best(self) -> Swap | None:
        """The first plan that finds idle GPUs; else the swap by which both jobs lose least time."""
        return self._without_a_move() or self._with_a_move()

    def holders(self, gpu_type: str) -> list[RunningJob]:
        """The jobs that hold GPUs of ``gpu_type``, by run key."""
        keys = {run_key for _, run_key in self.state.ends.get(gpu_type, ())}
        return [self.state.running[key] for key in sorted(keys)]

    def judged(self, job: RunningJob, ranked: RankedPlan) -> Swap | Refusal:
        """The swap by which ``job`` makes room for ``ranked``, or why there is none."""
        refusal = self._stays(job, ranked)
        if refusal is not None:
            return refusal
        room = self.state.room.release(self.state.rules.need(job.plan), job.placement)
        placement = place_in(room, ranked.need)
        if placement is None:
            return Refusal.TOO_SMALL
        room = room.hold(ranked.need, placement)
        for plan in self._by_loss(job, ranked):
            target = self._target(room, job, plan)
            if target is None:
                continue
            loss_s = self._loss_s(job, plan, ranked)
            is_equal = job.priority == self.entry.job.priority
            if is_equal and loss_s >= self._wait_s(ranked.need):
                return Refusal.LOSES_MORE
            return Swap(
                start=Start(run_key=self.entry.job.run_key, plan=ranked.plan, placement=placement),
                moved=Resize(run_key=job.run_key, plan=plan, placement=target),
                loss_s=loss_s + self.entry.queued.work_left * ranked.unit_s,
            )
        return Refusal.NO_OTHER_PLACE

    def _without_a_move(self) -> Swap | None:
        for ranked in self.plans:
            placement = place_in(self.state.room, ranked.need)
            if placement is not None:
                return Swap(start=Start(run_key=self.entry.job.run_key, plan=ranked.plan, placement=placement))
        return None

    def _with_a_move(self) -> Swap | None:
        best: Swap | None = None
        for ranked in self.plans:
            for job in self._likely(ranked):
                found = self.judged(job, ranked)
                if isinstance(found, Swap) and (best is None or found.loss_s < best.loss_s):
                    best = found
        return best

    def _likely(self, ranked: RankedPlan) -> list[RunningJob]:
        """The jobs that might move for ``ranked``; of very many, those that would lose least if any place were free."""
        idle = self.state.room.idle_gpus(ranked.gpu_type)
        wait_s = self._wait_s(ranked.need)
        found: list[tuple[float, str, RunningJob]] = []
        for job, slower in self._movable_on(ranked.gpu_type):
            if idle + job.plan.num_gpus < ranked.num_gpus:
                continue
            elsewhere_s = self._lost_s(job, slower, ranked)
            # Where GPUs of the type are idle on other nodes, it might go there with the plan it has.
            least_s = self._lost_s(job, 1.0, ranked) if idle else elsewhere_s
            if least_s < wait_s or job.priority < self.entry.job.priority:
                found.append((elsewhere_s, job.run_key, job))
        return [job for *_, job in sorted(found)[:_MAX_TRIED]]

    def _movable_on(self, gpu_type: str) -> list[tuple[RunningJob, float]]:
        if gpu_type not in self._movable:
            holders = self.holders(gpu_type)
            movable = [each for each in holders if self._may_not_move(each, gpu_type) is None]
            self._movable[gpu_type] = [(each, _least_slower(each)) for each in movable]
        return self._movable[gpu_type]

    def _stays(self, job: RunningJob, ranked: RankedPlan) -> Refusal | None:
        """Why ``job`` cannot be asked to move for ``ranked``."""
        refusal = self._may_not_move(job, ranked.gpu_type)
        if refusal is not None:
            return refusal
        idle = self.state.room.idle_gpus(ranked.gpu_type)
        return Refusal.TOO_SMALL if idle + job.plan.num_gpus < ranked.num_gpus else None

    def _may_not_move(self, job: RunningJob, gpu_type: str) -> Refusal | None:
        """Why ``job``, which holds GPUs of ``gpu_type``, cannot be asked to move at all."""
        if job.priority > self.entry.job.priority:
            return Refusal.MORE_IMPORTANT
        if job.elasticity is None or not job.plans:
            return Refusal.NOT_MOVABLE
        if not is_settled(job, self.now_s):
            return Refusal.TOO_SOON
        if job.moves_left(self.now_s) < 1:
            return Refusal.NO_MOVES
        not_ready = self.state.room.by_type[gpu_type].not_ready
        return Refusal.LEAVING if any(each.node in not_ready for each in job.placement.allocations) else None

    def _by_loss(self, job: RunningJob, ranked: RankedPlan) -> list[ResourcePlan]:
        """What ``job`` could move to, best first; a type may have become smaller since the plan was made."""
        types = self.state.cluster.types_by_name
        quotas = self._quotas.after(
            (job, job.plan.gpu_type, -job.plan.num_gpus),
            (self.entry.job, ranked.gpu_type, ranked.num_gpus),
        )
        plans = [
            plan
            for plan in job.plans
            if plan.gpu_type in types
            and plan.gpu_type not in self._types
            and plan.memory.required_bytes <= types[plan.gpu_type].memory_bytes
            and quotas.exceeded(job, plan.gpu_type, plan.num_gpus) is None
        ]
        return sorted(plans, key=lambda plan: self._loss_s(job, plan, ranked))

    def _target(self, room: FreeCapacity, job: RunningJob, plan: ResourcePlan) -> Placement | None:
        return place_in(room, self.state.rules.need(plan, job.excluded_nodes))

    def _loss_s(self, job: RunningJob, plan: ResourcePlan, ranked: RankedPlan) -> float:
        """Seconds that ``job`` loses with ``plan``: to its end, or until the other has ended and it moves back."""
        return self._lost_s(job, plan.predicted_run_s / job.plan.predicted_run_s, ranked)

    def _lost_s(self, job: RunningJob, slower: float, ranked: RankedPlan) -> float:
        """The same where it would take ``slower`` times as long."""
        assert job.elasticity is not None, "only a job that may be moved is asked for its loss"
        restart_s = job.elasticity.restart_s
        slower_s = self._left_s(job) * (slower - 1)
        if slower_s <= 0 or job.moves_left(self.now_s) < 2:
            return restart_s + slower_s
        return restart_s + min(slower_s, restart_s + (1 - 1 / slower) * self.entry.queued.work_left * ranked.unit_s)

    def _left_s(self, job: RunningJob) -> float:
        """Seconds to the end of ``job`` where it is: by its expected end, which may be measured, else as planned."""
        measured_s = 0.0 if job.expected_end_s is None else job.expected_end_s - self.now_s
        if measured_s > 0:
            return measured_s
        progress = job.progress(self.now_s)
        left = believed_left(job.work_left - progress, job.work_done + progress, self.policy)
        return left * job.plan.predicted_run_s

    def _wait_s(self, need: Need) -> float:
        """When jobs that end will have left as many GPUs as ``need`` takes; infinite if they never do."""
        if need.gpu_type not in self._ends:
            holders = self.holders(need.gpu_type)
            ends = ((self._left_s(each), each.plan.num_gpus) for each in holders)
            self._ends[need.gpu_type] = sorted(ends)
        num_gpus = self.state.room.idle_gpus(need.gpu_type)
        for end_s, freed in self._ends[need.gpu_type]:
            num_gpus += freed
            if num_gpus >= need.num_gpus:
                return end_s
        return math.inf


def _least_slower(job: RunningJob) -> float:
    """How many times as long ``job`` would take with the fastest plan for other GPUs; 1 where it has none."""
    own = job.plan
    others = (
        plan.predicted_run_s for plan in job.plans if plan.gpu_type != own.gpu_type or plan.num_gpus != own.num_gpus
    )
    return min(others, default=own.predicted_run_s) / own.predicted_run_s


def _wanted_before(state: SchedulingState, priority: int, quotas: QuotaUse) -> set[str]:
    """The GPU types that waiting jobs of more than ``priority`` could use: where a node has room, and no quota forbids
    it.
    """
    wanted: set[str] = set()
    for entry in state.waiting:
        if entry.job.priority <= priority:
            break
        if entry.run_key not in state.running:
            wanted.update(
                each.gpu_type
                for each in entry.others.listed
                if quotas.exceeded(entry.job, each.gpu_type, each.num_gpus) is None and state.fits_empty(each.need)
            )
    return wanted
