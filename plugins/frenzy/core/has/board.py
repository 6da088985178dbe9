"""One pass in the making: what is free, what is promised, what has started."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from frenzy.core.cluster import Placement
from frenzy.core.has.options import Contender, Option
from frenzy.core.has.placement import place
from frenzy.core.has.room import Free, Need, Room, TypeRoom, lesser, minus, plus
from frenzy.core.has.state import SchedulingState, running_job
from frenzy.core.plan import ResourcePlan
from frenzy.core.queue import QueuedJob, RunningJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """When and where a waiting job can start an option if running jobs end as expected.

    start_s: None when that hangs on a job whose end is not known. after: names of the jobs whose
    end it waits for last. preference: place of the option in the job's list, from 0.
    """

    option: Option
    preference: int
    placement: Placement
    start_s: float | None
    after: tuple[str, ...]

    @property
    def end_s(self) -> float:
        return math.inf if self.start_s is None else self.start_s + self.option.plan.predicted_run_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A promise that is kept: what later jobs leave alone.

    instead_of: the plan the job could have started at once and gave up for the promise.
    then: room of the GPU type at the promised start, with the promised placement taken out.
    spare: what is idle now and not needed then; jobs that last longer may use only this.
    """

    job: QueuedJob
    promise: Promise
    instead_of: ResourcePlan | None
    then: TypeRoom
    spare: TypeRoom

    def outlives(self, end_s: float) -> bool:
        """Whether a job that ends at ``end_s`` is gone by the promised start."""
        return self.promise.start_s is not None and end_s <= self.promise.start_s


class Timeline:
    """The room of one GPU type as its running jobs end, one expected end after the other.

    times: distinct ends, ascending; a job past its expected end may end at any moment, hence
    now; jobs whose end is not known come last, at infinity.
    """

    def __init__(self, room: TypeRoom, ends: Iterable[tuple[float, RunningJob]], state: SchedulingState) -> None:
        self._ends = sorted(ends, key=lambda end: (end[0], end[1].run_key))
        self._keys = [end_s for end_s, _ in self._ends]
        self._state = state
        self._now = room
        self._rooms: dict[float, TypeRoom] = {}
        known = sorted({end_s for end_s in self._keys if end_s < math.inf})
        self.times = [*known, math.inf]

    def room_at(self, time_s: float) -> TypeRoom:
        """Room once every job ended that is expected to by ``time_s``."""
        if time_s not in self._rooms:
            ended = (job for _, job in self._ends[: bisect_right(self._keys, time_s)])
            self._rooms[time_s] = released(self._now, self._state, ended)
        return self._rooms[time_s]

    def names_ending_at(self, time_s: float) -> tuple[str, ...]:
        return tuple(job.job_name for end_s, job in self._ends if end_s == time_s)


@dataclass(slots=True)
class Board:
    """Working state of one pass. One reservation per GPU type: that of the first job it blocks.

    Rooms only shrink within a pass, so what did not fit once (``_full``) never will.
    """

    state: SchedulingState
    now_s: float
    room: Room
    started: list[RunningJob] = field(default_factory=list)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    _timelines: dict[str, Timeline] = field(default_factory=dict)
    _full: set[tuple[str, Need]] = field(default_factory=set)

    def fits_now(self, need: Need) -> Placement | None:
        """Where ``need`` fits in what is idle, reservations or not."""
        return self._place("now", self.room.by_type.get(need.gpu_type), need)

    def fits_empty(self, need: Need) -> bool:
        """Whether ``need`` would fit if nothing ran."""
        return self._place("empty", self.state.empty.by_type.get(need.gpu_type), need) is not None

    def startable(self, option: Option) -> Placement | None:
        """Where ``option`` can start now without breaking a reservation."""
        need = option.need
        reservation = self.reservations.get(need.gpu_type)
        if reservation is None or reservation.outlives(self.now_s + option.plan.predicted_run_s):
            return self.fits_now(need)
        return self._place("spare", reservation.spare, need)

    def start(self, contender: Contender, option: Option, placement: Placement) -> None:
        """Let the job hold ``placement`` from now on."""
        started = running_job(contender.job, option.plan, placement, now_s=self.now_s)
        self.started.append(started)
        self.room = self.room.hold(option.need, placement)
        for gpu_type in self.room.types_of(placement):
            self._timelines.pop(gpu_type, None)
            if gpu_type in self.reservations:
                self.reservations[gpu_type] = self._narrowed(self.reservations[gpu_type], option, placement)

    def reserve(self, job: QueuedJob, promise: Promise, *, instead_of: ResourcePlan | None = None) -> None:
        """Keep what ``promise`` needs free for ``job`` from its start on."""
        need = promise.option.need
        at_start = self.timeline(need.gpu_type).room_at(math.inf if promise.start_s is None else promise.start_s)
        then = held(at_start, need, promise.placement)
        now = self.room.by_type[need.gpu_type]
        spare = TypeRoom.of({name: lesser(free, then.free[name]) for name, free in now.free.items()}, now.not_ready)
        self.reservations[need.gpu_type] = Reservation(
            job=job, promise=promise, instead_of=instead_of, then=then, spare=spare
        )

    def timeline(self, gpu_type: str) -> Timeline:
        """The expected ends on ``gpu_type``, those of jobs started in this pass included."""
        if gpu_type not in self._timelines:
            known = ((end_s, self.state.running[run_key]) for end_s, run_key in self.state.ends.get(gpu_type, ()))
            new = (
                (self.now_s + job.plan.predicted_run_s, job)
                for job in self.started
                if gpu_type in self.room.types_of(job.placement)
            )
            ends = ((max(self.now_s, end_s), job) for end_s, job in (*known, *new))
            self._timelines[gpu_type] = Timeline(self.room.by_type[gpu_type], ends, self.state)
        return self._timelines[gpu_type]

    def _place(self, where: str, room: TypeRoom | None, need: Need) -> Placement | None:
        if room is None or need.num_gpus > room.idle_gpus or (where, need) in self._full:
            return None
        placement = place(room, need)
        if placement is None:
            self._full.add((where, need))
        return placement

    def _narrowed(self, reservation: Reservation, option: Option, placement: Placement) -> Reservation:
        then = reservation.then
        if not reservation.outlives(self.now_s + option.plan.predicted_run_s):
            then = held(then, option.need, placement)
        now = self.room.by_type[option.need.gpu_type]
        names = [each.node for each in placement.allocations]
        spare = reservation.spare.with_free({name: lesser(now.free[name], then.free[name]) for name in names})
        return Reservation(
            job=reservation.job, promise=reservation.promise, instead_of=reservation.instead_of, then=then, spare=spare
        )


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
