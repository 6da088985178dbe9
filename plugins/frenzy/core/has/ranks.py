"""Jobs in the order they are served, with sums of all that come before any place; a changed copy costs little."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import itemgetter
from typing import Final, NamedTuple

from frenzy.core.has.claims import Claim

Key = tuple[int, float, str]

_USUAL: Final = 32
_MOST: Final = 2 * _USUAL


class Rank(NamedTuple):
    """A job's place: ascending by its first three fields, of which the last is its own.

    gpus: effective ones that it holds. claim: as of when the rank was made.
    """

    minus_priority: int
    due_s: float
    run_key: str
    weight: float
    gpus: float
    claim: Claim

    @property
    def key(self) -> Key:
        return (self.minus_priority, self.due_s, self.run_key)


def rank_of(claim: Claim, *, weight: float = 0.0, gpus: float = 0.0) -> Rank:
    """Where the job of ``claim`` stands in line."""
    return Rank(-claim.job.priority, claim.due_s, claim.run_key, weight, gpus, claim)


class Sums(NamedTuple):
    """Of some jobs: their weights, and the effective GPUs they hold."""

    weight: float
    gpus: float


class _Part(NamedTuple):
    """Some ranks in a row, never none; weights, gpus: the sums of all before each, and of all."""

    ranks: tuple[Rank, ...]
    weights: tuple[float, ...]
    gpus: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Ranks in ascending order, in parts. _first: that of each part. _before: the sums of all
    that come before each part, and of all; empty until they are asked for.

    Equal to any other with the same ranks, however they lie in parts.
    """

    parts: tuple[_Part, ...]
    size: int
    _first: tuple[Rank, ...]
    _before: list[tuple[float, ...]] = field(default_factory=list)

    @staticmethod
    def of(ranks: Iterable[Rank]) -> Ranks:
        """``ranks``, which are in order."""
        known = tuple(ranks)
        parts = tuple(_part(known[first : first + _USUAL]) for first in range(0, len(known), _USUAL))
        return Ranks(parts, len(known), tuple([part.ranks[0] for part in parts]))

    def __iter__(self) -> Iterator[Rank]:
        return chain.from_iterable(map(_ranks_of, self.parts))

    def __reversed__(self) -> Iterator[Rank]:
        return chain.from_iterable(reversed(part.ranks) for part in reversed(self.parts))

    def __len__(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranks) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def sums(self) -> Sums:
        """Of all."""
        weights, gpus = self._sums_before()
        return Sums(weights[-1], gpus[-1])

    @property
    def last(self) -> Rank | None:
        return self.parts[-1].ranks[-1] if self.parts else None

    def nth(self, number: int) -> Rank:
        """The one at place ``number``, counted from 0. Raises IndexError behind the last."""
        for part in self.parts:
            if number < len(part.ranks):
                return part.ranks[number]
            number -= len(part.ranks)
        raise IndexError(number)

    def ahead_of(self, key: Key) -> Sums:
        """Of those that come before ``key``."""
        if not self.parts:
            return Sums(0.0, 0.0)
        at = self._part_of(key)
        part = self.parts[at]
        inside = bisect_left(part.ranks, key)
        weights, gpus = self._sums_before()
        return Sums(weights[at] + part.weights[inside], gpus[at] + part.gpus[inside])

    def put(self, rank: Rank) -> Ranks:
        """With ``rank`` at its place."""
        if not self.parts:
            return Ranks.of((rank,))
        at = self._part_of(rank)
        old = self.parts[at].ranks
        inside = bisect_left(old, rank)
        new = (*old[:inside], rank, *old[inside:])
        split = (_part(new),) if len(new) <= _MOST else (_part(new[:_USUAL]), _part(new[_USUAL:]))
        return self._with(at, split, self.size + 1)

    def without(self, key: Key) -> Ranks:
        """Without the rank of ``key``. Raises KeyError if there is none."""
        at = self._part_of(key) if self.parts else 0
        old = self.parts[at].ranks if self.parts else ()
        inside = bisect_left(old, key)
        if inside == len(old) or old[inside].key != key:
            raise KeyError(key)
        rest = (*old[:inside], *old[inside + 1 :])
        kept = (_part(rest),) if rest else ()
        return self._with(at, kept, self.size - 1)

    def _with(self, at: int, new: tuple[_Part, ...], size: int) -> Ranks:
        """With parts ``new`` in place of the one at ``at``."""
        first = self._first
        return Ranks(
            (*self.parts[:at], *new, *self.parts[at + 1 :]),
            size,
            (*first[:at], *[part.ranks[0] for part in new], *first[at + 1 :]),
        )

    def _part_of(self, key: Key | Rank) -> int:
        # A key is less than the rank that it is of, and no other lies between them.
        at = bisect_right(self._first, key)
        if at < len(self._first) and self._first[at][:3] == key:
            return at
        return max(0, at - 1)

    def _sums_before(self) -> list[tuple[float, ...]]:
        if not self._before:
            weights, gpus = [part.weights[-1] for part in self.parts], [part.gpus[-1] for part in self.parts]
            self._before.extend((_cumulated(weights), _cumulated(gpus)))
        return self._before


_ranks_of = itemgetter(0)
_weight_of, _gpus_of = itemgetter(3), itemgetter(4)


def _part(ranks: tuple[Rank, ...]) -> _Part:
    return _Part(ranks, _cumulated(map(_weight_of, ranks)), _cumulated(map(_gpus_of, ranks)))


def _cumulated(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(values, initial=0.0))
