"""The entries of a decision in the order they are served."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from operator import attrgetter

from frenzy.core.scheduling.engine.deadlines import with_deadline
from frenzy.core.scheduling.engine.entries import Entry, running_entry
from frenzy.core.scheduling.engine.state import SchedulingState


@dataclass(frozen=True, slots=True)
class ServiceOrder:
    """Entries in the order they are served, and what every sweep over them needs.

    free: those that are not fixed. holders: of these, by GPU type, those that others may make move. kept: jobs that
    hold what they have until their turn comes, if ever. restart_s: the median of what a move costs a job that runs.
    num_asks: different ones, of the jobs that wait. least_priority: of those that are not fixed. now_s: when it is
    decided.
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
            if entry.current is not None and (entry.is_fixed or not entry.has_moves or entry.is_displaced):
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
    """An entry for every active job, in the order they are served: by priority, then by ``first_s``.

    Short jobs go before long ones that came at about the same time, and none is overtaken for ever. moves: whether
    running jobs have a turn, too.
    """
    running, tables, capacity, policy = state.running, state.tables, state.capacity, state.policy.numbers
    entries = [each for each in state.waiting if each.run_key not in running]
    if moves:
        entries += [running_entry(job, now_s, tables, capacity, policy) for job in running.values()]
    else:
        # Where jobs move, ``swap`` has served these already.
        entries = [each._replace(first_s=-math.inf) if each.job.memory_constrained else each for each in entries]
    if any(entry.job.deadline_s is not None for entry in entries):
        entries = [entry if entry.job.deadline_s is None else with_deadline(state, entry, now_s) for entry in entries]
    # By ``place``: sorts are stable, and need no tuples, which the collector would look through.
    entries.sort(key=attrgetter("run_key"))
    entries.sort(key=attrgetter("first_s"))
    entries.sort(key=attrgetter("job.priority"), reverse=True)
    return entries
