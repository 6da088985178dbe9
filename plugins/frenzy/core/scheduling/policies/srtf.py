"""The policy ``srtf``: shortest remaining time first, capped, preemptive, with growth into what is idle.

Jobs are served by priority, then by the time they would still take with their fastest plan. No job
gets more GPUs than its cap (``SrtfPolicy``). Each decision

1. starts waiting jobs that fit what is idle, each on its fastest plan that does;
2. makes room for the first ones that do not fit: jobs with much more left give their GPUs up, those
   that have most left first, and go on with what is left of the room or wait;
3. lets running jobs grow or move into what is still idle, those that have least left first.

A job is moved only if it may be (``Elasticity``: budget, least time between two moves) and at most once in
a decision, and only when that pays in spite of its restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from frenzy.core.scheduling.engine.board import Board
from frenzy.core.scheduling.engine.claims import is_settled
from frenzy.core.scheduling.engine.options import Contender, Option
from frenzy.core.scheduling.engine.placement import place_in
from frenzy.core.scheduling.engine.policy_settings import SrtfPolicy
from frenzy.core.scheduling.engine.queue_index import Turns
from frenzy.core.scheduling.engine.room import Room
from frenzy.core.scheduling.engine.state import SchedulingState, restarted
from frenzy.core.values.cluster import Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Action, Preempt, QueuedJob, Resize, RunningJob, Start


def run_pass(board: Board) -> None:
    """Start, in order, every job one of whose options fits what is idle; the fastest that does."""
    turns = Turns(board.state.waiting)
    for contender in turns:
        if contender.job.run_key not in board.state.running and not board.start_first_that_fits(contender):
            turns.close()


def decide(state: SchedulingState, now_s: float, policy: SrtfPolicy) -> tuple[tuple[Action, ...], SchedulingState]:
    """Actions, and the state they lead to, in which only those wait that no action serves."""
    turn = _Turn(state, now_s, policy)
    while turn.start_what_fits() or turn.make_room() or turn.grow():
        pass
    actions = tuple(_changes(state, turn.state))
    after = turn.state
    for action in actions:
        if isinstance(action, Preempt):
            after = after.withdraw(action.run_key)
    return actions, after


@dataclass(slots=True)
class _Turn:
    """One decision in the making. moved: jobs that were moved or stopped in it."""

    state: SchedulingState
    now_s: float
    policy: SrtfPolicy
    moved: set[str] = field(default_factory=set)

    def start_what_fits(self) -> bool:
        if not self.state.may_start:
            return False
        board = Board(state=self.state, now_s=self.now_s, room=self.state.room)
        run_pass(board)
        if board.started:
            self.state = self.state.start(board.started)
        return bool(board.started)

    def make_room(self) -> bool:
        """Let the first waiting job for which it pays take the GPUs of others; whether one did."""
        victims = self._victims() if self.state.waiting else []
        if not victims:
            return False
        served = 0
        for contender in self.state.waiting:
            if served == self.policy.num_tried:
                break
            if contender.job.run_key in self.state.running:
                continue
            served += 1
            found = self._cheapest_eviction(contender, victims)
            if found is not None:
                self._evict(contender, *found)
                return True
        return False

    def grow(self) -> bool:
        """Let the first running job that gains enough from idle GPUs have them; whether one did."""
        if not any(room.idle_gpus for room in self.state.room.by_type.values()):
            return False
        may_gain = [job for job in self._movable() if self._may_gain(job)]
        for job in sorted(may_gain, key=lambda job: (self._left_s(job), job.run_key)):
            target = self._better_place(job)
            if target is not None:
                self._move(job, *target)
                return True
        return False

    def _movable(self) -> Iterator[RunningJob]:
        for job in self.state.running.values():
            if job.elasticity is None or not job.plans or job.run_key in self.moved:
                continue
            if is_settled(job, self.now_s) and job.moves_left(self.now_s) >= 1:
                yield job

    def _victims(self) -> list[RunningJob]:
        """Jobs that may be moved, those that have most left first."""
        return sorted(self._movable(), key=lambda job: (-self._left_s(job), job.run_key))

    def _left_s(self, job: RunningJob) -> float:
        """Time to its end with the plan it runs with."""
        return self._left(job) * job.plan.predicted_run_s

    def _left(self, job: RunningJob) -> float:
        """What is left of it, in multiples of its plans' run times."""
        progress = job.progress(self.now_s)
        return self.policy.believed_left(job.work_left - progress, job.work_done + progress)

    def _cheapest_eviction(
        self, contender: Contender, victims: list[RunningJob]
    ) -> tuple[Option, Placement, list[RunningJob]] | None:
        """The option that costs the job and its victims together the least time, where it runs and who gives way.

        A victim is taken to wait until the job has ended, and to start again then.
        """
        best: tuple[float, tuple[Option, Placement, list[RunningJob]]] | None = None
        for option in contender.options:
            found = self._eviction(contender.job, option, victims)
            if found is None:
                continue
            cost_s = option.run_s + sum(option.run_s + _restart_s(job) for job in found[1])
            if best is None or cost_s < best[0]:
                best = (cost_s, (option, *found))
        return best[1] if best else None

    def _eviction(
        self, job: QueuedJob, option: Option, victims: list[RunningJob]
    ) -> tuple[Placement, list[RunningJob]] | None:
        room, taken = self.state.room, list[RunningJob]()
        gpu_type, released = option.need.gpu_type, 0
        missing = option.need.num_gpus - room.idle_gpus(gpu_type)
        for victim in victims:
            if len(taken) == self.policy.num_victims:
                return None
            if victim.plan.gpu_type != gpu_type or victim.priority > job.priority:
                continue
            if self._left_s(victim) <= self.policy.preempt_ratio * option.run_s + _restart_s(victim):
                continue
            taken.append(victim)
            missing -= victim.plan.num_gpus
            if missing > 0:
                # Too few GPUs, wherever they are: nothing needs to be placed yet.
                continue
            for each in taken[released:]:
                room = room.release(self.state.rules.need(each.plan), each.placement)
            released = len(taken)
            placement = place_in(room, option.need)
            if placement is not None:
                return placement, _needed(taken, placement)
        return None

    def _evict(self, contender: Contender, option: Option, placement: Placement, victims: list[RunningJob]) -> None:
        for victim in victims:
            self.moved.add(victim.run_key)
            self.state = self.state.requeue(victim.stopped(self.now_s))
        self.state = self.state.start([restarted(contender.job, option.plan, placement, now_s=self.now_s)])

    def _may_gain(self, job: RunningJob) -> bool:
        """Whether the fastest of its options would do, wherever it is; most jobs run with it already."""
        choices = self.state.rules.choices_of_running(job, self.state.cluster)
        if not choices or choices[0][0] is job.plan:
            return False
        return self._left(job) * choices[0][0].predicted_run_s < self._bound_s(job)

    def _bound_s(self, job: RunningJob) -> float:
        """What a move must leave less than, of the time to the end."""
        return self.policy.hysteresis * self._left_s(job) - _restart_s(job)

    def _better_place(self, job: RunningJob) -> tuple[Option, Placement] | None:
        """The fastest option of ``job`` that fits the idle GPUs and its own and makes up for a restart."""
        bound_s, left = self._bound_s(job), self._left(job)
        room: Room | None = None
        for plan, need in self.state.rules.choices_of_running(job, self.state.cluster):
            run_s = left * plan.predicted_run_s
            if run_s >= bound_s:
                return None
            own = job.plan.num_gpus if job.plan.gpu_type == plan.gpu_type else 0
            if need.num_gpus > self.state.room.idle_gpus(plan.gpu_type) + own:
                # Too few GPUs, wherever they are: nothing needs to be placed.
                continue
            if room is None:
                room = self.state.room.release(self.state.rules.need(job.plan), job.placement)
            placement = place_in(room, need)
            if placement is not None:
                return Option(plan, need, run_s), placement
        return None

    def _move(self, job: RunningJob, option: Option, placement: Placement) -> None:
        self.moved.add(job.run_key)
        self.state = self.state.move(restarted(job.stopped(self.now_s), option.plan, placement, now_s=self.now_s))


def _restart_s(job: RunningJob) -> float:
    return job.elasticity.restart_s if job.elasticity else 0.0


def _needed(taken: list[RunningJob], placement: Placement) -> list[RunningJob]:
    """Of the jobs that were to give way those that hold GPUs on a node of ``placement``."""
    nodes = {each.node for each in placement.allocations}
    return [job for job in taken if any(each.node in nodes for each in job.placement.allocations)]


def _changes(before: SchedulingState, after: SchedulingState) -> Iterator[Action]:
    for run_key, job in before.running.items():
        now = after.running.get(run_key)
        if now is None:
            detail = f"Jobs that end much sooner than {job.job_name} take its GPUs; it goes on from its checkpoint."
            yield Preempt(run_key=run_key, reason=Reason(code=ReasonCode.PREEMPTED, detail=detail))
        elif now is not job:
            yield Resize(run_key=run_key, plan=now.plan, placement=now.placement)
    for run_key, job in after.running.items():
        if run_key not in before.running:
            yield Start(run_key=run_key, plan=job.plan, placement=job.placement)
