"""The queue as an immutable index: in its order, and in lines of jobs that ask for the same.

Of a line whose first job cannot start, none can, as far as GPUs go: a pass over a long queue needs to
look at a few lines, not at every job.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from frenzy.core.has.chunks import Chunks, Place
from frenzy.core.has.lookup import Lookup
from frenzy.core.has.options import Contender
from frenzy.core.queue import QueuedJob

Order = Callable[[QueuedJob], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Alike:
    """Jobs that ask for the same, in queue order; works: what is left of each, ascending."""

    jobs: Chunks[Contender]
    works: Chunks[float]

    @property
    def least_work(self) -> float:
        return self.works.first


@dataclass(frozen=True, slots=True)
class Waiting:
    """All waiting jobs: ``in_order`` says everything, the rest is for finding them.

    pressed: those whose memory outgrew their GPUs, by run key; timed: those with a deadline, _by_key: all, likewise.
    """

    in_order: Chunks[Contender]
    order: Order = field(compare=False, repr=False)
    lines: Mapping[str, Alike] = field(compare=False, repr=False)
    pressed: Mapping[str, Contender] = field(compare=False, repr=False)
    timed: Mapping[str, Contender] = field(compare=False, repr=False)
    _by_key: Lookup[Contender] = field(compare=False, repr=False)

    @staticmethod
    def of(contenders: Iterable[Contender], order: Order) -> Waiting:
        in_order = sorted(contenders, key=lambda each: order(each.job))
        lines: dict[str, list[Contender]] = {}
        for each in in_order:
            lines.setdefault(each.asks, []).append(each)
        by_key = Lookup.of((each.job.run_key, each) for each in in_order)
        pressed = {each.job.run_key: each for each in in_order if each.job.pressed}
        timed = {each.job.run_key: each for each in in_order if each.job.deadline_s is not None}
        by_asks = {asks: _line(jobs) for asks, jobs in lines.items()}
        return Waiting(Chunks.of(in_order), order, by_asks, pressed, timed, by_key)

    def __iter__(self) -> Iterator[Contender]:
        return iter(self.in_order)

    def __len__(self) -> int:
        return len(self.in_order)

    def front(self, num_jobs: int) -> Waiting:
        """The first ``num_jobs`` of the queue."""
        return Waiting.of(islice(self, num_jobs), self.order)

    def put(self, contender: Contender) -> Waiting:
        """With ``contender`` at its place."""
        line = self.lines.get(contender.asks) or _line(())
        grown = Alike(line.jobs.put(contender, self._key), line.works.put(contender.job.work_left, float))
        lines = {**self.lines, contender.asks: grown}
        pressed = {**self.pressed, contender.job.run_key: contender} if contender.job.pressed else self.pressed
        has_deadline = contender.job.deadline_s is not None
        timed = {**self.timed, contender.job.run_key: contender} if has_deadline else self.timed
        by_key = self._by_key.put(contender.job.run_key, contender)
        return Waiting(self.in_order.put(contender, self._key), self.order, lines, pressed, timed, by_key)

    def without(self, run_keys: Iterable[str]) -> Waiting:
        """Without the jobs of ``run_keys``, those that wait."""
        found = self
        for run_key in run_keys:
            contender = found.find(run_key)
            if contender is not None:
                found = found._taken_out(contender)
        return found

    def _taken_out(self, contender: Contender) -> Waiting:
        line = self.lines[contender.asks]
        lines = dict(self.lines)
        if len(line.jobs) > 1:
            works = line.works.without(line.works.place(contender.job.work_left, float))
            lines[contender.asks] = Alike(line.jobs.without(self._place(line.jobs, contender.job)), works)
        else:
            del lines[contender.asks]
        in_order = self.in_order.without(self._place(self.in_order, contender.job))
        pressed = self.pressed
        if contender.job.pressed:
            pressed = {key: each for key, each in pressed.items() if key != contender.job.run_key}
        timed = self.timed
        if contender.job.deadline_s is not None:
            timed = {key: each for key, each in timed.items() if key != contender.job.run_key}
        by_key = self._by_key.without(contender.job.run_key)
        return Waiting(in_order, self.order, lines, pressed, timed, by_key)

    def find(self, run_key: str) -> Contender | None:
        """The waiting job of that key; None if it does not wait."""
        return self._by_key.get(run_key)

    def _place(self, jobs: Chunks[Contender], job: QueuedJob) -> Place:
        return jobs.place(self.order(job), self._key)

    def _key(self, contender: Contender) -> tuple[Any, ...]:
        return self.order(contender.job)


class Turns:
    """Waiting jobs in queue order, for one pass. A line that is closed has no more turns in it.

    lines: only those that ask for one of them; None for all.
    """

    def __init__(self, waiting: Waiting, lines: Iterable[str] | None = None) -> None:
        self._order = waiting.order
        self._heads: list[tuple[tuple[Any, ...], int, Contender, Iterator[Contender]]] = []
        for number, asks in enumerate(waiting.lines if lines is None else lines):
            following = iter(waiting.lines[asks].jobs)
            first = next(following)
            self._heads.append((self._order(first.job), number, first, following))
        heapq.heapify(self._heads)
        self._closed = False

    def __iter__(self) -> Iterator[Contender]:
        while self._heads:
            _, number, contender, following = self._heads[0]
            self._closed = False
            yield contender
            after = None if self._closed else next(following, None)
            if after is None:
                heapq.heappop(self._heads)
            else:
                heapq.heapreplace(self._heads, (self._order(after.job), number, after, following))

    def close(self) -> None:
        """No job that asks for the same as the one that has its turn can start any more in this pass."""
        self._closed = True


def _line(jobs: Iterable[Contender]) -> Alike:
    known = tuple(jobs)
    return Alike(Chunks.of(known), Chunks.of(sorted(each.job.work_left for each in known)))
