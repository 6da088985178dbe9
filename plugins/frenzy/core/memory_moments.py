"""The points in time at which a training step's memory may peak.

What DeepSpeed holds at each was read from its source (runtime/zero/stage_1_and_2.py, stage3.py)
and checked against measured peaks. Symbols as in ``memory``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frenzy.core.job import Precision
from frenzy.core.memory_activations import Activations
from frenzy.core.memory_states import StateElements
from frenzy.core.memory_table import Moment, Term
from frenzy.core.memory_workload import Array, PlanGrid, Workload
from frenzy.core.zero_buckets import ZeroBuckets


@dataclass(frozen=True, kw_only=True)
class Step:
    """Everything the points in time are computed from."""

    workload: Workload
    grid: PlanGrid
    states: StateElements
    buckets: ZeroBuckets
    resident: tuple[Term, ...]
    activations: Activations

    @property
    def weight(self) -> int:
        return self.workload.weight_bytes

    @property
    def bucket_bytes(self) -> float:
        return bucket_bytes(self.workload, self.buckets)

    def by_stage(self, first: Array | float, second: Array | float, third: Array | float) -> Array:
        """The value of each plan's ZeRO stage."""
        stage = self.grid.zero_stage
        return np.asarray(np.where(stage == 1, first, np.where(stage == 2, second, third)), dtype=np.float64)


def bucket_bytes(workload: Workload, buckets: ZeroBuckets) -> float:
    """The reduction buffers: one for each format gradients are sent in (autocast has two)."""
    formats = 2 if workload.precision is Precision.AUTOCAST_BF16 else 1
    return float(formats * workload.weight_bytes * buckets.reduce)


def _gradients_before(step: Step) -> Term:
    """Gradients of earlier micro-batches, at the start of the last one."""
    states, weight = step.states, step.weight
    held = step.by_stage(weight * states.trained + step.bucket_bytes, weight * states.overlapping, 0.0)
    return Term(
        "accumulated gradients",
        "stage 1: w*(T + B); stage 2: w*(tensors in the partition); none without accumulation",
        np.where(step.grid.accumulation > 1, held, 0.0),
    )


def _gathered(step: Step, elements: Array) -> Term:
    """Stage 3's weights in use and those fetched ahead: at least one tensor, until the prefetch size is full."""
    several = (step.grid.zero_stage == 3) & (step.grid.dp > 1)
    ahead = np.maximum(step.buckets.prefetch, step.states.last_linear)
    return Term(
        "gathered weights",
        "stage 3, several ranks: w*(parameters in use and the next)",
        np.where(several, step.weight * (elements + ahead), 0.0),
    )


def _kept(step: Step, layers_done: Array | float = 0.0) -> tuple[Term, ...]:
    """Activations held when ``layers_done`` layers have gone backward."""
    activations = step.activations
    left = (step.workload.shape.num_layers - layers_done) * activations.one_layer
    return (
        Term("activations of the layers", "layers*t*(bytes a layer keeps)", left),
        Term("activations outside the layers", "t*(embedding, last norm, log-probabilities)", activations.outside),
        Term("weights in another format", "2 bytes for each linear weight under autocast", activations.copies),
    )


def in_loss(step: Step) -> Moment:
    """The loss goes backward: every activation is held, and the gradient of the logits is made."""
    return Moment(
        "loss",
        (
            *step.resident,
            _gradients_before(step),
            _gathered(step, step.states.head),
            *_kept(step),
            Term("gradient of the loss", "t*V*(logits' gradients)", step.activations.in_loss),
        ),
    )


def in_first_layer(step: Step) -> Moment:
    """The last layer goes backward: all layers' activations are held, the head's gradient is there."""
    states = step.states
    alone = step.grid.accumulation == 1
    stage1 = np.where(alone, states.head_gradient + step.buckets.reduce, 0.0)
    reduced = states.head_gradient > step.buckets.reduce
    stage2 = step.buckets.reduce + np.where(reduced, states.overlapping, states.head_gradient)
    gradients = step.by_stage(stage1, stage2, 0.0) + states.tied_gradient + states.last_linear
    return _in_layer("first backward layer", step, 0.0, step.weight * gradients)


def in_later_layer(step: Step) -> Moment:
    """The layer at whose backward pass stage 2 has filled a bucket and reduces into its partition's buffer.

    In stage 1 without accumulation: the layer that goes backward last, when all gradients are there.
    """
    states, layers = step.states, step.workload.shape.num_layers
    alone = step.grid.accumulation == 1
    filled = np.maximum(step.buckets.reduce - states.head_gradient, 0.0) / np.maximum(states.layer, 1.0)
    later = step.by_stage(layers - 1.0, np.minimum(np.ceil(filled), layers - 1.0), 0.0)
    stage1 = np.where(alone, states.trained - states.table + step.buckets.reduce, 0.0)
    stage2 = step.buckets.reduce + states.overlapping
    gradients = step.by_stage(stage1, stage2, 0.0) + states.tied_gradient + states.last_linear
    return _in_layer("later backward layer", step, later, step.weight * gradients)


def _in_layer(name: str, step: Step, layers_done: Array | float, gradients: Array) -> Moment:
    return Moment(
        name,
        (
            *step.resident,
            _gradients_before(step),
            _gathered(step, step.states.last_linear),
            *_kept(step, layers_done),
            Term("backward pass of one layer", "t*(gradients, and what is recomputed)", step.activations.in_backward),
            Term("new gradients", "w*(head, bucket, partition, one linear map)", gradients),
        ),
    )


def at_backward_end(step: Step) -> Moment:
    """The embedding's gradient is made: with tied weights two of them and their sum are held."""
    states, grid = step.states, step.grid
    alone = grid.accumulation == 1
    stage1 = np.where(alone, states.trained - states.table + step.buckets.reduce, 0.0)
    by_stage = step.by_stage(stage1, step.buckets.reduce + states.overlapping, 0.0)
    scattered = np.where(states.table_gradients > 0, (2 + 1 / grid.dp) * states.table, 0.0)
    table = step.by_stage(states.table_gradients, states.table_gradients, np.maximum(states.table_gradients, scattered))
    return Moment(
        "end of the backward pass",
        (
            *step.resident,
            _gradients_before(step),
            _gathered(step, states.table),
            Term("new gradients", "w*(T or B + partition)", step.weight * by_stage),
            Term("embedding gradient", "w*V*h, three times when tied", step.weight * table),
        ),
    )


def in_reduction(step: Step) -> Moment:
    """Stage 1 reduces all gradients after the last backward pass, into a copy of its partition.

    The copy is made when the first tensor is reduced: one that fits the bucket has left its own
    storage by then, a larger one has not.
    """
    states = step.states
    moved = np.where(states.first_tensor > step.buckets.reduce, 0.0, np.minimum(step.buckets.reduce, states.trained))
    held = step.weight * (states.trained - moved + states.overlapping) + step.bucket_bytes
    return Moment(
        "gradient reduction",
        (
            *step.resident,
            Term(
                "gradients and their reduction",
                "stage 1: w*(T + B + tensors in the partition)",
                step.by_stage(held, 0.0, 0.0),
            ),
        ),
    )


def in_optimizer_step(step: Step) -> Moment:
    """The gradient's norm, its fp32 copy, and torch's optimizer over one flat partition."""
    states, weight = step.states, step.weight
    copies = weight * states.partition + (0.0 if weight == 4 else 4.0 * states.partition)
    norm = 8.0 * np.minimum(states.largest_tensor, states.partition)
    before = weight * states.overlapping + np.maximum(copies, norm)
    updating = (12.0 if step.workload.optimizer == "adamw" else 4.0) * states.partition
    return Moment(
        "optimizer step",
        (
            *step.resident,
            Term(
                "gradient in fp32 and temporaries",
                "AdamW: 4*S gradient, 8*S root and quotient; or the norm's double of the largest tensor",
                step.by_stage(np.maximum(before, updating), np.maximum(before, updating), updating),
            ),
        ),
    )


def at_start(step: Step) -> Moment:
    """Before the first step: the model in fp32 on every rank, then its flat copy and the master weights."""
    states, weight = step.states, step.weight
    made = 4.0 * (states.trained + states.frozen)
    flat = weight * (2.0 * states.trained + states.frozen)
    masters = weight * (states.trained + states.frozen) + 8.0 * states.partition
    divided = made + weight * states.partition
    return Moment(
        "start",
        (
            Term(
                "model, flat copy, master weights",
                "max(4*N, 2*w*T, w*T + 8*S)",
                step.by_stage(
                    np.maximum(made, np.maximum(flat, masters)), np.maximum(made, np.maximum(flat, masters)), divided
                ),
            ),
            step.resident[-1],
        ),
    )
