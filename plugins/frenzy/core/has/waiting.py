"""The queue as an immutable index: in its order, and in lines of jobs that ask for the same.

Of a line whose first job cannot start, none can, as far as GPUs go: a pass over a long queue needs to
look at a few lines, not at every job.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frenzy.core.has.options import Contender
from frenzy.core.queue import QueuedJob

Order = Callable[[QueuedJob], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Line:
    """Jobs that ask for the same, in queue order. least_work: of what is left of any of them."""

    jobs: tuple[Contender, ...]
    works: tuple[float, ...]

    @property
    def least_work(self) -> float:
        return self.works[0]


@dataclass(frozen=True, slots=True)
class Waiting:
    """All waiting jobs: ``in_order`` says everything, the rest is for finding them.

    _hints: jobs that were put here or into another of the same origin, by run key; where it is wrong or
    silent, finding a job takes longer.
    """

    in_order: tuple[Contender, ...]
    order: Order = field(compare=False, repr=False)
    lines: Mapping[str, Line] = field(compare=False, repr=False)
    _hints: dict[str, QueuedJob] = field(compare=False, repr=False)

    @staticmethod
    def of(contenders: Iterable[Contender], order: Order) -> Waiting:
        in_order = tuple(sorted(contenders, key=lambda each: order(each.job)))
        lines: dict[str, list[Contender]] = {}
        for each in in_order:
            lines.setdefault(each.asks, []).append(each)
        hints = {each.job.run_key: each.job for each in in_order}
        return Waiting(in_order, order, {asks: _line(jobs) for asks, jobs in lines.items()}, hints)

    def __iter__(self) -> Iterator[Contender]:
        return iter(self.in_order)

    def __len__(self) -> int:
        return len(self.in_order)

    def front(self, num_jobs: int) -> Waiting:
        """The first ``num_jobs`` of the queue."""
        return Waiting.of(self.in_order[:num_jobs], self.order)

    def put(self, contender: Contender) -> Waiting:
        """With ``contender`` at its place."""
        line = self.lines.get(contender.asks, Line((), ()))
        work = contender.job.work_left
        grown = Line(self._inserted(line.jobs, contender), _inserted(line.works, work))
        self._hints[contender.job.run_key] = contender.job
        lines = {**self.lines, contender.asks: grown}
        return Waiting(self._inserted(self.in_order, contender), self.order, lines, self._hints)

    def without(self, run_keys: Iterable[str]) -> Waiting:
        """Without the jobs of ``run_keys``, those that wait."""
        found = self
        for run_key in run_keys:
            at = self._place(found.in_order, run_key, self._hints.get(run_key))
            if at is not None:
                found = found._taken_out(at)
        return found

    def _taken_out(self, at: int) -> Waiting:
        contender = self.in_order[at]
        line = self.lines[contender.asks]
        inside = self._place(line.jobs, contender.job.run_key, contender.job)
        assert inside is not None, "every waiting job is in its line"
        jobs = line.jobs[:inside] + line.jobs[inside + 1 :]
        lines = dict(self.lines)
        if jobs:
            worth = bisect_left(line.works, contender.job.work_left)
            lines[contender.asks] = Line(jobs, line.works[:worth] + line.works[worth + 1 :])
        else:
            del lines[contender.asks]
        return Waiting(self.in_order[:at] + self.in_order[at + 1 :], self.order, lines, self._hints)

    def _inserted(self, jobs: tuple[Contender, ...], contender: Contender) -> tuple[Contender, ...]:
        at = bisect_left(jobs, self.order(contender.job), key=lambda each: self.order(each.job))
        return (*jobs[:at], contender, *jobs[at:])

    def _place(self, jobs: Sequence[Contender], run_key: str, hint: QueuedJob | None) -> int | None:
        """Where the job of ``run_key`` is; at once where ``hint`` is that job."""
        if hint is not None:
            at = bisect_left(jobs, self.order(hint), key=lambda each: self.order(each.job))
            if at < len(jobs) and jobs[at].job.run_key == run_key:
                return at
        return next((at for at, each in enumerate(jobs) if each.job.run_key == run_key), None)


class Turns:
    """Waiting jobs in queue order, for one pass. A line that is closed has no more turns in it."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._heads = [(waiting.order(line.jobs[0].job), asks, 0) for asks, line in waiting.lines.items()]
        heapq.heapify(self._heads)
        self._closed = False

    def __iter__(self) -> Iterator[Contender]:
        while self._heads:
            _, asks, at = self._heads[0]
            jobs = self._waiting.lines[asks].jobs
            self._closed = False
            yield jobs[at]
            if self._closed or at + 1 == len(jobs):
                heapq.heappop(self._heads)
            else:
                heapq.heapreplace(self._heads, (self._waiting.order(jobs[at + 1].job), asks, at + 1))

    def close(self) -> None:
        """No job that asks for the same as the one that has its turn can start any more in this pass."""
        self._closed = True


def _line(jobs: Sequence[Contender]) -> Line:
    return Line(tuple(jobs), tuple(sorted(each.job.work_left for each in jobs)))


def _inserted(works: tuple[float, ...], work: float) -> tuple[float, ...]:
    at = bisect_left(works, work)
    return (*works[:at], work, *works[at:])
