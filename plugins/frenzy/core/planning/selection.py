"""Of all plans on one GPU type: those worth listing, and the refused ones that explain the rest.

A plan is worth listing when no other one is as good in everything that may decide for it: GPUs,
tensor-parallel group, time (hence cost), host memory; and, once an attempt ran short of memory, how
much of the card it leaves free. On the width of such an attempt all plans stay: the memory-pressure
ladder climbs among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.memory.closed_form import Array, Integers, MemoryTable, PlanGrid
from frenzy.core.memory.host_offload import ranks_per_node
from frenzy.core.planning.candidates import TypeFacts
from frenzy.core.values.resource_plan import MemoryPrediction, PlanShape
from frenzy.core.values.units import counted

Mask = NDArray[np.bool_]

_MOST_TP: Final = 2**20
# Room that differs by less than this share of the card does not tell plans apart: the ladder asks for about as much.
_ROOM_SHARES: Final = 32


@dataclass(frozen=True)
class PredictedGrid:
    """Plans and their memory, the same for all GPU types of a kind.

    num_gpus: of each plan. widths: the distinct ones, ascending; place: of each plan among them.
    by_memory: the plans from the one that needs most memory to the one that needs least.
    launchable: those that the trainer can run on some card of the kind.
    known: the predictions already made, by row.
    """

    grid: PlanGrid
    memory: MemoryTable
    num_gpus: Integers
    widths: Integers
    place: Integers
    by_memory: Integers
    launchable: Mask
    known: dict[int, MemoryPrediction] = field(default_factory=dict)

    @classmethod
    def of(cls, grid: PlanGrid, memory: MemoryTable, launchable: Mask) -> PredictedGrid:
        num_gpus = grid.dp * grid.tp
        widths, place = np.unique(num_gpus, return_inverse=True)
        by_memory = np.argsort(-memory.required_bytes, kind="stable")
        return cls(grid, memory, num_gpus, widths, place, by_memory, launchable)

    def prediction(self, row: int, host_bytes: int) -> MemoryPrediction:
        """Of the plan at ``row``, which takes ``host_bytes`` on each node of a type."""
        if row not in self.known:
            self.known[row] = self.memory.prediction(row)
        found = self.known[row]
        return found if found.host_bytes == host_bytes else replace(found, host_bytes=host_bytes)

    def leanest(self, among: Mask, by_need: Integers | None = None) -> Integers:
        """Of the plans ``among``, for each width the last in ``by_need`` (default: ``by_memory``); narrowest first."""
        order = self.by_memory if by_need is None else by_need
        rows = order[among[order]]
        found = np.full(len(self.widths), -1, dtype=np.int64)
        found[self.place[rows]] = rows  # the last one written stays
        leanest: Integers = found[found >= 0]
        return leanest

    def having(self, among: Mask) -> Mask:
        """Plans on whose width one of those ``among`` is."""
        found = np.zeros(len(self.widths), dtype=np.bool_)
        found[self.place[among]] = True
        having: Mask = found[self.place]
        return having


@dataclass(frozen=True)
class PlanSelection:
    """The plans of a grid on one GPU type; arrays have one entry for each plan."""

    facts: TypeFacts
    predicted: PredictedGrid

    @property
    def grid(self) -> PlanGrid:
        return self.predicted.grid

    @property
    def memory(self) -> MemoryTable:
        return self.predicted.memory

    @property
    def num_gpus(self) -> Integers:
        return self.predicted.num_gpus

    @cached_property
    def host_bytes(self) -> Integers:
        """Host memory on each node."""
        return self.memory.host_bytes(ranks_per_node(self.grid, self.facts.gpus_per_node))

    @cached_property
    def fits_gpu(self) -> Mask:
        needed = self.memory.required_bytes + self.facts.request.extra_bytes_per_gpu
        return np.asarray(needed <= self.facts.gpu.memory_bytes, dtype=np.bool_)

    @cached_property
    def fits_host(self) -> Mask:
        return np.asarray(self.host_bytes <= self.facts.host_bytes_per_node, dtype=np.bool_)

    @cached_property
    def step_s(self) -> Array:
        """Seconds of a step; not a number where memory or the cluster's size rule the plan out already."""
        step_s = np.full(len(self.grid), np.nan)
        fitting = np.flatnonzero(self.fits_gpu & self.fits_host & (self.num_gpus <= self.facts.num_gpus))
        step_s[fitting] = self.facts.step_times_s(self.grid.take(fitting))
        return step_s

    @cached_property
    def runnable(self) -> Mask:
        """Plans that could run: what ``TypeFacts.refusal`` and memory allow."""
        within = self.fits_gpu & self.fits_host & self.facts.allowed(self.grid, self.predicted.launchable, self.step_s)
        return np.asarray(within & ~self.excluded, dtype=np.bool_)

    @cached_property
    def excluded(self) -> Mask:
        """Plans that failed in an earlier attempt of the run."""
        return is_one_of(self.grid, self._failed)

    @property
    def _failed(self) -> tuple[PlanShape, ...]:
        shapes = self.facts.request.excluded_shapes
        return tuple(each for each in shapes if each.gpu_type == self.facts.gpu.name)

    @cached_property
    def _on_failed_width(self) -> Mask:
        widths = {(each.num_gpus, each.tp) for each in self._failed}
        failed = np.zeros(len(self.grid), dtype=np.bool_)
        for num_gpus, tp in widths:
            failed |= (self.num_gpus == num_gpus) & (self.grid.tp == tp)
        return failed

    @cached_property
    def spare(self) -> Mask:
        """Plans that offload although one that does not runs on as many GPUs: the last to be chosen."""
        return np.asarray(self.grid.offload & self.predicted.having(self.runnable & ~self.grid.offload), dtype=np.bool_)

    def listed(self) -> Integers:
        """Feasible plans worth listing; all of them where every plan is asked for."""
        if self.facts.request.every_plan:
            return np.flatnonzero(self.runnable & ~self.spare)
        failed = self._on_failed_width
        rows = np.flatnonzero(self.runnable & (~self.spare | failed))
        return rows[self._undominated(rows) | failed[rows]]

    @cached_property
    def _room_taken(self) -> Integers:
        """Memory as far as it decides between plans that fit: not at all before the first shortage."""
        if not self.facts.request.excluded_shapes:
            return np.zeros(len(self.grid), dtype=np.int64)
        shares: Integers = -(-self.memory.required_bytes * _ROOM_SHARES // self.facts.gpu.memory_bytes)
        return shares

    def _undominated(self, rows: Integers) -> Mask:
        """Which of ``rows`` no other one of them dominates; of equal ones the first stays."""
        required, step_s, tp = self._room_taken[rows], self.step_s[rows], self.grid.tp[rows]
        width, host, offload = self.num_gpus[rows], self.host_bytes[rows], self.grid.offload[rows]
        # among those of one width that do not offload time and memory decide alone, and most plans are those
        alike = 2 * (width * _MOST_TP + tp) + offload
        # of equally fast ones the plainer comes first: no recomputation, the lower stage, then less memory
        plainness = (self.memory.required_bytes[rows], self.grid.zero_stage[rows], self.grid.checkpointing[rows])
        order = np.lexsort((*plainness, required, step_s, alike))
        group = np.cumsum(np.diff(alike[order], prepend=-1) != 0)
        front = order[_falls_below_all_before(required[order], group) | offload[order]]
        costs = np.stack([width, tp, step_s, required, host])[:, front]
        no_worse = np.ones((len(front), len(front)), dtype=np.bool_)
        for cost in costs:
            no_worse &= cost[:, None] <= cost[None, :]
        no_worse &= tp[front][None, :] % tp[front][:, None] == 0
        twins = no_worse & no_worse.T
        beaten = (no_worse & ~twins) | np.triu(twins, k=1)
        kept = np.zeros(len(rows), dtype=np.bool_)
        kept[front[~beaten.any(axis=0)]] = True
        return kept

    def explaining(self) -> Integers:
        """Refused plans: for each number of GPUs and each kind of refusal the one nearest to running.

        Beyond the cluster only the narrowest that would fit, and only where none runs inside it. Where every plan
        is asked for, all that are refused inside it.
        """
        inside = self.num_gpus <= self.facts.num_gpus
        if self.facts.request.every_plan:
            rows = np.flatnonzero(~self.runnable & inside & ~self.spare)
            return rows[np.argsort(self.num_gpus[rows], kind="stable")]
        refused = ~self.runnable & ~self.spare & ~self.excluded
        fits = self.fits_gpu & self.fits_host
        short_of_host = refused & inside & self.fits_gpu & ~self.fits_host
        found = [
            self.predicted.leanest(refused & inside & fits),
            self.predicted.leanest(refused & inside & ~self.fits_gpu & (self.fits_host | ~self.grid.offload)),
            self.predicted.leanest(short_of_host, np.argsort(-self.host_bytes, kind="stable")),
            np.flatnonzero(self.excluded),
        ]
        if not self.runnable.any():
            found.append(self.predicted.leanest(refused & ~inside & fits)[:1])
        rows = np.concatenate(found)
        return rows[np.argsort(self.num_gpus[rows], kind="stable")]


def is_one_of(grid: PlanGrid, shapes: Sequence[PlanShape]) -> Mask:
    """Plans that have one of these shapes, whatever its GPU type."""
    found = np.zeros(len(grid), dtype=np.bool_)
    for shape in shapes:
        found |= _is_shape(grid, shape)
    return found


def _is_shape(grid: PlanGrid, shape: PlanShape) -> Mask:
    same = (grid.dp * grid.tp == shape.num_gpus) & (grid.tp == shape.tp) & (grid.zero_stage == shape.zero_stage)
    same &= (grid.micro_batch == shape.micro_batch_size) & (grid.offload == shape.offload_optimizer)
    return np.asarray(same & (grid.checkpointing == shape.activation_checkpointing), dtype=np.bool_)


def _falls_below_all_before(values: Integers, group: Integers) -> Mask:
    """Which of ``values`` are less than all before them in their group; groups are contiguous, numbered upwards."""
    if len(values) == 0:
        return np.zeros(0, dtype=np.bool_)
    lowered = values - group * (int(values.max()) + 1)
    lowest = np.minimum.accumulate(lowered)
    return np.diff(lowest, prepend=lowest[0] + 1) < 0


def fitting(num_plans: int) -> str:
    """``"1 plan fits"``, ``"8 plans fit"``."""
    return f"{counted(num_plans, 'plan')} {'fits' if num_plans == 1 else 'fit'}"
