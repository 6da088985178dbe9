"""A long sorted sequence that is never changed, of which changed copies cost little: it is kept in chunks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
Key = Callable[[T], Any]
Place = tuple[int, int]

_USUAL: Final = 256
_MOST: Final = 2 * _USUAL


@dataclass(frozen=True, slots=True, eq=False)
class Chunks(Generic[T]):
    """Items in ascending order of a key, which every call is given anew. No chunk is empty.

    Equal to any other with the same items, however they lie in chunks.
    """

    parts: tuple[tuple[T, ...], ...]
    size: int

    @staticmethod
    def of(items: Iterable[T]) -> Chunks[T]:
        """``items``, which are in order."""
        known = tuple(items)
        parts = tuple(known[first : first + _USUAL] for first in range(0, len(known), _USUAL))
        return Chunks(parts, len(known))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunks) and self.size == other.size and all(map(_same, self, other))

    __hash__ = None  # type: ignore[assignment]

    @property
    def first(self) -> T:
        return self.parts[0][0]

    def place(self, wanted: Any, key: Key[T]) -> Place:
        """Where the first item is whose key is not below ``wanted``, or would be."""
        part = max(0, bisect_right(self.parts, wanted, key=lambda items: key(items[0])) - 1)
        if not self.parts:
            return 0, 0
        inside = bisect_left(self.parts[part], wanted, key=key)
        return (part + 1, 0) if inside == len(self.parts[part]) and part + 1 < len(self.parts) else (part, inside)

    def at(self, place: Place) -> T | None:
        """The item at ``place``; None behind the last one."""
        part, inside = place
        if part < len(self.parts) and inside < len(self.parts[part]):
            return self.parts[part][inside]
        return None

    def put(self, item: T, key: Key[T]) -> Chunks[T]:
        """With ``item`` at its place, before those with the same key."""
        if not self.parts:
            return Chunks(((item,),), 1)
        part, inside = self.place(key(item), key)
        old = self.parts[part]
        new = (*old[:inside], item, *old[inside:])
        split = (new,) if len(new) <= _MOST else (new[:_USUAL], new[_USUAL:])
        return Chunks((*self.parts[:part], *split, *self.parts[part + 1 :]), self.size + 1)

    def without(self, place: Place) -> Chunks[T]:
        """Without the item at ``place``."""
        part, inside = place
        old = self.parts[part]
        rest = (*old[:inside], *old[inside + 1 :])
        kept = (rest,) if rest else ()
        return Chunks((*self.parts[:part], *kept, *self.parts[part + 1 :]), self.size - 1)


def _same(left: object, right: object) -> bool:
    return left == right
