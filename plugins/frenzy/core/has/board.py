"""One pass in the making: rooms, reservations and the ends that are known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from frenzy.core.cluster import Placement
from frenzy.core.has.placement import place
from frenzy.core.has.room import Free, Need, Room, TypeRoom, lesser, minus, plus
from frenzy.core.has.state import SchedulingState, running_job
from frenzy.core.plan import ResourcePlan
from frenzy.core.queue import QueuedJob, RunningJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """When and where a waiting job could start a plan if running jobs end as expected.

    start_s: None when that hangs on a job whose end is not known. after: names of the jobs whose
    end it waits for last. rank: place of the plan in the job's list, from 0.
    """

    plan: ResourcePlan
    rank: int
    need: Need
    placement: Placement
    start_s: float | None
    after: tuple[str, ...]

    @property
    def end_s(self) -> float:
        return math.inf if self.start_s is None else self.start_s + self.plan.predicted_run_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A promise that is kept: what other jobs leave alone.

    then: room of the GPU type at the promised start, the promised placement taken out.
    spare: GPUs that are idle now and stay unneeded then; jobs that last longer use only these.
    """

    job: QueuedJob
    promise: Promise
    then: TypeRoom
    spare: TypeRoom

    def outlives(self, end_s: float) -> bool:
        """Whether a job that ends at ``end_s`` is gone by the promised start."""
        return self.promise.start_s is not None and end_s <= self.promise.start_s


@dataclass(slots=True)
class Board:
    """Working state of one pass. One reservation per GPU type: that of the first job it blocks."""

    state: SchedulingState
    now_s: float
    room: Room
    started: list[RunningJob] = field(default_factory=list)
    reservations: dict[str, Reservation] = field(default_factory=dict)

    def placement_now(self, plan: ResourcePlan, need: Need) -> Placement | None:
        """Where ``plan`` can start now without breaking a reservation."""
        room = self.room.by_type.get(plan.gpu_type)
        if room is None:
            return None
        reservation = self.reservations.get(plan.gpu_type)
        if reservation is None or reservation.outlives(self.now_s + plan.predicted_run_s):
            return place(room, need)
        return place(reservation.spare, need)

    def start(self, job: QueuedJob, plan: ResourcePlan, need: Need, placement: Placement) -> None:
        """Let ``job`` hold ``placement`` from now on."""
        started = running_job(job, plan, placement, now_s=self.now_s)
        self.started.append(started)
        self.room = self.room.hold(need, placement)
        reservation = self.reservations.get(plan.gpu_type)
        if reservation is not None:
            self.reservations[plan.gpu_type] = self._narrowed(reservation, need, started)

    def reserve(self, job: QueuedJob, promise: Promise) -> None:
        """Keep what ``promise`` needs free for ``job`` from its start on."""
        gpu_type = promise.plan.gpu_type
        then = self.room_at(gpu_type, promise.start_s)
        then = held(then, promise.need, promise.placement)
        now = self.room.by_type[gpu_type]
        spare = TypeRoom.of({name: lesser(free, then.free[name]) for name, free in now.free.items()}, now.not_ready)
        self.reservations[gpu_type] = Reservation(job=job, promise=promise, then=then, spare=spare)

    def room_at(self, gpu_type: str, time_s: float | None) -> TypeRoom:
        """Room of ``gpu_type`` once every job ended that is expected to by ``time_s`` (None: all)."""
        until = math.inf if time_s is None else time_s
        return released(
            self.room.by_type[gpu_type], self.state, (job for end_s, job in self.ends(gpu_type) if end_s <= until)
        )

    def ends(self, gpu_type: str) -> list[tuple[float, RunningJob]]:
        """Jobs on nodes of ``gpu_type`` with the time of their end, ascending; unknown is infinite.

        A job past its expected end may end at any moment, hence now.
        """
        ends = [
            (max(self.now_s, math.inf if job.expected_end_s is None else job.expected_end_s), job)
            for job in (*self.state.running.values(), *self.started)
            if self._touches(job, gpu_type)
        ]
        return sorted(ends, key=lambda end: (end[0], end[1].run_key))

    def _touches(self, job: RunningJob, gpu_type: str) -> bool:
        return any(self.room.type_of_node.get(each.node) == gpu_type for each in job.placement.allocations)

    def _narrowed(self, reservation: Reservation, need: Need, started: RunningJob) -> Reservation:
        then = reservation.then
        if not reservation.outlives(self.now_s + started.plan.predicted_run_s):
            then = held(then, need, started.placement)
        now = self.room.by_type[started.plan.gpu_type]
        names = [each.node for each in started.placement.allocations]
        spare = reservation.spare.with_free({name: lesser(now.free[name], then.free[name]) for name in names})
        return Reservation(job=reservation.job, promise=reservation.promise, then=then, spare=spare)


def held(room: TypeRoom, need: Need, placement: Placement) -> TypeRoom:
    """``room`` with ``placement`` taken out."""
    return room.with_free(
        {each.node: minus(room.free[each.node], need.on_node(each.num_gpus)) for each in placement.allocations}
    )


def released(room: TypeRoom, state: SchedulingState, ended: Iterable[RunningJob]) -> TypeRoom:
    """``room`` once the jobs in ``ended`` are gone."""
    changed: dict[str, Free] = {}
    for job in ended:
        need = state.rules.need(job.plan)
        for each in job.placement.allocations:
            before = changed.get(each.node, room.free.get(each.node))
            if before is not None:
                changed[each.node] = plus(before, need.on_node(each.num_gpus))
    return room.with_free(changed)
