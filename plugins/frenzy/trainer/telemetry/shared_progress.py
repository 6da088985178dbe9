"""A page of memory the launcher shares with its ranks: progress, requests, memory peaks.

One writer per cell, eight bytes each, so no lock is needed. The launcher samples a rank's data
memory into the cell of the rank's current step; the rank reads it and moves on to the other cell.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

_CELLS: Final = 16
_CELL_BYTES: Final = 8
_STOP: Final = 0
_PARITY: Final = 0
_PEAKS: Final = 1
_LAST_STEP: Final = 3
_CHECKPOINT_STEP: Final = 4
_LOSS: Final = 5
_TOTAL_STEPS: Final = 6
_RESUMED_STEP: Final = 7
_MEASURING: Final = 8


class SharedProgress:
    """Shared cells of one launcher and its ``num_ranks`` ranks; made before the fork."""

    def __init__(self, num_ranks: int) -> None:
        self._page = mmap.mmap(-1, (1 + num_ranks) * _CELLS * _CELL_BYTES)

    def request_stop(self) -> None:
        self._put(-1, _STOP, 1)

    @property
    def stop_requested(self) -> bool:
        return self._get(-1, _STOP) == 1

    # the launcher's side

    def offer_peak(self, rank: int, num_bytes: int) -> None:
        """Raise the peak of the rank's current step to ``num_bytes``."""
        cell = _PEAKS + (self._get(rank, _PARITY) & 1)
        if num_bytes > self._get(rank, cell):
            self._put(rank, cell, num_bytes)

    def is_measuring(self, rank: int) -> bool:
        return self._get(rank, _MEASURING) == 1

    def last_step(self, rank: int) -> int:
        return self._get(rank, _LAST_STEP)

    def total_steps(self, rank: int) -> int:
        return self._get(rank, _TOTAL_STEPS)

    def checkpoint_step(self, rank: int) -> int | None:
        return self._optional(rank, _CHECKPOINT_STEP)

    def resumed_step(self, rank: int) -> int | None:
        return self._optional(rank, _RESUMED_STEP)

    def loss(self, rank: int) -> float | None:
        if self.last_step(rank) == 0:
            return None
        (loss,) = struct.unpack_from("d", self._page, self._offset(rank, _LOSS))
        return float(loss)

    # the rank's side

    def take_peak(self, rank: int) -> int:
        """The sampled peak since the last call, in bytes; 0 when no sample fell in between."""
        parity = self._get(rank, _PARITY)
        self._put(rank, _PEAKS + ((parity + 1) & 1), 0)
        self._put(rank, _PARITY, parity + 1)
        return self._get(rank, _PEAKS + (parity & 1))

    def set_measuring(self, rank: int, measuring: bool) -> None:
        self._put(rank, _MEASURING, int(measuring))

    def set_plan(self, rank: int, *, total_steps: int, resumed_step: int | None) -> None:
        self._put(rank, _TOTAL_STEPS, total_steps)
        if resumed_step is not None:
            self._put(rank, _RESUMED_STEP, resumed_step + 1)
            self._put(rank, _CHECKPOINT_STEP, resumed_step + 1)
            self._put(rank, _LAST_STEP, resumed_step)

    def set_total(self, rank: int, total_steps: int) -> None:
        self._put(rank, _TOTAL_STEPS, total_steps)

    def set_progress(self, rank: int, *, step: int, loss: float) -> None:
        struct.pack_into("d", self._page, self._offset(rank, _LOSS), loss)
        self._put(rank, _LAST_STEP, step)

    def set_checkpoint(self, rank: int, step: int) -> None:
        self._put(rank, _CHECKPOINT_STEP, step + 1)

    def _optional(self, rank: int, cell: int) -> int | None:
        stored = self._get(rank, cell)
        return None if stored == 0 else stored - 1

    def _offset(self, rank: int, cell: int) -> int:
        return ((1 + rank) * _CELLS + cell) * _CELL_BYTES

    def _get(self, rank: int, cell: int) -> int:
        return int(struct.unpack_from("Q", self._page, self._offset(rank, cell))[0])

    def _put(self, rank: int, cell: int, value: int) -> None:
        struct.pack_into("Q", self._page, self._offset(rank, cell), value)
