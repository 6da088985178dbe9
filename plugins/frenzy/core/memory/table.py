"""What the memory model answers: points in time, their terms, and the peak over them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from frenzy.core.memory.card_overheads import larger_context_bytes, larger_workspace_bytes
from frenzy.core.memory.model_inputs import Array, Integers
from frenzy.core.values.resource_plan import HostTerm, MemoryPrediction, MemoryTerm


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


class HostTerms(NamedTuple):
    """Addends of host memory. of_rank: bytes of each rank. of_node: bytes once, however many ranks a node has."""

    of_rank: tuple[Term, ...]
    of_node: tuple[Term, ...]

    def num_bytes(self, num_plans: int, num_ranks: Integers | int) -> Integers:
        """Of a node with ``num_ranks`` of each plan."""
        return _whole(self.of_rank, num_plans) * num_ranks + _whole(self.of_node, num_plans)

    def of_plan(self, index: int) -> tuple[HostTerm, ...]:
        """The terms of plan ``index`` in whole bytes, largest first, without those that are 0."""
        named = [(each, True) for each in self.of_rank] + [(each, False) for each in self.of_node]
        found = [
            HostTerm(each.name, math.ceil(each.num_bytes[index]), each.equation, of_each_rank=of_each_rank)
            for each, of_each_rank in named
        ]
        return tuple(sorted((each for each in found if each.num_bytes), key=lambda term: -term.num_bytes))


def _whole(terms: tuple[Term, ...], num_plans: int) -> Integers:
    whole = np.zeros(num_plans, dtype=np.int64)
    for each in terms:
        whole += np.ceil(each.num_bytes).astype(np.int64)
    return whole


@dataclass(frozen=True)
class MemoryTable:
    """Predicted memory of every plan of a grid, in bytes on each GPU.

    host: what the node has in host memory. uncopied_bytes: what each rank saves without a copy there.
    beside_bytes: what the card needs beside tensors (context, communication); part of the requirement, not of the peak.
    expected_factor, bound_factor: what earlier runs taught (``residuals``): the peak is the model's times the first,
    the requirement at least the model's peak times the second. larger_workspaces: bytes of them that are tensors on
    this type of card, and which ``beside_bytes`` has for all types. larger_context: bytes that this type needs beyond
    ``beside_bytes``.
    """

    moments: tuple[Moment, ...]
    headroom_share: float
    headroom_bytes: int
    host: HostTerms = HostTerms((), ())  # noqa: RUF009  # a tuple
    uncopied_bytes: Array | None = None
    beside_bytes: Array | None = None
    expected_factor: Array | None = None
    bound_factor: Array | None = None
    larger_workspaces: int = 0
    larger_context: int = 0

    def on_card(self, compute_capability: str | None) -> MemoryTable:
        """The same plans on a card of that capability (``"9.0"``), whose workspaces and context may be larger."""
        workspaces, context = larger_workspace_bytes(compute_capability), larger_context_bytes(compute_capability)
        if (workspaces, context) == (self.larger_workspaces, self.larger_context):
            return self
        return replace(self, larger_workspaces=workspaces, larger_context=context)

    @cached_property
    def _totals(self) -> Array:
        return np.stack([each.total for each in self.moments])

    @cached_property
    def _highest(self) -> Array:
        highest: Array = self._totals.max(axis=0) + self.larger_workspaces
        return highest

    @cached_property
    def _moment_of_peak(self) -> Integers:
        which: Integers = self._totals.argmax(axis=0)
        return which

    @cached_property
    def peak_bytes(self) -> Integers:
        """Highest memory at any time, saving checkpoints apart (what the trainer measures)."""
        peak: Integers = np.rint(self._expected).astype(np.int64)
        return peak

    @cached_property
    def _expected(self) -> Array:
        return self._highest if self.expected_factor is None else self._highest * self.expected_factor

    @cached_property
    def required_bytes(self) -> Integers:
        """What the card must have: the peak, the headroom, and what lies beside tensors."""
        peak = self._expected - self.larger_workspaces
        required = peak + np.maximum(peak * self.headroom_share, self.headroom_bytes)
        if self.bound_factor is not None:
            required = np.maximum(required, self._highest * self.bound_factor)
        beside = 0.0 if self.beside_bytes is None else self.beside_bytes
        return np.asarray(np.ceil(required + beside + self.larger_context), dtype=np.int64)

    def host_bytes(self, ranks_per_node: Integers | int = 1) -> Integers:
        """Host memory of a node with so many of each plan's ranks."""
        return self.host.num_bytes(len(self.peak_bytes), ranks_per_node)

    def prediction(self, index: int, ranks_per_node: int = 1) -> MemoryPrediction:
        """Peak, requirement and breakdown of plan ``index``; its host memory for so many ranks on a node."""
        moment = self.moments[int(self._moment_of_peak[index])]
        peak, host = int(self.peak_bytes[index]), self.host.of_plan(index)
        return MemoryPrediction(
            peak_allocated_bytes=peak,
            required_bytes=int(self.required_bytes[index]),
            host_bytes=sum(each.bytes_of(ranks_per_node) for each in host),
            host_terms=host,
            at=moment.name,
            uncopied_bytes=0 if self.uncopied_bytes is None else math.ceil(self.uncopied_bytes[index]),
            terms=_whole_terms(self._explained(moment, index), index, peak),
            learned_factor=1.0 if self.expected_factor is None else float(self.expected_factor[index]),
        )

    def _explained(self, moment: Moment, index: int) -> tuple[Term, ...]:
        """The terms of ``moment``, what the card's type adds, and what was learned, if that changes plan ``index``."""
        terms = moment.terms
        if self.larger_workspaces:
            larger = np.full(len(self._highest), float(self.larger_workspaces))
            terms = (*terms, Term("larger cuBLAS workspaces", "from Hopper on: 32 MiB for each of two threads", larger))
        if self.expected_factor is None or self.expected_factor[index] == 1.0:
            return terms
        learned = self._highest * (self.expected_factor - 1.0)
        return (*terms, Term("learned from earlier runs", "median residual of the group", learned))


def _whole_terms(terms: tuple[Term, ...], index: int, total: int) -> tuple[MemoryTerm, ...]:
    """``terms`` in whole bytes, largest first, without those that are 0; they sum exactly to ``total``."""
    sizes = [round(float(each.num_bytes[index])) for each in terms]
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    sizes[order[0]] += total - sum(sizes)
    return tuple(
        MemoryTerm(name=terms[position].name, num_bytes=sizes[position], equation=terms[position].equation)
        for position in order
        if sizes[position]
    )
