"""Weighted shares of queues: who is served next, and how much of the cluster it may have by right.

Shares are of effective GPUs. Of the queues that have jobs, each has a right to its weight over the weights of all. The
next to be served is the queue that holds least for its weight. First every queue takes what fits into its right; then
jobs for which that left nothing borrow what is left. A job beyond its queue's right is served last, and shrinks, moves
or stops when the owner has jobs. A job larger than its queue's right borrows until it is due: then it comes first, as
long as its queue holds less than its right.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.capacity.queue_use import rights
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.service_order import ServiceOrder
from frenzy.core.scheduling.engine.state import Entry
from frenzy.core.values.queue_rules import QueueRules

_ROUNDING: Final = 1e-9


class Turn(NamedTuple):
    """Who is served. behind: how many are behind it in its queue. allowance: effective GPUs it may have. right: those
    that its queue has left by right; None where it goes by what all have left. is_due: it has waited long enough, and
    its queue has less than its right.
    """

    entry: Entry
    behind: int
    allowance: float = math.inf
    right: float | None = None
    is_due: bool = False


@dataclass(slots=True)
class _Queue:
    """Jobs in order, ``at`` the next. right, held: effective GPUs."""

    weight: float
    right: float
    held: float
    entries: list[Entry] = field(default_factory=list)
    at: int = 0

    def skip_waiting(self) -> list[Entry]:
        begin = self.at
        while self.at < len(self.entries) and self.entries[self.at].current is None:
            self.at += 1
        return self.entries[begin : self.at]


@dataclass(slots=True)
class Turns:
    """The turns of one sweep, queue by queue, or of all jobs as of one queue where none shares with another.

    While they are taken, ``took`` and ``skip_waiting`` say what came of the last.
    """

    _queues: dict[str, _Queue]
    _now_s: float
    by_right: bool = True
    _heap: list[tuple[bool, float, tuple[float, float, str], str]] = field(default_factory=list)

    @staticmethod
    def of(line: ServiceOrder, held: Mapping[str, float], rules: QueueRules, capacity: Capacity) -> Turns:
        """Those by right, if queues share. held: effective GPUs that each queue holds already."""
        names = {*held, *(entry.job.queue for entry in line.entries)} if rules.queues else set[str]()
        own = rights(names, rules, capacity)
        queues = {name: _Queue(rules.weight_of(name), own[name], held.get(name, 0.0)) for name in own}
        turns = Turns(queues if len(queues) > 1 else {"": _Queue(1.0, math.inf, 0.0)}, line.now_s)
        return turns.again(line.free, by_right=len(queues) > 1)

    def again(self, entries: Iterable[Entry], *, by_right: bool = False) -> Turns:
        """Turns of ``entries``, each queue with what it holds by now; they borrow, unless they go ``by_right``."""
        queues = {name: replace(queue, entries=[], at=0) for name, queue in self._queues.items()}
        if len(queues) == 1:
            queues[""].entries.extend(entries)
        else:
            for entry in entries:
                queues[entry.job.queue].entries.append(entry)
        return Turns(queues, self._now_s, by_right)

    def __iter__(self) -> Iterator[Turn]:
        self._line_up(self._queues)
        while self._heap:
            name = heapq.heappop(self._heap)[-1]
            queue = self._queues[name]
            entry = queue.entries[queue.at]
            queue.at += 1
            yield self._turn(queue, entry)
            if queue.at < len(queue.entries):
                heapq.heappush(self._heap, self._place(name))

    def took(self, entry: Entry, chosen: RankedPlan | None) -> None:
        """What it holds now counts, where queues share."""
        if len(self._queues) > 1:
            self._queues[entry.job.queue].held += (chosen.gpus if chosen is not None else 0.0) - _counted(entry)

    def skip_waiting(self) -> list[Entry]:
        """Go on with the next job of each queue that holds GPUs; those that are passed over, which wait."""
        waiting = [entry for queue in self._queues.values() for entry in queue.skip_waiting()]
        self._line_up([each[-1] for each in self._heap])
        return waiting

    def _line_up(self, names: Iterable[str]) -> None:
        queues = self._queues
        self._heap = [self._place(name) for name in names if queues[name].at < len(queues[name].entries)]
        heapq.heapify(self._heap)

    def _turn(self, queue: _Queue, entry: Entry) -> Turn:
        behind = len(queue.entries) - queue.at
        if not self.by_right:
            return Turn(entry, behind)
        left, is_due = queue.right - queue.held + _counted(entry), self._is_due(queue, entry)
        allowance = max(0.0, left, _smallest(entry) if is_due else 0.0) * (1 + _ROUNDING)
        return Turn(entry, behind, allowance, max(left, _ROUNDING), is_due)

    def _is_due(self, queue: _Queue, entry: Entry) -> bool:
        return entry.due_s <= self._now_s and queue.held < queue.right * (1 - _ROUNDING)

    def _place(self, name: str) -> tuple[bool, float, tuple[float, float, str], str]:
        queue = self._queues[name]
        if len(self._queues) == 1:
            return (False, 0.0, (0.0, 0.0, ""), name)
        entry = queue.entries[queue.at]
        return (not self._is_due(queue, entry), queue.held / queue.weight, entry.place, name)


def _counted(entry: Entry) -> float:
    """Effective GPUs that it holds and that were counted before its turn."""
    return entry.held.gpus if entry.is_kept else 0.0


def _smallest(entry: Entry) -> float:
    """Effective GPUs of its smallest plan."""
    plans = (*entry.others.plans, entry.current) if entry.current is not None else entry.others.plans
    return min((each.gpus for each in plans), default=math.inf)
