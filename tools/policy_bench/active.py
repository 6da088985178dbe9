"""Jobs as a scheduler of rounds sees them: all that wait or may be moved, with what each may be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frenzy.core.capacity.free_capacity import Need, place_in
from frenzy.core.scheduling import SchedulingState
from frenzy.core.scheduling.engine.job_plans import rigid_plans
from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob


@dataclass(frozen=True, slots=True)
class Configuration:
    """A number of GPUs of one type, with the job's fastest plan for it."""

    plan: ResourcePlan
    need: Need


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveJob:
    """One job that waits, or runs and may be moved.

    configurations: one for each GPU type and count, by type and count. running: as it runs, if it
    does. work_left: as of now, in multiples of each plan's ``predicted_run_s``.
    """

    run_key: str
    submitted_s: float
    configurations: tuple[Configuration, ...]
    running: RunningJob | None
    work_left: float
    restart_s: float

    @property
    def current(self) -> int | None:
        """Place of the configuration it runs with; None if it waits, or runs with one it would not choose."""
        if self.running is None:
            return None
        return next((at for at, each in enumerate(self.configurations) if each.plan == self.running.plan), None)


class ActiveJobs:
    """Makes active jobs of a state, and remembers the configurations of each as long as its plans stay the same.

    rigid: each job has only configurations of the one number of GPUs its user asked for.
    """

    def __init__(self, *, rigid: bool = False) -> None:
        self._rigid = rigid
        self._known: dict[str, tuple[Sequence[ResourcePlan], tuple[Configuration, ...]]] = {}

    def of(self, state: SchedulingState, now_s: float) -> list[ActiveJob]:
        """All jobs that wait or may be moved now, by run key."""
        waiting = [each.queued for each in state.waiting if each.job.run_key not in state.running]
        running = [job for job in state.running.values() if is_movable(job, now_s)]
        found = [self._waiting(state, job) for job in waiting] + [self._running(state, job, now_s) for job in running]
        self._known = {job.run_key: self._known[job.run_key] for job in found}
        return sorted(found, key=lambda job: job.run_key)

    def _waiting(self, state: SchedulingState, job: QueuedJob) -> ActiveJob:
        return ActiveJob(
            run_key=job.run_key,
            submitted_s=job.submitted_s,
            configurations=self._configurations(state, job),
            running=None,
            work_left=job.work_left,
            restart_s=job.elasticity.restart_s if job.elasticity else 0.0,
        )

    def _running(self, state: SchedulingState, job: RunningJob, now_s: float) -> ActiveJob:
        return ActiveJob(
            run_key=job.run_key,
            submitted_s=job.submitted_s,
            configurations=self._configurations(state, job),
            running=job,
            work_left=max(0.0, job.work_left - job.progress(now_s)),
            restart_s=job.elasticity.restart_s if job.elasticity else 0.0,
        )

    def _configurations(self, state: SchedulingState, job: QueuedJob | RunningJob) -> tuple[Configuration, ...]:
        known = self._known.get(job.run_key)
        if known is None or known[0] is not job.plans:
            made = configurations(state.policy, state, job, rigid=self._rigid)
            known = self._known[job.run_key] = (job.plans, made)
        return known[1]


def is_movable(job: RunningJob, now_s: float) -> bool:
    """Whether ``job`` may be stopped or moved: elastic, and not in the middle of a start."""
    ready_s = job.started_s if job.ready_s is None else job.ready_s
    return job.elasticity is not None and bool(job.plans) and ready_s <= now_s


def gpus_to_give(state: SchedulingState, now_s: float) -> dict[str, int]:
    """GPUs of each type on ready nodes that are idle or held by a job that may be moved."""
    num_gpus = {gpu_type: on_type.idle_gpus for gpu_type, on_type in state.room.by_type.items()}
    for job in state.running.values():
        if is_movable(job, now_s):
            for gpu_type, count in _ready_gpus(state, job):
                num_gpus[gpu_type] += count
    return num_gpus


def _ready_gpus(state: SchedulingState, job: RunningJob) -> list[tuple[str, int]]:
    found = []
    for each in job.placement.allocations:
        gpu_type = state.room.type_of_node.get(each.node)
        if gpu_type is not None and each.node not in state.room.by_type[gpu_type].not_ready:
            found.append((gpu_type, each.num_gpus))
    return found


def configurations(
    policy: Policy, state: SchedulingState, job: QueuedJob | RunningJob, *, rigid: bool = False
) -> tuple[Configuration, ...]:
    """What ``job`` may be given: for each GPU type and count its fastest plan, if the cluster can hold it."""

    whole = state.capacity.whole
    fitting = [plan for plan in job.plans if place_in(whole, policy.need(plan, job.excluded_nodes)) is not None]
    plans = rigid_plans(job.plans, job.asked_gpus, fitting) if rigid else job.plans
    fastest: dict[tuple[str, int], ResourcePlan] = {}
    for plan in plans:
        key = (plan.gpu_type, plan.num_gpus)
        if key not in fastest or plan.predicted_run_s < fastest[key].predicted_run_s:
            fastest[key] = plan
    return tuple(
        Configuration(plan, policy.need(plan, job.excluded_nodes))
        for _, plan in sorted(fastest.items(), key=lambda each: each[0])
        if any(plan is each for each in fitting)
    )
