"""Weighted shares of queues: who is served next, and how much of the cluster it may have by right.

Shares are of effective GPUs (GPUs times the speed of their type). Of the queues that have jobs, each has
a right to its weight over the weights of all of them. The next to be served is always the queue that holds
least for its weight. First every queue takes what fits into its right; then jobs for which that left nothing
borrow what is left. What is borrowed is given back as soon as its owner has jobs: a job beyond its queue's
right is served last, and shrinks, moves or stops. A job that is larger than its queue's right borrows, too,
until it is due: then it comes before others, as long as its queue holds less than its right.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.plan_tables import Capacity, RankedPlan
from frenzy.core.scheduling.engine.service_order import ServiceOrder
from frenzy.core.values.queue_rules import QueueRules
from frenzy.core.values.scheduling_facts import RunningJob

_ROUNDING: Final = 1e-9


def rights(queues: Iterable[str], rules: QueueRules, capacity: Capacity) -> dict[str, float]:
    """Effective GPUs that each of ``queues`` has a right to while all of them have jobs."""
    weights = {queue: rules.weight_of(queue) for queue in sorted(set(queues))}
    total = sum(weights.values())
    return {queue: capacity.effective * weight / total for queue, weight in weights.items()}


def held_by_queue(jobs: Iterable[RunningJob], capacity: Capacity) -> dict[str, float]:
    """Effective GPUs that the jobs of each queue hold."""
    held: dict[str, float] = {}
    for job in jobs:
        gpus = capacity.speed.get(job.plan.gpu_type, 0.0) * job.plan.num_gpus
        held[job.queue] = held.get(job.queue, 0.0) + gpus
    return held


@dataclass(slots=True)
class _QueueEntries:
    """The entries of one queue in their order, ``at`` the next. right, held: effective GPUs. behind: how many
    there are from ``at`` on.
    """

    entries: list[Entry]
    weight: float
    right: float
    held: float = 0.0
    behind: int = field(init=False)
    at: int = 0

    def __post_init__(self) -> None:
        self.behind = len(self.entries)

    def skip_waiting(self) -> None:
        """On to the next job that holds GPUs."""
        while self.at < len(self.entries) and self.entries[self.at].current is None:
            self.behind -= 1
            self.at += 1


@dataclass(frozen=True, slots=True)
class Turn:
    """Who is served. allowance: effective GPUs it may have. behind: how many are behind it in its queue.
    right: effective GPUs that its queue has left by right. is_due: it has waited long enough, and its queue has less
    than its right.
    """

    entry: Entry
    allowance: float
    behind: int
    right: float
    is_due: bool


@dataclass(slots=True)
class ShareTurns:
    """The turns of one sweep over ``line``, queue by queue; ``took`` and ``none_left`` say what came of one."""

    _queues: dict[str, _QueueEntries]
    _now_s: float
    _none_left: bool = False

    @staticmethod
    def of(line: ServiceOrder, held: Mapping[str, float], rules: QueueRules, capacity: Capacity) -> ShareTurns | None:
        """None where no queue shares with another. held: effective GPUs that each queue holds already."""
        if not rules.queues:
            return None
        by_queue: dict[str, list[Entry]] = {queue: [] for queue in held}
        for entry in line.entries:
            by_queue.setdefault(entry.job.queue, []).append(entry)
        if len(by_queue) < 2:
            return None
        own = rights(by_queue, rules, capacity)
        queues = {
            name: _QueueEntries(
                [each for each in entries if not each.is_fixed], rules.weight_of(name), own[name], held.get(name, 0.0)
            )
            for name, entries in sorted(by_queue.items())
        }
        return ShareTurns(queues, line.now_s)

    def again(self, entries: Iterable[Entry]) -> ShareTurns:
        """Turns of ``entries``, each queue with what it holds by now."""
        by_queue: dict[str, list[Entry]] = {name: [] for name in self._queues}
        for entry in entries:
            by_queue[entry.job.queue].append(entry)
        return ShareTurns(
            {
                name: _QueueEntries(by_queue[name], each.weight, each.right, each.held)
                for name, each in self._queues.items()
            },
            self._now_s,
        )

    def __iter__(self) -> Iterator[Turn]:
        heap = [self._place(name) for name in self._queues if self._has_more(name)]
        heapq.heapify(heap)
        while heap:
            name = heapq.heappop(heap)[-1]
            queue = self._queues[name]
            entry = queue.entries[queue.at]
            queue.at += 1
            queue.behind -= 1
            yield self._turn(queue, entry)
            if self._none_left:
                for each in self._queues.values():
                    each.skip_waiting()
            if self._has_more(name):
                heapq.heappush(heap, self._place(name))
            if self._none_left:
                heap = [self._place(each[-1]) for each in heap if self._has_more(each[-1])]
                heapq.heapify(heap)

    def took(self, entry: Entry, chosen: RankedPlan | None) -> None:
        """The last turn ended with ``chosen``."""
        had = entry.current.gpus if entry.current is not None and _is_kept(entry) else 0.0
        self._queues[entry.job.queue].held += (chosen.gpus if chosen is not None else 0.0) - had

    def none_left(self) -> None:
        """No job that waits can have anything any more."""
        self._none_left = True

    def _turn(self, queue: _QueueEntries, entry: Entry) -> Turn:
        own = entry.current.gpus if entry.current is not None and _is_kept(entry) else 0.0
        left = queue.right - queue.held + own
        is_due = self._is_due(queue, entry)
        allowance = max(0.0, left, _smallest(entry) if is_due else 0.0) * (1 + _ROUNDING)
        return Turn(entry, allowance, queue.behind, max(left, _ROUNDING), is_due)

    def _is_due(self, queue: _QueueEntries, entry: Entry) -> bool:
        return entry.due_s <= self._now_s and queue.held < queue.right * (1 - _ROUNDING)

    def _has_more(self, name: str) -> bool:
        queue = self._queues[name]
        return queue.at < len(queue.entries)

    def _place(self, name: str) -> tuple[bool, float, tuple[float, float, str], str]:
        queue = self._queues[name]
        entry = queue.entries[queue.at]
        return (not self._is_due(queue, entry), queue.held / queue.weight, entry.place, name)


def _is_kept(entry: Entry) -> bool:
    """Whether what it holds was counted before its turn."""
    return not entry.has_moves or entry.is_displaced


def _smallest(entry: Entry) -> float:
    """Effective GPUs of its smallest plan."""
    sizes = [entry.others.smallest_gpus] if entry.others.plans else []
    if entry.current is not None:
        sizes.append(entry.current.gpus)
    return min(sizes, default=math.inf)
