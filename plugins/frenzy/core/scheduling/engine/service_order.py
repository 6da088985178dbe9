"""The entries of a decision in the order they are served; and what a deadline does to it.

A deadline is at risk when the time until it is less than ``deadline_slack`` times what the job takes with the plan that
uses GPUs best, or has; the earliest comes first. One that the job's fastest plan cannot meet counts for nothing. Nor do
plans that it could never have.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Final, NamedTuple

from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy
from frenzy.core.scheduling.engine.state import Entry, SchedulingState, in_order
from frenzy.core.scheduling.engine.wording import about
from frenzy.core.values.scheduling_facts import RunningJob

# Before any time of submission; what is added to it keeps its order.
_FIRST_S: Final = -1e10


@dataclass(frozen=True, slots=True)
class ServiceOrder:
    """Entries in the order they are served, and what every sweep over them needs.

    free: those that are not fixed. holders: of these, by GPU type, those that others may make move. kept: jobs that
    hold what they have until their turn comes, if ever. restart_s: the median of what a move costs. num_asks: different
    ones, of jobs that wait.
    """

    entries: list[Entry]
    free: list[Entry]
    holders: dict[str, list[Entry]]
    kept: list[Entry]
    restart_s: float
    num_asks: int
    least_priority: float
    now_s: float

    @staticmethod
    def of(entries: list[Entry], now_s: float) -> ServiceOrder:
        """A line of ``entries``, which are in order."""
        # Only a job that runs is ever fixed.
        free = [entry for entry in entries if not entry.is_fixed]
        holders: dict[str, list[Entry]] = {}
        kept: list[Entry] = []
        for entry in entries:
            if entry.is_fixed or entry.is_kept:
                kept.append(entry)
            elif entry.current is not None:
                holders.setdefault(entry.current.gpu_type, []).append(entry)
        costs = [entry.restart_s for entry in free if entry.current is not None]
        restart_s = statistics.median_low(costs) if costs else 0.0
        num_asks = len({id(entry.others.ask) for entry in entries if entry.current is None})
        least_priority = free[-1].job.priority if free else math.inf
        return ServiceOrder(entries, free, holders, kept, restart_s, num_asks, least_priority, now_s)

    def must_not_be_overtaken(self, entry: Entry) -> bool:
        """Whether none behind a job that finds no place may take what it waits for: it is due, or matters more."""
        return entry.first_s <= self.now_s or entry.job.priority > self.least_priority


def entries_of(state: SchedulingState, now_s: float, *, moves: bool = True) -> list[Entry]:
    """An entry for every active job, by priority, then by ``first_s``; moves: of running jobs, too."""
    entries = state.startable
    if moves:
        entries += [state.running_entry(job, now_s) for job in state.running.values()]
    if isinstance(state.policy, BackfillPolicy):
        # Where jobs move, ``swap`` has served those already that are memory-constrained.
        entries = [
            each._replace(first_s=-math.inf) if each.job.memory_constrained and not moves else each for each in entries
        ]
        entries = [each if each.job.deadline_s is None else _with_deadline(state, each, now_s) for each in entries]
    return in_order(entries, state.policy, by="first_s")


class _Deadline(NamedTuple):
    """What a deadline means to a job. left_s: time until it. fastest_s: seconds to the job's end with the fastest of
    what it has or could ever have, restart included; infinite where that is nothing.
    """

    left_s: float
    fastest_s: float
    is_at_risk: bool

    @property
    def is_lost(self) -> bool:
        return self.fastest_s > self.left_s


def _deadline(state: SchedulingState, entry: Entry, now_s: float) -> _Deadline | None:
    if entry.job.deadline_s is None:
        return None
    possible, current, left_s = state.possible(entry), entry.current, entry.job.deadline_s - now_s
    moved_s = min((entry.run_s(each) + entry.restart_s for each in possible), default=math.inf)
    fastest_s = moved_s if current is None else min(moved_s, entry.run_s(current))
    usual = current or min(possible, key=lambda each: each.unit_s * each.gpus, default=None)
    is_at_risk = usual is not None and state.policy.numbers.deadline_slack * entry.run_s(usual) > left_s
    return _Deadline(left_s, fastest_s, is_at_risk)


def _with_deadline(state: SchedulingState, entry: Entry, now_s: float) -> Entry:
    """``entry`` as its deadline makes it at ``now_s``: what it must be done by, and served first if that is at risk."""
    found, deadline_s = _deadline(state, entry, now_s), entry.job.deadline_s
    if found is None or deadline_s is None or found.is_lost:
        return entry
    # A ladder of plans is climbed in its own order, however late it is.
    by_s = math.inf if entry.in_order else found.left_s
    first_s = min(entry.first_s, _FIRST_S + deadline_s) if found.is_at_risk else entry.first_s
    return entry._replace(by_s=by_s, first_s=first_s)


def lost_sentence(state: SchedulingState, entry: Entry, now_s: float) -> str | None:
    """That the deadline of a waiting job cannot be met any more; None if it can, or there is none."""
    found = _deadline(state, entry, now_s)
    if found is None or not found.is_lost:
        return None
    when = f"is in {about(found.left_s)}" if found.left_s > 0 else f"was {about(-found.left_s)} ago"
    fastest_s = found.fastest_s
    takes = f"its fastest plan takes {about(fastest_s)}" if fastest_s < math.inf else "it has no plan that could run"
    return f"Its deadline {when} and cannot be met: {takes}; it is served as a job without one."


def deadline_sentence(state: SchedulingState, entry: Entry, now_s: float) -> str | None:
    """What the deadline of a waiting job does for it; None where that is nothing, or its reason says it."""
    found = _deadline(state, entry, now_s)
    if found is None or found.is_lost or not isinstance(state.policy, BackfillPolicy):
        return None
    if found.is_at_risk:
        return f"Its deadline in {about(found.left_s)} is at risk: it is served before others of its priority."
    return f"Its deadline in {about(found.left_s)} is not at risk yet: it waits in its usual place."


def running_sentence(job: RunningJob, now_s: float) -> str | None:
    """Whether a running job is expected to meet its deadline, if it has one and its end can be foreseen."""
    if job.deadline_s is None or job.expected_end_s is None:
        return None
    spare_s = job.deadline_s - max(now_s, job.expected_end_s)
    if spare_s >= 0:
        return f"It is expected to meet its deadline, {about(spare_s)} before it."
    return f"It is expected to miss its deadline by {about(-spare_s)}."
