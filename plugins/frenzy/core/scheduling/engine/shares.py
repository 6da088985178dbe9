"""Who should hold what: one sweep over all active jobs with a price for every GPU.

A GPU-second delays every job behind by one part in the remaining capacity. So a plan with n effective GPUs that takes
t seconds costs

    t * (1 + price * n),   price = urgency * (number of jobs behind) / (capacity left)

and the cheapest is taken. For jobs that speed up with GPUs to the power p this gives the nearly optimal shares of
heSRPT (Berg, Vesilo, Harchol-Balter 2020): the minimum is at n = p/(1-p) / price. A job that runs keeps its plan unless
another is better by ``hysteresis``, its restart and those likely to follow included. A plan for which others would have
to move costs what these lose by it, and ``disturbance`` restarts more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from frenzy.core.capacity.queue_use import QuotaUse
from frenzy.core.scheduling.engine.fair_share import Turn, Turns
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.left_over import Places, Sweep
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy
from frenzy.core.scheduling.engine.service_order import ServiceOrder
from frenzy.core.scheduling.engine.state import Entry, SchedulingState

Served = tuple[Entry, RankedPlan | None]


def targets(
    state: SchedulingState, line: ServiceOrder, policy: BackfillPolicy, places: Places
) -> tuple[list[Served], Sweep]:
    """What each job should hold, in the order they are served, None for one that should stop; and the sweep.

    Fixed jobs and jobs that go on waiting are left out. places: as of ``Sweep``.
    """
    idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
    quotas = QuotaUse(policy.queues)
    sweep = Sweep(policy, state.capacity, line, dict(state.capacity.num_gpus), idle, quotas, places)
    held: dict[str, float] = {}
    for entry in line.kept:
        sweep.take(entry, entry.held)
        held[entry.job.queue] = held.get(entry.job.queue, 0.0) + entry.held.gpus
    return serve(sweep, held), sweep


def serve(sweep: Sweep, held: Mapping[str, float]) -> list[Served]:
    """What each job takes that takes or gives up anything. held: effective GPUs that each queue holds already."""
    turns, served = Turns.of(sweep.line, held, sweep.policy.queues, sweep.capacity), list[Served]()
    if turns.by_right:
        served, later = _served(sweep, turns)
        turns, sweep.allowance = turns.again(later), math.inf
    served += _served(sweep, turns)[0]
    return [(entry, _grown(sweep, entry, chosen)) for entry, chosen in served]


def _served(sweep: Sweep, turns: Turns) -> tuple[list[Served], list[Entry]]:
    """One after the other takes what is cheapest for it; the second, by right, found nothing, and may borrow."""
    served, later = list[Served](), list[Entry]()
    for turn in turns:
        entry, passed, chosen, sweep.allowance = turn.entry, [turn.entry], None, turn.allowance
        if entry.current is not None or (turn.allowance and not sweep.is_full(entry.others.ask)):
            chosen = _serve(sweep, turn)
            turns.took(entry, chosen)
        elif not turns.by_right and sweep.is_full_for_all:
            passed += turns.skip_waiting()
        if chosen is not None or (entry.current is not None and not turns.by_right):
            served.append((entry, chosen))
        elif not turns.by_right:
            sweep.passed(passed)
            sweep.keep_for(entry, _price(sweep, turn))
        else:
            later.append(entry)
            if entry.current is not None:
                # It has not given it up yet: it may still borrow.
                sweep.idle[entry.current.gpu_type] -= entry.num_held
            elif turn.is_due and not sweep.moves:
                # What a due job lacks is kept first, or others take it within their rights for ever. Where jobs move,
                # others give GPUs up later in the sweep, which then may start it after all.
                sweep.keep_for(entry, _price(sweep, turn))
    return served, later


def _price(sweep: Sweep, turn: Turn) -> float:
    """What an effective GPU costs for each second: see the module's text."""
    effective = sweep.effective if turn.right is None else turn.right
    return sweep.policy.urgency * turn.behind / max(effective, 1e-9)


def _serve(sweep: Sweep, turn: Turn) -> RankedPlan | None:
    """The cheapest plan of the job in what is left; it is taken."""
    entry, current = turn.entry, turn.entry.current
    if entry.is_kept:
        sweep.give_back(entry, entry.held)
    price = _price(sweep, turn)
    best = _cheapest(sweep, entry, price)
    if best is None and entry.by_s < math.inf:
        best = _cheapest(sweep, entry, 0.0, below_s=math.inf)
    if best is not None and sweep.waits_for_better(entry, best, price):
        return None
    if best is None and entry.is_kept:
        best = current
    if current is not None and best is not current:
        sweep.idle[current.gpu_type] = sweep.idle.get(current.gpu_type, 0) + entry.num_held
    if best is not None:
        sweep.take(entry, best)
        if best is not current:
            sweep.idle[best.gpu_type] = sweep.idle.get(best.gpu_type, 0) - best.num_gpus
    return best


def _cheapest(sweep: Sweep, entry: Entry, price: float, *, below_s: float | None = None) -> RankedPlan | None:
    """Of the open plans that meet its deadline; the first for a job whose order of plans is not one of speed.

    below_s: the fastest instead, if it takes less, whatever its deadline, its cost and the moves of others.
    """
    is_hurried = below_s is not None
    best, least, again_s = None, math.inf if below_s is None else below_s, 0.0
    by_s, by_cost = (math.inf, False) if is_hurried else (entry.by_s, entry.by_cost)
    current, left, plans = entry.current, sweep.left, entry.others.plans
    if entry.in_order:
        fit = (each for each in plans if each.num_gpus <= left.get(each.gpu_type, 0))
        return next((each for each in fit if _is_open(sweep, entry, each)), None)
    if current is not None and entry.run_s(current) <= by_s and may_stay(sweep, entry, current):
        paid_s, again_s = sweep.policy.hysteresis * entry.run_s(current), entry.moves_again_s
        if (cost := _cost(current, paid_s, price, by_cost)) < least:
            best, least = current, cost
    for ranked in plans:
        if ranked.num_gpus > left.get(ranked.gpu_type, 0):
            continue
        takes_s = entry.left * ranked.unit_s + entry.restart_s
        if takes_s > by_s or (takes_s >= least and not by_cost):
            break
        cost = _cost(ranked, takes_s + again_s, price, by_cost)
        # What it costs to disturb others only makes it dearer, and is looked up last.
        if cost >= least or not _is_open(sweep, entry, ranked):
            continue
        if not (by_cost or is_hurried):
            cost += _disturbance_s(sweep, entry, ranked, takes_s)
        if cost < least:
            best, least = ranked, cost
    return best


def _cost(ranked: RankedPlan, paid_s: float, price: float, by_cost: bool) -> float:
    return ranked.money(paid_s) if by_cost else paid_s * (1.0 + price * ranked.gpus)


def _disturbance_s(sweep: Sweep, entry: Entry, ranked: RankedPlan, takes_s: float) -> float:
    """What the jobs lose that are served last of those that hold what ``ranked`` lacks, until they have it back."""
    lacks = min(ranked.num_gpus, ranked.num_gpus - _at_hand(sweep, entry, ranked.gpu_type))
    lost_s = sweep.policy.disturbance * sweep.line.restart_s if lacks > 0 else 0.0
    for other in reversed(sweep.line.holders.get(ranked.gpu_type, ())):
        if lacks <= 0 or other.place <= entry.place:
            break
        taken = min(other.num_held, lacks)
        lost_s += _lost_s(sweep, other, other.num_held - taken, takes_s)
        lacks -= taken
    return lost_s


def _lost_s(sweep: Sweep, entry: Entry, num_kept: int, takes_s: float) -> float:
    """What ``entry`` loses where it keeps ``num_kept`` GPUs for ``takes_s``, or moves to what is idle elsewhere."""
    room = {**sweep.idle, entry.held.gpu_type: num_kept}
    possible = (each.unit_s for each in entry.others.plans if each.num_gpus <= room.get(each.gpu_type, 0))
    return entry.lost_s(min(possible, default=math.inf), takes_s)


def may_stay(sweep: Sweep, entry: Entry, current: RankedPlan) -> bool:
    """Whether nothing and nobody before ``entry`` takes from it what it has."""
    return (
        not entry.is_displaced
        and current.num_gpus <= sweep.left.get(current.gpu_type, 0)
        and sweep.may_have(entry, current)
    )


def _is_open(sweep: Sweep, entry: Entry, ranked: RankedPlan) -> bool:
    """Whether a plan that is not the current one may be taken, where GPUs enough are left."""
    if not sweep.may_have(entry, ranked) or not sweep.has_place(entry, ranked):
        return False
    current = entry.current
    if current is None:
        return True
    if entry.has_moves:
        # One that is served first for its memory makes nobody move by that.
        return not entry.job.memory_constrained or _is_idle(sweep, entry, ranked)
    # Nobody's turn is taken, and what is left at least shrinks by so much that the move pays for its own sake.
    return _is_idle(sweep, entry, ranked) and (
        (entry.run_s(ranked) + entry.restart_s + entry.moves_again_s) * sweep.policy.gain_without_budget
        <= entry.run_s(current)
    )


def _is_idle(sweep: Sweep, entry: Entry, ranked: RankedPlan) -> bool:
    """Whether no other job has to move for ``ranked``."""
    return ranked.num_gpus <= _at_hand(sweep, entry, ranked.gpu_type)


def _at_hand(sweep: Sweep, entry: Entry, gpu_type: str) -> int:
    """GPUs of ``gpu_type`` that are idle, or its own; less those for which others have to move already."""
    current = entry.current
    own = entry.num_held if current is not None and current.gpu_type == gpu_type else 0
    return sweep.idle.get(gpu_type, 0) + own


def _grown(sweep: Sweep, entry: Entry, chosen: RankedPlan | None) -> RankedPlan | None:
    """A faster plan in what all left over, or ``chosen``."""
    if chosen is None or entry.by_cost or entry.in_order or (chosen is entry.current and entry.is_displaced):
        return chosen
    if chosen is entry.current:
        below_s = entry.run_s(chosen) * sweep.policy.hysteresis
    else:
        below_s = entry.run_s(chosen) + entry.restart_s + entry.moves_again_s
    # Most find nothing left, or have their fastest.
    if max(sweep.left.values(), default=0) <= 0:
        return chosen
    soonest_s = min((entry.run_s(each) + entry.restart_s for each in entry.others.plans[:1]), default=math.inf)
    if min(soonest_s, math.inf if entry.current is None else entry.run_s(entry.current)) >= below_s:
        return chosen
    sweep.give_back(entry, chosen)
    best = _cheapest(sweep, entry, 0.0, below_s=below_s) or chosen
    sweep.take(entry, best)
    return best
