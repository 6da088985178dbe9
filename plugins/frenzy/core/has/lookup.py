"""A mapping from text that is never changed, of which changed copies cost little, however much is in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from zlib import crc32

T = TypeVar("T")

_NUM_SHARDS: Final = 256


@dataclass(frozen=True, slots=True)
class Lookup(Generic[T]):
    """Values by key, spread over shards by the key's checksum, which is the same in every process."""

    shards: tuple[dict[str, T], ...]

    @staticmethod
    def of(items: Iterable[tuple[str, T]]) -> Lookup[T]:
        shards: tuple[dict[str, T], ...] = tuple({} for _ in range(_NUM_SHARDS))
        for key, value in items:
            shards[_shard_of(key)][key] = value
        return Lookup(shards)

    def get(self, key: str) -> T | None:
        """The value of ``key``; None if there is none."""
        return self.shards[_shard_of(key)].get(key)

    def put(self, key: str, value: T) -> Lookup[T]:
        """With ``value`` for ``key``, whatever was there."""
        at = _shard_of(key)
        return Lookup((*self.shards[:at], {**self.shards[at], key: value}, *self.shards[at + 1 :]))

    def without(self, key: str) -> Lookup[T]:
        """Without ``key``, if it is there."""
        at = _shard_of(key)
        if key not in self.shards[at]:
            return self
        rest = {each: value for each, value in self.shards[at].items() if each != key}
        return Lookup((*self.shards[:at], rest, *self.shards[at + 1 :]))


def _shard_of(key: str) -> int:
    return crc32(key.encode()) % _NUM_SHARDS
