"""Whether moves pay, taken together: a turn sees only what a job takes, not what comes of those after it.

Where queues have shares, a job may leave what its queue has no right to, though nobody needs it. What one job after it
takes of that, another loses.
"""

from __future__ import annotations

import math

from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.left_over import Sweep
from frenzy.core.scheduling.engine.shares import Served, may_stay
from frenzy.core.scheduling.engine.state import Entry


def unpaid(sweep: Sweep, served: list[Served]) -> set[str]:
    """Run keys of the jobs that had better stay: they lose by a change that nothing forces, more than is gained on the
    GPU types that it touches, and whoever takes anything else does so without what they hold.

    Those who gain are not of them: what is idle anyway is theirs, once the others stay.
    """
    staying: set[str] = set()
    changes = [each for each in served if each[0].current is not None and each[0].current is not each[1]]
    for group in _linked([each for each in changes if not each[0].is_displaced]):
        if _gain_s(group) <= 0 and _could_stay(sweep, group):
            staying.update(entry.run_key for entry, target in group if _own_gain_s(entry, target) <= 0)
    return staying


def _linked(changes: list[Served]) -> list[list[Served]]:
    """Running jobs whose plans change, together where one may have left to another what that takes."""
    linked_to: dict[str, str] = {}

    def first_of(gpu_type: str) -> str:
        while linked_to.get(gpu_type, gpu_type) != gpu_type:
            gpu_type = linked_to[gpu_type]
        return gpu_type

    for entry, target in changes:
        if target is not None:
            linked_to[first_of(entry.held.gpu_type)] = first_of(target.gpu_type)
    groups: dict[str, list[Served]] = {}
    for each in changes:
        groups.setdefault(first_of(each[0].held.gpu_type), []).append(each)
    return list(groups.values())


def _gain_s(group: list[Served]) -> float:
    """What all of ``group`` gain, restarts counted; those that become slower, until the others have ended."""
    gains = [(_own_gain_s(entry, target), entry, target) for entry, target in group]
    longest_s = max((entry.run_s(each) for gain_s, entry, each in gains if each and gain_s > 0), default=math.inf)
    return sum(
        gain_s if gain_s > 0 else -entry.lost_s(math.inf if target is None else target.unit_s, longest_s)
        for gain_s, entry, target in gains
    )


def _own_gain_s(entry: Entry, target: RankedPlan | None) -> float:
    """Money that a job saves which goes by cost counts as the time with its plan that it would buy."""
    if target is None:
        return -math.inf
    run_s, paid_s = entry.run_s(entry.held), entry.run_s(target) + entry.restart_s + entry.moves_again_s
    before, after = entry.held.money(run_s), target.money(paid_s)
    if not entry.by_cost or before == after == 0:
        return run_s - paid_s
    return run_s * (1.0 - after / max(before, 1e-9))


def _could_stay(sweep: Sweep, group: list[Served]) -> bool:
    """Whether all of ``group`` could keep what they have, and meet their deadlines with it."""
    done = 0
    for entry, target in group:
        if target is not None:
            sweep.give_back(entry, target)
    for entry, _ in group:
        if entry.run_s(entry.held) > entry.by_s or not may_stay(sweep, entry, entry.held):
            break
        sweep.take(entry, entry.held)
        done += 1
    for entry, _ in group[:done]:
        sweep.give_back(entry, entry.held)
    for entry, target in group:
        if target is not None:
            sweep.take(entry, target)
    return done == len(group)
