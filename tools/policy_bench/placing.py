"""From what each job is given to where it runs: the actions of one round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frenzy.core.capacity.free_capacity import FreeCapacity, Need, place
from frenzy.core.scheduling import SchedulingState
from frenzy.core.values.cluster import Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Action, Preempt, Resize, Start
from tools.policy_bench.active import ActiveJob


def actions_of_round(
    state: SchedulingState, jobs: Sequence[ActiveJob], preferences: Sequence[Sequence[int]]
) -> tuple[Action, ...]:
    """What turns the present placements into the chosen ones.

    preferences: for each job its configurations, the chosen one first, then those to fall back on
    where it finds no place; none for a job that is to have no GPUs. A job whose chosen
    configuration is the one it has stays where it is; the others give their GPUs back before any
    is placed. Larger ones are placed first.
    """
    changed = [
        (job, wanted)
        for job, wanted in zip(jobs, preferences, strict=True)
        if not (wanted and job.running is not None and wanted[0] == job.current)
    ]
    room = state.room
    for job, _ in changed:
        if job.running is not None:
            room = room.release(state.policy.need(job.running.plan), job.running.placement)
    actions: list[Action] = []
    for job, wanted in sorted(changed, key=_largest_first):
        found = _first_place(room, job, wanted)
        if found is not None:
            at, placement = found
            room = room.hold(job.configurations[at].need, placement)
        actions.extend(_action(job, found))
    return tuple(actions)


def _largest_first(job_and_wanted: tuple[ActiveJob, Sequence[int]]) -> tuple[int, str]:
    job, wanted = job_and_wanted
    return (-job.configurations[wanted[0]].need.num_gpus if wanted else 0, job.run_key)


def _first_place(room: FreeCapacity, job: ActiveJob, wanted: Sequence[int]) -> tuple[int, Placement] | None:
    for at in wanted:
        need = job.configurations[at].need
        placement = _old_place(room, job, at, need) or place(room.by_type[need.gpu_type], need)
        if placement is not None:
            return at, placement
    return None


def _old_place(room: FreeCapacity, job: ActiveJob, at: int, need: Need) -> Placement | None:
    """Where the job runs now, if it falls back on what it has and nobody took it."""
    if job.running is None or at != job.current:
        return None
    on_type = room.by_type[need.gpu_type]
    free = all(
        each.num_gpus <= need.gpus_in(on_type.free[each.node]) and each.node not in on_type.not_ready
        for each in job.running.placement.allocations
    )
    return job.running.placement if free else None


def _action(job: ActiveJob, found: tuple[int, Placement] | None) -> Iterator[Action]:
    if found is None:
        if job.running is not None:
            reason = Reason(code=ReasonCode.PREEMPTED, detail="Other jobs gain more from its GPUs in this round.")
            yield Preempt(run_key=job.run_key, reason=reason)
        return
    at, placement = found
    plan = job.configurations[at].plan
    if job.running is None:
        yield Start(run_key=job.run_key, plan=plan, placement=placement)
    elif plan != job.running.plan or placement != job.running.placement:
        yield Resize(run_key=job.run_key, plan=plan, placement=placement)
