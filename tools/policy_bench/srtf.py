"""Shortest remaining time first, capped, preemptive, with growth into what is idle.

Jobs are served by priority, then by the time they would still take with their fastest plan. No job
gets more GPUs than its cap (``SrtfParameters``). Each decision

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

from frenzy.core.capacity.free_capacity import FreeCapacity, Need, place_in
from frenzy.core.scheduling import HasPolicy, Policy, SchedulingState, apply_actions
from frenzy.core.scheduling.engine.state import is_settled
from frenzy.core.values.cluster import Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Action, Preempt, QueuedJob, Resize, RunningJob, Start
from tools.policy_bench.capped import capped_plans

Choices = tuple[tuple[ResourcePlan, Need], ...]

_STOPPED = Reason(code=ReasonCode.PREEMPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SrtfParameters:
    """max_share: a job's GPUs at most, as a share of the cluster's. min_efficiency: it gets no more GPUs of
    a type than leave each at least this share of its best throughput. preempt_ratio: a job gives way only to one
    that takes less than 1 / ratio of what it has left. hysteresis: a move into idle GPUs must leave less than
    this share of the time to the end, restart included. overrun_share: of a job that outlived its estimate
    this share of what it did is believed to be left. num_tried, num_victims: in one decision, waiting jobs
    for which room is made at most, and jobs that give way to one of them.
    """

    max_share: float = 0.5
    min_efficiency: float = 0.5
    preempt_ratio: float = 2.0
    hysteresis: float = 0.8
    overrun_share: float = 0.3
    num_tried: int = 16
    num_victims: int = 8

    def believed_left(self, left: float, done: float) -> float:
        """What is left of a job, ``left`` by its estimate, in multiples of its plans' run times."""
        return left if left > 0 else self.overrun_share * done


@dataclass
class SrtfScheduler:
    """The rival ``srtf``. It remembers which plans each set of plans comes to: jobs of a class share theirs."""

    parameters: SrtfParameters = SrtfParameters()
    rules: Policy = HasPolicy()
    _choices: dict[tuple[object, ...], tuple[object, object, Choices]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "srtf"

    @property
    def round_s(self) -> float | None:
        return None

    def decide(self, state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        """What to do now."""
        turn = _Turn(state, now_s, self.parameters, self)
        while turn.start_what_fits() or turn.make_room() or turn.grow():
            pass
        return tuple(_changes(state, turn.state))

    def choices(self, state: SchedulingState, job: QueuedJob | RunningJob, *, ordered: bool = False) -> Choices:
        """The plans that ``job`` would try if it waited, the fastest first, and what they need."""
        key = (id(job.plans), job.excluded_nodes, ordered)
        known = self._choices.get(key)
        if known is None or known[0] is not job.plans or known[1] is not state.cluster:
            max_gpus = self.parameters.max_share * sum(state.cluster.num_gpus_by_type.values())
            sizes = {each.name: each.memory_bytes for each in state.cluster.gpu_types}
            fitting = [each for each in job.plans if each.memory.required_bytes <= sizes.get(each.gpu_type, 0)]
            plans = capped_plans(fitting, max_gpus, self.parameters.min_efficiency)
            if not ordered:
                plans.sort(key=lambda plan: plan.predicted_run_s)
            found = tuple((plan, state.policy.need(plan, job.excluded_nodes)) for plan in plans)
            known = self._choices[key] = (job.plans, state.cluster, found)
        return known[2]


@dataclass(slots=True)
class _Turn:
    """One decision in the making. moved: jobs that were moved or stopped in it."""

    state: SchedulingState
    now_s: float
    parameters: SrtfParameters
    scheduler: SrtfScheduler
    moved: set[str] = field(default_factory=set)

    def start_what_fits(self) -> bool:
        starts, room, full = list[Start](), self.state.room, set[Need]()
        for job in self._waiting():
            for plan, need in self._choices(job):
                if need in full or need.num_gpus > room.idle_gpus(need.gpu_type):
                    continue
                placement = place_in(room, need)
                if placement is None:
                    full.add(need)
                    continue
                room = room.hold(need, placement)
                starts.append(Start(run_key=job.run_key, plan=plan, placement=placement))
                break
        self.state = self.state.after(starts, self.now_s)
        return bool(starts)

    def _waiting(self) -> list[QueuedJob]:
        """Whose old workers are gone, in the order they are served."""
        jobs = [each.queued for each in self.state.waiting if each.job.run_key not in self.state.running]
        return sorted(jobs, key=lambda job: (-job.priority, self._fastest_s(job), job.run_key))

    def _fastest_s(self, job: QueuedJob) -> float:
        fastest_s = min((plan.predicted_run_s for plan in job.plans), default=0.0)
        return self.parameters.believed_left(job.work_left, job.work_done) * fastest_s

    def _choices(self, job: QueuedJob) -> Choices:
        return self.scheduler.choices(self.state, job, ordered=job.ordered)

    def make_room(self) -> bool:
        """Let the first waiting job for which it pays take the GPUs of others; whether one did."""
        victims = self._victims() if self.state.waiting else []
        if not victims:
            return False
        for job in self._waiting()[: self.parameters.num_tried]:
            found = self._cheapest_eviction(job, victims)
            if found is not None:
                self._evict(job, *found)
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
        return self.parameters.believed_left(job.work_left - progress, job.work_done + progress)

    def _cheapest_eviction(
        self, job: QueuedJob, victims: list[RunningJob]
    ) -> tuple[ResourcePlan, Placement, list[RunningJob]] | None:
        """The plan that costs the job and its victims together the least time, where it runs and who gives way.

        A victim is taken to wait until the job has ended, and to start again then.
        """
        best: tuple[float, tuple[ResourcePlan, Placement, list[RunningJob]]] | None = None
        left = self.parameters.believed_left(job.work_left, job.work_done)
        for plan, need in self._choices(job):
            run_s = left * plan.predicted_run_s
            found = self._eviction(job, need, run_s, victims)
            if found is None:
                continue
            cost_s = run_s + sum(run_s + _restart_s(victim) for victim in found[1])
            if best is None or cost_s < best[0]:
                best = (cost_s, (plan, *found))
        return best[1] if best else None

    def _eviction(
        self, job: QueuedJob, need: Need, run_s: float, victims: list[RunningJob]
    ) -> tuple[Placement, list[RunningJob]] | None:
        room, taken = self.state.room, list[RunningJob]()
        gpu_type, released = need.gpu_type, 0
        missing = need.num_gpus - room.idle_gpus(gpu_type)
        for victim in victims:
            if len(taken) == self.parameters.num_victims:
                return None
            if victim.plan.gpu_type != gpu_type or victim.priority > job.priority:
                continue
            if self._left_s(victim) <= self.parameters.preempt_ratio * run_s + _restart_s(victim):
                continue
            taken.append(victim)
            missing -= victim.plan.num_gpus
            if missing > 0:
                # Too few GPUs, wherever they are: nothing needs to be placed yet.
                continue
            for each in taken[released:]:
                room = room.release(self.state.policy.need(each.plan), each.placement)
            released = len(taken)
            placement = place_in(room, need)
            if placement is not None:
                return placement, _needed(taken, placement)
        return None

    def _evict(self, job: QueuedJob, plan: ResourcePlan, placement: Placement, victims: list[RunningJob]) -> None:
        for victim in victims:
            self.moved.add(victim.run_key)
        stops = [Preempt(run_key=victim.run_key, reason=_STOPPED) for victim in victims]
        self._do(*stops, Start(run_key=job.run_key, plan=plan, placement=placement))

    def _may_gain(self, job: RunningJob) -> bool:
        """Whether the fastest of its options would do, wherever it is; most jobs run with it already."""
        choices = self.scheduler.choices(self.state, job)
        if not choices or choices[0][0] is job.plan:
            return False
        return self._left(job) * choices[0][0].predicted_run_s < self._bound_s(job)

    def _bound_s(self, job: RunningJob) -> float:
        """What a move must leave less than, of the time to the end."""
        return self.parameters.hysteresis * self._left_s(job) - _restart_s(job)

    def _better_place(self, job: RunningJob) -> tuple[ResourcePlan, Placement] | None:
        """The fastest plan of ``job`` that fits the idle GPUs and its own and makes up for a restart."""
        bound_s, left = self._bound_s(job), self._left(job)
        room: FreeCapacity | None = None
        for plan, need in self.scheduler.choices(self.state, job):
            run_s = left * plan.predicted_run_s
            if run_s >= bound_s:
                return None
            own = job.plan.num_gpus if job.plan.gpu_type == plan.gpu_type else 0
            if need.num_gpus > self.state.room.idle_gpus(plan.gpu_type) + own:
                # Too few GPUs, wherever they are: nothing needs to be placed.
                continue
            if room is None:
                room = self.state.room.release(self.state.policy.need(job.plan), job.placement)
            placement = place_in(room, need)
            if placement is not None:
                return plan, placement
        return None

    def _move(self, job: RunningJob, plan: ResourcePlan, placement: Placement) -> None:
        self.moved.add(job.run_key)
        self._do(Resize(run_key=job.run_key, plan=plan, placement=placement))

    def _do(self, *actions: Action) -> None:
        facts = apply_actions(self.state.facts, actions, now_s=self.now_s)
        self.state = SchedulingState.of(facts, self.scheduler.rules)


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
