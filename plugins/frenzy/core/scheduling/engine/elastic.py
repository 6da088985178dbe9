"""Moves: jobs start, grow, shrink, change their GPUs or give way, so that all end sooner."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Final

from frenzy.core.capacity.free_capacity import place_in
from frenzy.core.capacity.queue_use import QuotaUse
from frenzy.core.scheduling.engine import starts as starts_only
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.left_over import Places, Sweep, asked_by
from frenzy.core.scheduling.engine.policy_settings import HasPolicy
from frenzy.core.scheduling.engine.service_order import ServiceOrder, entries_of
from frenzy.core.scheduling.engine.shares import Served, may_stay, targets
from frenzy.core.scheduling.engine.state import Entry, SchedulingState
from frenzy.core.scheduling.engine.swap import served_first
from frenzy.core.scheduling.engine.wording import listed
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Action, Preempt, Resize, Start

# After so many sweeps with targets that could not be placed nobody is moved any more.
_MAX_SWEEPS: Final = 8


def decide(state: SchedulingState, now_s: float) -> tuple[tuple[Action, ...], Sweep]:
    """Starts, resizes and preemptions, in the order they are served; and the last sweep: the record of all that wait.

    Where no job may be moved: of starts only. Jobs under memory pressure come first (``swap``). Actions may use GPUs
    that others of the same answer give back. A target that GPUs on several nodes cannot serve is open to as many as
    found a place, and the sweep is made again; also where moves together do not pay, with those jobs fixed.
    """
    policy, swaps = state.policy, tuple[Action, ...]()
    active = chain(state.running.values(), (each.job for each in state.waiting))
    if isinstance(policy, HasPolicy) and any(job.elasticity is not None for job in active):
        swaps, state = served_first(state, now_s)
        line = ServiceOrder.of(entries_of(state, now_s), now_s)
        places: Places = {}
        for _ in range(_MAX_SWEEPS):
            found, sweep = targets(state, line, policy, places)
            staying = _unpaid(sweep, found)
            if staying:
                line = ServiceOrder.of([_kept(each, staying) for each in line.entries], now_s)
                continue
            actions, failed = _realised(state, line, found)
            if not failed:
                return (*swaps, *actions), sweep
            places = {**places, **failed}
    starts, _, record = starts_only.decide(state, now_s)
    return (*swaps, *starts), record


def _kept(entry: Entry, staying: Collection[str]) -> Entry:
    """``entry``; fixed, if its job is one of ``staying``."""
    return entry._replace(is_fixed=True) if entry.run_key in staying else entry


def _unpaid(sweep: Sweep, served: list[Served]) -> set[str]:
    """Run keys of the jobs that had better stay: they lose by a change that nothing forces, more than is gained on the
    GPU types that it touches, and whoever takes anything else does so without what they hold.

    A turn judges what its own job takes, not what comes of the jobs after it. Where queues have shares, a job may leave
    GPUs to which it has no right, the next one takes them, and a third loses by it.

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


def _realised(state: SchedulingState, line: ServiceOrder, found: list[Served]) -> tuple[list[Action], Places]:
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
        placement = place_in(room, target.need)
        if placement is None:
            failed.add(asked_by(entry, target))
            continue
        room = room.hold(target.need, placement)
        placed[asked_by(entry, target)] += 1
        kind = Start if entry.current is None else Resize
        taken.append((entry, kind(run_key=entry.run_key, plan=target.plan, placement=placement)))
    if failed:
        return [], {asked: placed[asked] for asked in failed}
    by_key = {entry.run_key: action for entry, action in taken}
    return [by_key.get(entry.run_key) or _preemption(state, line, entry, taken) for entry, _ in changed], {}


def _preemption(
    state: SchedulingState, line: ServiceOrder, entry: Entry, taken: Sequence[tuple[Entry, Start | Resize]]
) -> Preempt:
    """``entry``'s job stops, with why. taken: what other jobs take in the same decision."""
    why = next(_why_it_stops(state, line, entry, taken))
    reason = Reason(code=ReasonCode.PREEMPTED, detail=f"{why}; it goes on from its checkpoint.")
    return Preempt(run_key=entry.run_key, reason=reason)


def _why_it_stops(
    state: SchedulingState, line: ServiceOrder, entry: Entry, taken: Sequence[tuple[Entry, Start | Resize]]
) -> Iterator[str]:
    """Who takes GPUs of its nodes; elsewhere, one before it in line that comes under the same quota; a quota or a node
    that has become smaller than what it holds; for whom its GPUs are kept.
    """
    nodes = {each.node for each in state.running[entry.run_key].placement.allocations}
    rules, gpu_type = state.policy.numbers.queues, entry.held.gpu_type
    for other, action in taken:
        if any(each.node in nodes for each in action.placement.allocations):
            yield f"Its GPUs are needed by {_for(other, entry)}"
    limits = {*rules.limits_of(entry.job.queue, entry.job.team)}
    for other, _ in taken:
        if other.place < entry.place and limits & {*rules.limits_of(other.job.queue, other.job.team)}:
            yield f"Its GPUs are needed by {_for(other, entry)}"
    others = (job for key, job in state.running.items() if key != entry.run_key)
    limit = QuotaUse.of(rules, others).exceeded(entry.job, gpu_type, entry.held.num_gpus)
    if limit is not None:
        yield f"{limit.may_hold}, fewer than its jobs hold"
    free = state.room.by_type[gpu_type].free if gpu_type in state.room.by_type else {}
    small = sorted(name for name in nodes if name in free and free[name].num_gpus < 0)
    if small:
        yield f"{listed(small, last='and')} {'has' if len(small) == 1 else 'have'} fewer GPUs for jobs than they hold"
    for first in (each for each in line.entries if each.current is None and each.place <= entry.place):
        wanted = (each.need for each in first.others.plans if each.gpu_type == gpu_type)
        if line.must_not_be_overtaken(first) and any(map(state.capacity.fits_empty, wanted)):
            yield f"Its GPUs are kept for {_for(first, entry)}"
    yield "Its GPUs are needed by jobs that are served before it"


def _for(beneficiary: Entry, entry: Entry) -> str:
    name = beneficiary.job.job_name
    if beneficiary.job.priority > entry.job.priority:
        return f"{name}, whose priority is higher"
    if beneficiary.job.queue != entry.job.queue:
        return f"{name} of queue {beneficiary.job.queue}"
    return f"{name}, which is due earlier" if beneficiary.place < entry.place else name
