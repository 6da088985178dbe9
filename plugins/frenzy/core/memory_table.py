"""What the memory model answers: points in time, their terms, and the peak over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from frenzy.core.memory_workload import Array, Integers
from frenzy.core.plan import MemoryPrediction, MemoryTerm


@dataclass(frozen=True, slots=True)
class Term:
    """One addend at one point in time: bytes for each plan."""

    name: str
    equation: str
    num_bytes: Array


@dataclass(frozen=True, slots=True)
class Moment:
    """One point in time and its terms."""

    name: str
    terms: tuple[Term, ...]

    @property
    def total(self) -> Array:
        total: Array = np.sum([each.num_bytes for each in self.terms], axis=0)
        return total


@dataclass(frozen=True)
class MemoryTable:
    """Predicted memory of every plan of a grid, in bytes on each GPU."""

    moments: tuple[Moment, ...]
    headroom_share: float
    headroom_bytes: int

    @cached_property
    def _totals(self) -> Array:
        return np.stack([each.total for each in self.moments])

    @cached_property
    def peak_bytes(self) -> Integers:
        """Highest memory at any time, saving checkpoints apart (what the trainer measures)."""
        peak: Integers = np.rint(self._totals.max(axis=0)).astype(np.int64)
        return peak

    @cached_property
    def required_bytes(self) -> Integers:
        """What the card must have: the peak and the headroom."""
        highest = self._totals.max(axis=0)
        headroom = np.maximum(highest * self.headroom_share, self.headroom_bytes)
        required: Integers = np.ceil(highest + headroom).astype(np.int64)
        return required

    def prediction(self, index: int) -> MemoryPrediction:
        """Peak, requirement and breakdown of plan ``index``."""
        moment = self.moments[int(self._totals[:, index].argmax())]
        peak = int(self.peak_bytes[index])
        return MemoryPrediction(
            peak_allocated_bytes=peak,
            required_bytes=int(self.required_bytes[index]),
            host_bytes=0,
            at=moment.name,
            terms=_whole_terms(moment, index, peak),
        )


def _whole_terms(moment: Moment, index: int, peak: int) -> tuple[MemoryTerm, ...]:
    """The terms in whole bytes, largest first, summing exactly to ``peak``."""
    sizes = [round(float(each.num_bytes[index])) for each in moment.terms]
    order = sorted(range(len(sizes)), key=lambda position: -sizes[position])
    sizes[order[0]] += peak - sum(sizes)
    kept = [position for position in order if sizes[position] != 0]
    terms = moment.terms
    return tuple(
        MemoryTerm(name=terms[position].name, num_bytes=sizes[position], equation=terms[position].equation)
        for position in kept
    )
