"""PyTorch's own allocator of CUDA memory in its default settings: what it keeps beyond the tensors.

By ``c10/cuda/CUDACachingAllocator.cpp``: the best block that is free, its rest split off, neighbours joined again; a
segment goes back to the driver only whole, and only when the card is full. A large block of which a small tensor took
a piece is lost for the next large tensor. Segments that grow (``expandable_segments``) are not what is played here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_ROUND: Final = 512
_MIB: Final = 2**20
_SMALL: Final = _MIB
_SMALL_SEGMENT: Final = 2 * _MIB
_MIDDLE: Final = 10 * _MIB
_MIDDLE_SEGMENT: Final = 20 * _MIB
_LARGE_STEP: Final = 2 * _MIB


class CardIsFull(Exception):
    """No free block is large enough, and the card has no room for another segment."""


@dataclass(eq=False, slots=True)
class Block:
    """A part of a segment, between its neighbours there."""

    num_bytes: int
    is_small: bool
    is_free: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass(slots=True)
class CachingAllocator:
    """Of a card with ``capacity_bytes`` for tensors. num_flushes: how often the card was full."""

    capacity_bytes: int
    reserved_bytes: int = 0
    most_reserved_bytes: int = 0
    used_bytes: int = 0
    most_used_bytes: int = 0
    num_flushes: int = 0
    _free: dict[Block, None] = field(default_factory=dict)

    def take(self, num_bytes: int) -> Block:
        """A block of at least ``num_bytes``. Raises CardIsFull."""
        size = max(_ROUND, -(-num_bytes // _ROUND) * _ROUND)
        fitting = [each for each in self._free if each.is_small == (size <= _SMALL) and each.num_bytes >= size]
        block = min(fitting, key=lambda each: each.num_bytes) if fitting else self._new_segment(size)
        self._free.pop(block, None)
        self._split(block, size)
        block.is_free = False
        self.used_bytes += block.num_bytes
        self.most_used_bytes = max(self.most_used_bytes, self.used_bytes)
        return block

    def give(self, block: Block) -> None:
        """Free ``block``, and join it with free neighbours."""
        self.used_bytes -= block.num_bytes
        block.is_free = True
        if block.after is not None and block.after.is_free:
            _join(block, self._taken_out(block.after))
        if block.before is not None and block.before.is_free:
            first = self._taken_out(block.before)
            _join(first, block)
            block = first
        self._free[block] = None

    def _taken_out(self, block: Block) -> Block:
        del self._free[block]
        return block

    def _new_segment(self, size: int) -> Block:
        needed = _segment_bytes(size)
        if self.reserved_bytes + needed > self.capacity_bytes:
            self._flush()
        if self.reserved_bytes + needed > self.capacity_bytes:
            raise CardIsFull(f"{size} bytes asked, {self.used_bytes} in use, {self.reserved_bytes} reserved")
        self.reserved_bytes += needed
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)
        return Block(needed, size <= _SMALL)

    def _flush(self) -> None:
        """Give whole segments back to the driver."""
        self.num_flushes += 1
        for each in [each for each in self._free if each.before is None and each.after is None]:
            self.reserved_bytes -= self._taken_out(each).num_bytes

    def _split(self, block: Block, size: int) -> None:
        rest = block.num_bytes - size
        if rest < _ROUND if block.is_small else rest <= _SMALL:
            return
        other = Block(rest, block.is_small, is_free=True, before=block, after=block.after)
        if block.after is not None:
            block.after.before = other
        block.num_bytes, block.after = size, other
        self._free[other] = None


def replayed(changes: Iterable[tuple[int, int]], capacity_bytes: int) -> CachingAllocator:
    """The allocator after ``changes``: (tensor, its bytes) where one is made, (tensor, 0) where it ends.

    Raises CardIsFull.
    """
    allocator, blocks = CachingAllocator(capacity_bytes), dict[int, Block]()
    for tensor, num_bytes in changes:
        if num_bytes:
            blocks[tensor] = allocator.take(num_bytes)
        else:
            allocator.give(blocks.pop(tensor))
    return allocator


def _segment_bytes(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _MIDDLE_SEGMENT if size < _MIDDLE else -(-size // _LARGE_STEP) * _LARGE_STEP


def _join(first: Block, second: Block) -> None:
    first.num_bytes += second.num_bytes
    first.after = second.after
    if second.after is not None:
        second.after.before = first
