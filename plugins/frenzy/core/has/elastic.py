"""Moves: jobs start, grow, shrink, change their GPUs or give way, so that all end sooner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from frenzy.core.errors import Reason, ReasonCode
from frenzy.core.has.choices import Capacity, Choice
from frenzy.core.has.claims import Claim, Line, claims_of
from frenzy.core.has.placement import place
from frenzy.core.has.policy import HasPolicy
from frenzy.core.has.room import Room
from frenzy.core.has.shares import Forbidden, forbidden_key, targets
from frenzy.core.has.state import SchedulingState, running_job
from frenzy.core.has.swap import served_first
from frenzy.core.queue import Action, Preempt, Resize, Start

_MAX_SWEEPS = 8


def is_elastic(state: SchedulingState) -> bool:
    """Whether any active job may be moved."""
    return any(job.elasticity is not None for job in state.running.values()) or any(
        contender.job.elasticity is not None for contender in state.waiting
    )


def decide(state: SchedulingState, now_s: float, policy: HasPolicy) -> tuple[Action, ...]:
    """Starts, resizes and preemptions, in the order jobs are served.

    Starts and resizes may use GPUs that another action of the same answer gives back. A target that
    cannot be placed, because of how GPUs lie on nodes, is forbidden and the sweep made again. Jobs under
    memory pressure are served before (``swap``).
    """
    swaps: tuple[Action, ...] = ()
    if state.waiting.pressed:
        swaps, state = served_first(state, now_s, policy)
    return (*swaps, *_swept(state, now_s, policy))


def _swept(state: SchedulingState, now_s: float, policy: HasPolicy) -> tuple[Action, ...]:
    capacity = Capacity.of(state.cluster)
    line = Line.of(claims_of(state, now_s, policy, capacity), now_s)
    idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
    forbidden: Forbidden = frozenset()
    for _ in range(_MAX_SWEEPS):
        found = targets(line, idle, policy, capacity, forbidden)
        actions, failed = _realised(state, line, found)
        if not failed:
            return tuple(actions)
        forbidden |= failed
    return tuple(_only_starts(state, line, policy))


def with_what_can_start(state: SchedulingState, actions: Iterable[Action], now_s: float) -> SchedulingState:
    """``state`` in which no job waits that ``actions`` start.

    Those that need GPUs of a job on the move hold none yet.
    """
    starts = {action.run_key: action for action in actions if isinstance(action, Start)}
    if not starts:
        return state
    jobs = {each.job.run_key: each.job for each in state.waiting if each.job.run_key in starts}
    for action in starts.values():
        job = running_job(jobs[action.run_key], action.plan, action.placement, now_s=now_s)
        after = state.start([job])
        fits = all(
            after.room.by_type[action.plan.gpu_type].free[each.node].num_gpus >= 0
            for each in action.placement.allocations
        )
        state = after if fits else state.withdraw(action.run_key)
    return state


def _realised(
    state: SchedulingState, line: Line, found: list[tuple[Claim, Choice | None]]
) -> tuple[list[Action], Forbidden]:
    """The actions that lead to ``found``, and what of it could not be placed."""
    room = state.room
    changed = [(claim, target) for claim, target in found if target is not claim.current]
    for claim, _ in changed:
        if claim.current is not None:
            room = room.release(claim.current.need, state.running[claim.run_key].placement)
    actions: list[Action] = []
    failed: set[tuple[str, object]] = set()
    for claim, target in changed:
        if target is None:
            actions.append(_preempted(claim, line.claims))
            continue
        action, room = _placed(room, claim, target)
        if action is None:
            failed.add(forbidden_key(claim, target))
        else:
            actions.append(action)
    return actions, frozenset(failed)


def _placed(room: Room, claim: Claim, target: Choice) -> tuple[Action | None, Room]:
    on_type = room.by_type.get(target.need.gpu_type)
    placement = place(on_type, target.need) if on_type is not None else None
    if placement is None:
        return None, room
    room = room.hold(target.need, placement)
    if claim.current is None:
        return Start(run_key=claim.run_key, plan=target.plan, placement=placement), room
    return Resize(run_key=claim.run_key, plan=target.plan, placement=placement), room


def _only_starts(state: SchedulingState, line: Line, policy: HasPolicy) -> list[Action]:
    """What can start in the room there is, one job after the other with its first choice that fits; nobody is moved."""
    room, actions = state.room, list[Action]()
    by_team = Counter[str]()
    for job in state.running.values():
        by_team[job.team] += job.plan.num_gpus
    for claim in line.free:
        if claim.current is not None:
            continue
        quota = policy.quota_of(claim.team)
        for choice in claim.others.choices:
            if choice.num_gpus > room.idle_gpus(choice.gpu_type):
                continue
            if quota is not None and by_team[claim.team] + choice.num_gpus > quota:
                continue
            action, room = _placed(room, claim, choice)
            if action is not None:
                by_team[claim.team] += choice.num_gpus
                actions.append(action)
                break
    return actions


def _preempted(claim: Claim, claims: list[Claim]) -> Preempt:
    first = next((each for each in claims if each.current is None), claims[0])
    detail = f"Its GPUs are needed by {first.job.job_name}, which is due earlier; it goes on from its checkpoint."
    return Preempt(run_key=claim.run_key, reason=Reason(code=ReasonCode.PREEMPTED, detail=detail))
