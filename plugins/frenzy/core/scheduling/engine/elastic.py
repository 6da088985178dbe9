"""Moves: jobs start, grow, shrink, change their GPUs or give way, so that all end sooner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from frenzy.core.scheduling.engine import starts as starts_only
from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.left_over import Missed, Places, asked_by
from frenzy.core.scheduling.engine.placement import place_in
from frenzy.core.scheduling.engine.plan_tables import RankedPlan
from frenzy.core.scheduling.engine.policy_settings import HasPolicy
from frenzy.core.scheduling.engine.preemption import preemption
from frenzy.core.scheduling.engine.room import FreeCapacity
from frenzy.core.scheduling.engine.service_order import ServiceOrder, entries_of
from frenzy.core.scheduling.engine.shares import targets
from frenzy.core.scheduling.engine.state import SchedulingState
from frenzy.core.scheduling.engine.swap import served_first
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
    swaps, state = served_first(state, now_s, policy)
    line = ServiceOrder.of(entries_of(state, now_s), now_s)
    actions, missed = _swept(state, line, policy)
    return (*swaps, *actions), missed


def _swept(
    state: SchedulingState, line: ServiceOrder, policy: HasPolicy
) -> tuple[tuple[Action, ...], Mapping[str, Missed]]:
    """The actions that lead to what every job in ``line`` should hold, in the order they are served; and what each
    of its waiting jobs that takes nothing found at its turn.

    Starts and resizes may use GPUs that another action of the same answer gives back. A target that
    cannot be placed, because of how GPUs lie on nodes, is open to as many as found a place, and the sweep made again.
    """
    idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
    places: Places = {}
    for _ in range(_MAX_SWEEPS):
        found, missed = targets(line, idle, policy, state.capacity, places)
        actions, failed = _realised(state, line, found)
        if not failed:
            return tuple(actions), missed
        places = {**places, **failed}
    starts, _, record = starts_only.decide(state, line.now_s)
    return starts, record.missed


def _realised(
    state: SchedulingState, line: ServiceOrder, found: list[tuple[Entry, RankedPlan | None]]
) -> tuple[list[Action], Places]:
    """The actions that lead to ``found``; or what of it could not be placed for all that took it."""
    room = state.room
    changed = [(entry, target) for entry, target in found if target is not entry.current]
    for entry, _ in changed:
        if entry.current is not None:
            room = room.release(entry.current.need, state.running[entry.run_key].placement)
    taken: list[tuple[Entry, Start | Resize]] = []
    placed: Counter[tuple[str, object]] = Counter()
    failed: set[tuple[str, object]] = set()
    for entry, target in changed:
        if target is None:
            continue
        action, room = _placed(room, entry, target)
        if action is None:
            failed.add(asked_by(entry, target))
        else:
            placed[asked_by(entry, target)] += 1
            taken.append((entry, action))
    if failed:
        return [], {asked: placed[asked] for asked in failed}
    by_key = {entry.run_key: action for entry, action in taken}
    actions: list[Action] = [by_key.get(entry.run_key) or preemption(state, line, entry, taken) for entry, _ in changed]
    return actions, {}


def _placed(room: FreeCapacity, entry: Entry, target: RankedPlan) -> tuple[Start | Resize | None, FreeCapacity]:
    placement = place_in(room, target.need)
    if placement is None:
        return None, room
    room = room.hold(target.need, placement)
    if entry.current is None:
        return Start(run_key=entry.run_key, plan=target.plan, placement=placement), room
    return Resize(run_key=entry.run_key, plan=target.plan, placement=placement), room
