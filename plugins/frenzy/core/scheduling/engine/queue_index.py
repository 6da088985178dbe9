"""The queue as an immutable index: in its order, and in lines of jobs that ask for the same.

Where the first job of a line cannot start for want of GPUs, none of the line can; where it cannot for what is
kept for others, only those can that are done in time: a pass over a long queue needs to look at few jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from frenzy.core.scheduling.engine.options import Contender
from frenzy.core.values.scheduling_facts import QueuedJob

Order = Callable[[QueuedJob], tuple[Any, ...]]


@dataclass(frozen=True)
class Alike:
    """Jobs that ask for the same, in queue order. With the same option one takes longer than another."""

    jobs: tuple[Contender, ...]

    @cached_property
    def least_run_s(self) -> tuple[float, ...]:
        """Of each option the seconds that it takes the job that takes least."""
        return tuple(map(min, zip(*[each.run_times for each in self.jobs], strict=True)))


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


@dataclass(frozen=True, eq=False)
class Waiting:
    """All waiting jobs, in queue order; what else is known of them is found when it is asked for."""

    in_order: tuple[Contender, ...]
    order: Order

    @staticmethod
    def of(contenders: Iterable[Contender], order: Order) -> Waiting:
        return Waiting(tuple(sorted(contenders, key=lambda each: order(each.job))), order)

    def __iter__(self) -> Iterator[Contender]:
        return iter(self.in_order)

    def __len__(self) -> int:
        return len(self.in_order)

    @cached_property
    def lines(self) -> Mapping[str, Alike]:
        """The jobs that ask for the same, by what they ask for."""
        lines: dict[str, list[Contender]] = {}
        for each in self.in_order:
            lines.setdefault(each.asks, []).append(each)
        return {asks: Alike(tuple(jobs)) for asks, jobs in lines.items()}

    @cached_property
    def pressed(self) -> tuple[Contender, ...]:
        """Those whose memory outgrew their GPUs."""
        return tuple([each for each in self.in_order if each.job.pressed])

    @cached_property
    def timed(self) -> tuple[Contender, ...]:
        """Those that have a deadline."""
        return tuple([each for each in self.in_order if each.job.deadline_s is not None])

    @cached_property
    def _by_key(self) -> Mapping[str, Contender]:
        return {each.job.run_key: each for each in self.in_order}

    def front(self, num_jobs: int) -> Waiting:
        """The first ``num_jobs`` of the queue."""
        return Waiting(self.in_order[:num_jobs], self.order)

    def put(self, contender: Contender) -> Waiting:
        """With ``contender`` at its place."""
        return Waiting.of((*self.in_order, contender), self.order)

    def without(self, run_keys: Collection[str]) -> Waiting:
        """Without the jobs of ``run_keys``, those that wait."""
        return Waiting(tuple([each for each in self.in_order if each.job.run_key not in run_keys]), self.order)

    def find(self, run_key: str) -> Contender | None:
        """The waiting job of that key; None if it does not wait."""
        return self._by_key.get(run_key)


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
