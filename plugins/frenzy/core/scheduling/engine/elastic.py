"""Moves: jobs start, grow, shrink, change their GPUs or give way, so that all end sooner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from frenzy.core.scheduling.engine import starts as starts_only
from frenzy.core.scheduling.engine.choices import Capacity, Choice
from frenzy.core.scheduling.engine.claims import Claim
from frenzy.core.scheduling.engine.line import Line, claims_of
from frenzy.core.scheduling.engine.placement import place_in
from frenzy.core.scheduling.engine.policy_settings import HasPolicy
from frenzy.core.scheduling.engine.preemption import preemption
from frenzy.core.scheduling.engine.room import FreeCapacity
from frenzy.core.scheduling.engine.shares import forbidden_key, targets
from frenzy.core.scheduling.engine.state import SchedulingState, running_job
from frenzy.core.scheduling.engine.swap import served_first
from frenzy.core.scheduling.engine.sweep import Forbidden, Missed
from frenzy.core.values.scheduling_facts import Action, Resize, Start

# After so many sweeps with targets that could not be placed nobody is moved any more.
_MAX_SWEEPS: Final = 8


def is_elastic(state: SchedulingState) -> bool:
    """Whether the policy moves jobs, and any active one may be moved."""
    if not isinstance(state.rules.policy, HasPolicy):
        return False
    waiting, running = state.waiting, state.running.values()
    return any(job.elasticity is not None for job in running) or any(
        each.job.elasticity is not None for each in waiting
    )


def decide(state: SchedulingState, now_s: float) -> tuple[tuple[Action, ...], Mapping[str, Missed]]:
    """Starts, resizes and preemptions; and what each job that goes on waiting found at its turn.

    Jobs under memory pressure are served before all others (``swap``).
    """
    policy = state.rules.policy
    assert isinstance(policy, HasPolicy), "only that one moves jobs"
    swaps, state = _swapped(state, now_s, policy)
    line = Line.of(claims_of(state, now_s, policy, Capacity.of(state.cluster)), now_s)
    actions, missed = _swept(state, line, policy)
    return (*swaps, *actions), missed


def _swapped(state: SchedulingState, now_s: float, policy: HasPolicy) -> tuple[tuple[Action, ...], SchedulingState]:
    return served_first(state, now_s, policy) if state.waiting.pressed else ((), state)


def _swept(state: SchedulingState, line: Line, policy: HasPolicy) -> tuple[tuple[Action, ...], Mapping[str, Missed]]:
    """The actions that lead to what every job in ``line`` should hold, in the order they are served; and what each
    of its waiting jobs that takes nothing found at its turn.

    Starts and resizes may use GPUs that another action of the same answer gives back. A target that
    cannot be placed, because of how GPUs lie on nodes, is forbidden and the sweep made again.
    """
    capacity = Capacity.of(state.cluster)
    idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
    forbidden: Forbidden = frozenset()
    for _ in range(_MAX_SWEEPS):
        found, missed = targets(line, idle, policy, capacity, forbidden, state.fits_empty)
        actions, failed = _realised(state, line, found)
        if not failed:
            return tuple(actions), missed
        forbidden |= failed
    starts, _, record = starts_only.decide(state, line.now_s)
    return starts, record.missed


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
    taken: list[tuple[Claim, Start | Resize]] = []
    failed: set[tuple[str, object]] = set()
    for claim, target in changed:
        if target is None:
            continue
        action, room = _placed(room, claim, target)
        if action is None:
            failed.add(forbidden_key(claim, target))
        else:
            taken.append((claim, action))
    if failed:
        return [], frozenset(failed)
    placed = {claim.run_key: action for claim, action in taken}
    actions: list[Action] = [placed.get(claim.run_key) or preemption(state, line, claim, taken) for claim, _ in changed]
    return actions, frozenset()


def _placed(room: FreeCapacity, claim: Claim, target: Choice) -> tuple[Start | Resize | None, FreeCapacity]:
    placement = place_in(room, target.need)
    if placement is None:
        return None, room
    room = room.hold(target.need, placement)
    if claim.current is None:
        return Start(run_key=claim.run_key, plan=target.plan, placement=placement), room
    return Resize(run_key=claim.run_key, plan=target.plan, placement=placement), room
