"""What a training step's points in time are computed from: buckets, reductions and sums of gradients.

Read from DeepSpeed's source (runtime/zero/stage_1_and_2.py, stage3.py, runtime/comm/coalesced_collectives.py); symbols
as in ``memory``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from frenzy.core.memory.activations import Activations
from frenzy.core.memory.model_inputs import Array, PlanGrid, Workload
from frenzy.core.memory.model_states import StateElements
from frenzy.core.memory.table import Term
from frenzy.core.values.job import Precision
from frenzy.core.values.zero_buckets import ZeroBuckets


@dataclass(frozen=True, kw_only=True)
class Step:
    """Everything the points in time are computed from."""

    workload: Workload
    grid: PlanGrid
    states: StateElements
    buckets: ZeroBuckets
    resident: tuple[Term, ...]
    frozen_bytes: Array
    activations: Activations

    @property
    def weight(self) -> int:
        return self.workload.weight_bytes

    @cached_property
    def num_buckets(self) -> Array:
        """Buckets of stages 1 and 2: one is reduced while the other one fills, where reductions overlap."""
        overlaps = (
            self.workload.overlap_comm & (self.grid.dp > 1) & (~self.grid.offload | self.workload.overlaps_offloaded)
        )
        return np.where(overlaps, 2.0, 1.0)

    @cached_property
    def reduces_early(self) -> NDArray[np.bool_]:
        """Plans whose gradients leave their own storage as they are made, into the bucket.

        All but stage 1 where reductions do not overlap, or where gradients of earlier micro-batches are kept.
        """
        first, alone = self.grid.zero_stage == 1, self.grid.accumulation == 1
        found: NDArray[np.bool_] = ~first | ((self.num_buckets > 1) & alone)
        return found

    @cached_property
    def fills(self) -> NDArray[np.bool_]:
        """Plans whose bucket is full before the layers have gone backward."""
        states, layers = self.states, self.workload.shape.num_layers
        found: NDArray[np.bool_] = states.head_gradient + layers * states.layer > self.buckets.reduce
        return found

    def flat_copy(self, elements: Array, *, of_many: bool = False) -> Array:
        """Bytes of the flat copy in which ``elements`` of a bucket are reduced.

        Stages 1 and 2 lay the parts of several ranks one behind the other; those of one rank lie so already
        (``allreduce_bucket``), unless they go into a sum in fp32, tensor by tensor. Any bucket may lie across the
        border of two ranks; of_many: only one that is larger than a rank's part does. Stage 3 always copies
        (``reduce_scatter_coalesced``). Autocast sends 16 bits, which is another copy.
        """
        several = (self.grid.dp > 1) & ((elements > self.states.partition) | np.full(len(self.grid), not of_many))
        copied = (self.grid.zero_stage == 3) | several | (self.separate & (self.grid.zero_stage == 2))
        size = self.weight + (2 if self.workload.precision is Precision.AUTOCAST_BF16 else 0)
        return np.asarray(np.where(copied, size * elements, 0.0), dtype=np.float64)

    def summed(self, elements: Array) -> Array:
        """Bytes of a rank's share of ``elements``, made fp32 to be added to the sum: a tensor at a time in stage 2."""
        share = np.minimum(elements, self.states.partition)
        one = self.gradient * np.minimum(share, self.states.largest_tensor)
        every = self.gradient * np.minimum(elements / self.grid.dp, self.states.partition)
        return self.by_stage(0.0, np.where(self.separate, one, 0.0), np.where(self.separate, every, 0.0))

    @cached_property
    def too_large(self) -> Array:
        """Bytes of gradients that have no room in a bucket, and that stage 1 keeps where they were made."""
        return self.by_stage(np.where(self.reduces_early, self.weight * self.states.oversized, 0.0), 0.0, 0.0)

    @cached_property
    def table(self) -> Array:
        """Elements of the input embedding, where it is trained."""
        return np.asarray(np.where(self.states.table_gradients > 0, self.states.table, 0.0), dtype=np.float64)

    @cached_property
    def in_last_bucket(self) -> Array:
        """Elements reduced last: all, or those there when the input embedding's gradient comes, the last one."""
        reduce, trained = float(self.buckets.reduce), self.states.trained
        before = np.minimum(reduce, trained - self.table)
        return np.asarray(np.where(trained <= reduce, trained, before), dtype=np.float64)

    @cached_property
    def reduced_before_table(self) -> Array:
        """Bytes of gradients reduced into the partition before that of the input embedding is made."""
        others = self.states.trained - self.table
        return np.asarray(np.where(others <= self.buckets.reduce, 0.0, self.partition_gradient), dtype=np.float64)

    @cached_property
    def bucket_bytes(self) -> Array:
        return bucket_bytes(self.workload, self.buckets) * self.num_buckets

    @cached_property
    def filling(self) -> Array:
        """Elements of the buckets that fill and are reduced in the backward pass of stages 1 and 2."""
        return self.buckets.reduce * self.num_buckets

    @cached_property
    def gradient(self) -> Array:
        """Bytes of an element of a sum of gradients."""
        return self.workload.gradient_bytes(self.grid)

    @cached_property
    def separate(self) -> NDArray[np.bool_]:
        """Plans whose gradients are summed in another format than they are made in."""
        found: NDArray[np.bool_] = self.gradient != self.weight
        return found

    @cached_property
    def partition_gradient(self) -> Array:
        """Bytes that a reduction leaves on the GPU: w*(whole tensors), nothing more than the sum's, nothing offloaded.

        While a tensor is offloaded its norm is taken in double precision, and one larger than the
        bucket is copied first (``async_inplace_copy_grad_to_fp32_buffer_from_gpu``).
        """
        states = self.states
        left = np.where(self.separate, 0.0, self.weight * states.overlapping)
        copied = np.where(states.largest_tensor > self.buckets.reduce, self.weight * states.largest_tensor, 0.0)
        passing = np.maximum(8.0 * np.minimum(states.largest_tensor, states.partition), copied)
        return np.asarray(np.where(self.grid.offload, passing, left), dtype=np.float64)

    @cached_property
    def whole_gradient(self) -> Array:
        """Bytes of stage 1's gradients in the format they are summed in; 0 where they are summed as made."""
        return self.by_stage(np.where(self.separate, self.gradient * self.states.trained, 0.0), 0.0, 0.0)

    @cached_property
    def gradients_before(self) -> Term:
        """Gradients of earlier micro-batches, at the start of the last one."""
        states, offload = self.states, self.grid.offload
        stage1 = np.where(self.separate, 0.0, self.weight * states.trained + self.bucket_bytes)
        stage2 = np.where(self.separate, self.gradient * states.partition, self.partition_gradient)
        held = self.by_stage(stage1, np.where(offload, 0.0, stage2), 0.0)
        return Term(
            "accumulated gradients",
            "stage 1: w*(T + B), or a*T; stage 2: w*(tensors in the partition), or a*S; none without accumulation",
            np.where(self.grid.accumulation > 1, held, 0.0) + self.whole_gradient,
        )

    def by_stage(self, first: Array | float, second: Array | float, third: Array | float) -> Array:
        """The value of each plan's ZeRO stage."""
        stage = self.grid.zero_stage
        return np.asarray(np.where(stage == 1, first, np.where(stage == 2, second, third)), dtype=np.float64)


def bucket_bytes(workload: Workload, buckets: ZeroBuckets) -> float:
    """The reduction buffers: one for each format gradients are sent in (autocast has two)."""
    formats = 2 if workload.precision is Precision.AUTOCAST_BF16 else 1
    return float(formats * workload.weight_bytes * buckets.reduce)
