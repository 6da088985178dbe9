"""One pass in the making: what is free, what is promised, what has started."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from frenzy.core.scheduling.engine.options import Contender, Option
from frenzy.core.scheduling.engine.placement import place
from frenzy.core.scheduling.engine.policy_settings import queue_rules
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.reservation import Promise, Reservation, taken_out
from frenzy.core.scheduling.engine.room import Need, Room, TypeRoom
from frenzy.core.scheduling.engine.state import SchedulingState, running_job
from frenzy.core.scheduling.engine.timeline import Ends, Timeline
from frenzy.core.values.cluster import Placement
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob


@dataclass(slots=True)
class Board:
    """Working state of one pass. One reservation per GPU type: that of the first job it blocks.

    head_of_line: the job behind which every later one waits, under a policy where one blocks all.
    quotas: GPUs that count against them.
    Rooms only shrink within a pass, so what did not fit once (``_full``) never will.
    """

    state: SchedulingState
    now_s: float
    room: Room
    started: list[RunningJob] = field(default_factory=list)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    head_of_line: QueuedJob | None = None
    quotas: QuotaUse = field(init=False)
    _timelines: dict[str, Timeline] = field(default_factory=dict)
    _full: set[tuple[str, Need]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.quotas = QuotaUse.of(self.state.rules.policy, self.state.running.values())

    def fits_now(self, need: Need) -> Placement | None:
        """Where ``need`` fits in what is idle, reservations or not."""
        return self._place("now", self.room.by_type.get(need.gpu_type), need)

    def fits_empty(self, need: Need) -> bool:
        """Whether ``need`` would fit if nothing ran."""
        return self.state.fits_empty(need)

    def with_deadline_in_reach(self, contender: Contender) -> Contender:
        """A job that has a deadline with the options that it could ever have: a node has room, no quota is too small.

        Its deadline is judged by these; other jobs are as they are.
        """
        rules = self.state.rules
        if contender.job.deadline_s is None or rules.counts_gpus_only:
            return contender
        allowed = QuotaUse(queue_rules(rules.policy)).within(contender)
        return allowed.with_options(each for each in allowed.options if self.fits_empty(each.need))

    def startable(self, option: Option) -> Placement | None:
        """Where ``option`` can start now without breaking a reservation."""
        need = option.need
        reservation = self.reservations.get(need.gpu_type)
        if reservation is None or reservation.begins_after(self.now_s + option.run_s):
            return self.fits_now(need)
        return self._fits_spare(need)

    def must_end_by(self, option: Option) -> float | None:
        """When a job that starts ``option`` now must have ended, not to break a reservation; infinite if it may run on.

        None where it cannot start, however short it were.
        """
        need = option.need
        if self.fits_now(need) is None:
            return None
        reservation = self.reservations.get(need.gpu_type)
        if reservation is None or self._fits_spare(need) is not None:
            return math.inf
        return reservation.promise.start_s

    def _fits_spare(self, need: Need) -> Placement | None:
        # What is spare is found only where enough is idle.
        if need.num_gpus > self.room.by_type[need.gpu_type].idle_gpus:
            return None
        return self._place("spare", self.spare(need.gpu_type), need)

    def spare(self, gpu_type: str) -> TypeRoom:
        """What a job of any length may use of ``gpu_type``, which has a reservation."""
        return self.reservations[gpu_type].spare(self.room.by_type[gpu_type])

    def start(self, contender: Contender, option: Option, placement: Placement) -> None:
        """Let the job hold ``placement`` from now on."""
        started = running_job(contender.job, option.plan, placement, now_s=self.now_s)
        self.started.append(started)
        self.room = self.room.hold(option.need, placement)
        if self.quotas.rules:
            self.quotas.add(contender.job, option.need.gpu_type, option.need.num_gpus)
        for gpu_type in self.room.types_of(placement):
            self._timelines.pop(gpu_type, None)
        reservation = self.reservations.get(option.need.gpu_type)
        if reservation is not None:
            now = self.room.by_type[option.need.gpu_type]
            lasts_beyond = not reservation.begins_after(self.now_s + option.run_s)
            reservation.narrow(option.need, placement, now=now, lasts_beyond=lasts_beyond)

    def start_first_that_fits(self, contender: Contender) -> bool:
        """Start the job with its first option that fits what is idle, reservations or not; False if none does."""
        if not contender.may_fit(self.room):
            return False
        for option in contender.options:
            placement = self.fits_now(option.need)
            if placement is not None:
                self.start(contender, option, placement)
                return True
        return False

    def reserve(self, job: QueuedJob, promise: Promise, *, instead_of: ResourcePlan | None = None) -> None:
        """Keep what ``promise`` needs free for ``job`` from its start on."""
        need = promise.option.need
        at_start = self.timeline(need.gpu_type).room_at(math.inf if promise.start_s is None else promise.start_s)
        self.reservations[need.gpu_type] = Reservation(
            job=job,
            promise=promise,
            instead_of=instead_of,
            at_start=taken_out(at_start, need, promise.placement),
        )

    def timeline(self, gpu_type: str) -> Timeline:
        """The expected ends on ``gpu_type``, those of jobs started in this pass included."""
        if gpu_type not in self._timelines:
            self._timelines[gpu_type] = Timeline(self._ends(gpu_type), self.now_s)
        return self._timelines[gpu_type]

    def _ends(self, gpu_type: str) -> Ends:
        state, room = self.state, self.room.by_type[gpu_type]
        new = [job for job in self.started if gpu_type in self.room.types_of(job.placement)]
        if not new:
            return state.ends_on(gpu_type)
        known = ((end_s, state.running[run_key]) for end_s, run_key in state.ends.get(gpu_type, ()))
        added = ((self.now_s + job.work_left * job.plan.predicted_run_s, job) for job in new)
        return Ends(room, sorted((*known, *added), key=lambda end: (end[0], end[1].run_key)), state.rules)

    def _place(self, where: str, room: TypeRoom | None, need: Need) -> Placement | None:
        if room is None or need.num_gpus > room.idle_gpus or (where, need) in self._full:
            return None
        placement = place(room, need)
        if placement is None:
            self._full.add((where, need))
        return placement
