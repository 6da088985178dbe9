"""The queue as an immutable index: in its order, and in lines of jobs that ask for the same.

Where the first job of a line cannot start for want of GPUs, none of the line can; where it cannot for what is
kept for others, only those can that are done in time: a pass over a long queue needs to look at few jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import eq
from typing import Any, Final

from frenzy.core.has.chunks import Chunks, Key, Place
from frenzy.core.has.lookup import Lookup
from frenzy.core.has.options import Contender
from frenzy.core.values.queue import QueuedJob

Order = Callable[[QueuedJob], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Alike:
    """Jobs that ask for the same, in queue order. With the same option one takes longer than another.

    _least_run_s: once it was asked for, ``least_run_s`` and nothing else.
    """

    jobs: Chunks[Contender]
    _least_run_s: list[tuple[float, ...]] = field(default_factory=list, compare=False, repr=False)

    @property
    def least_run_s(self) -> tuple[float, ...]:
        """Of each option the seconds that it takes the job that takes least."""
        if not self._least_run_s:
            self._least_run_s.append(tuple(map(min, zip(*[each.run_times for each in self.jobs], strict=True))))
        return self._least_run_s[0]

    def put(self, contender: Contender, key: Key[Contender]) -> Alike:
        """With ``contender`` at its place."""
        jobs = self.jobs.put(contender, key)
        return Alike(jobs, [tuple(map(min, least, contender.run_times)) for least in self._least_run_s])

    def without(self, contender: Contender, place: Place) -> Alike:
        """Without ``contender``, which is at ``place``."""
        stays = [least for least in self._least_run_s if not any(map(eq, least, contender.run_times))]
        return Alike(self.jobs.without(place), stays)


@dataclass(frozen=True, slots=True)
class Limits:
    """Which options of jobs that ask for the same can start now, and when they must have ended.

    end_by_s: the option's place among those of a job, and the time; one that is left out cannot start.
    """

    now_s: float
    end_by_s: tuple[tuple[int, float], ...]

    def allow(self, run_times: Sequence[float]) -> bool:
        """Whether an option is done in time; run_times: in seconds, of each. As reservations judge, to the last bit."""
        return any(self.now_s + run_times[at] <= end_s for at, end_s in self.end_by_s)


NONE_CAN: Final = Limits(0.0, ())


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
        by_asks = {asks: Alike(Chunks.of(jobs)) for asks, jobs in lines.items()}
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
        line = self.lines.get(contender.asks) or Alike(Chunks.of(()))
        lines = {**self.lines, contender.asks: line.put(contender, self._key)}
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
            lines[contender.asks] = line.without(contender, self._place(line.jobs, contender.job))
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
    """Waiting jobs in queue order, for one pass, until a line is told that it has no more turns, or fewer.

    lines: only those that ask for one of them; None for all.
    """

    def __init__(self, waiting: Waiting, lines: Iterable[str] | None = None) -> None:
        self._order, self._lines = waiting.order, waiting.lines
        self._heads: list[tuple[tuple[Any, ...], int, Contender, Iterator[Contender]]] = []
        for number, asks in enumerate(waiting.lines if lines is None else lines):
            following = iter(waiting.lines[asks].jobs)
            first = next(following)
            self._heads.append((self._order(first.job), number, first, following))
        heapq.heapify(self._heads)
        self._limits: dict[str, Limits] = {}

    def __iter__(self) -> Iterator[Contender]:
        while self._heads:
            _, number, contender, following = self._heads[0]
            yield contender
            after = self._next(contender.asks, following)
            if after is None:
                heapq.heappop(self._heads)
            else:
                heapq.heapreplace(self._heads, (self._order(after.job), number, after, following))

    def keep_to(self, limits: Limits) -> None:
        """Of those that ask for the same as the one that has its turn, only jobs can start any more in this pass of
        which an option is within its limit.
        """
        self._limits[self._heads[0][2].asks] = limits

    def close(self) -> None:
        """No job that asks for the same as the one that has its turn can start any more in this pass."""
        self.keep_to(NONE_CAN)

    def _next(self, asks: str, following: Iterator[Contender]) -> Contender | None:
        limits = self._limits.get(asks)
        if limits is None:
            return next(following, None)
        if not limits.end_by_s or not limits.allow(self._lines[asks].least_run_s):
            return None
        return next((each for each in following if limits.allow(each.run_times)), None)
