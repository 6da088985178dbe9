"""The closed form of a training step's memory, over many plans at once.

The peak is the maximum over points in time; at each point it is a sum of terms, each a NumPy
array with one entry for each plan. Symbols: N parameters on a rank, T of them trained, P data-
parallel ranks, S = T/P elements of a rank's partition, w bytes of a weight, B elements of the
reduction bucket, t = micro-batch x sequence length tokens, L layers.

What DeepSpeed holds was read from its source (runtime/zero/stage_1_and_2.py and stage3.py) and
checked against measured peaks; ``docs/memory.md`` has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.hardware import DeviceKind
from frenzy.core.job import Precision
from frenzy.core.memory_calibration import ActivationCoefficients, Calibration
from frenzy.core.memory_states import StateElements, StateRequest, state_elements
from frenzy.core.model_parameters import ModelShape
from frenzy.core.plan import MemoryPrediction, MemoryTerm
from frenzy.core.trainable import TrainedPart
from frenzy.core.zero_buckets import ZeroBuckets, zero_buckets

__all__ = ["Calibration", "MemoryTable", "PlanGrid", "Workload", "predict_memory"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_WEIGHT_BYTES: Final = {Precision.FP32: 4, Precision.AUTOCAST_BF16: 4, Precision.BF16: 2, Precision.FP16: 2}
_OPTIMIZER_STATES: Final = {"adamw": 2, "sgd": 1}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained, whatever the plan: everything the user fixed."""

    shape: ModelShape
    trained: TrainedPart
    precision: Precision
    optimizer: str
    sequence_length: int
    kind: DeviceKind
    bucket_elements: int

    @property
    def weight_bytes(self) -> int:
        return _WEIGHT_BYTES[self.precision]


@dataclass(frozen=True, kw_only=True)
class PlanGrid:
    """Plans as columns; all arrays have one entry for each plan."""

    dp: Integers
    tp: Integers
    zero_stage: Integers
    micro_batch: Integers
    accumulation: Integers
    checkpointing: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.dp)


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


def predict_memory(workload: Workload, grid: PlanGrid, calibration: Calibration) -> MemoryTable | None:
    """Memory of every plan in ``grid``; None when no coefficients cover this family and precision."""
    activations = _Activations.of(workload, grid, calibration)
    if activations is None:
        return None
    buckets = zero_buckets(workload.bucket_elements)
    states = state_elements(StateRequest(workload.shape, workload.trained, buckets.persistent), grid.dp, grid.tp)
    step = _Step(
        workload=workload,
        grid=grid,
        states=states,
        buckets=buckets,
        resident=_resident_terms(workload, grid, states, calibration),
        activations=activations,
    )
    moments = (
        _at_start(step),
        _in_loss(step),
        _in_first_layer(step),
        _in_later_layer(step),
        _at_backward_end(step),
        _in_reduction(step),
        _in_optimizer_step(step),
    )
    return MemoryTable(moments, calibration.headroom_share, calibration.headroom_bytes)


def _resident_terms(
    workload: Workload, grid: PlanGrid, states: StateElements, calibration: Calibration
) -> tuple[Term, ...]:
    """What is there all the time from the first optimizer step on."""
    weight, stage3 = workload.weight_bytes, grid.zero_stage == 3
    buckets = zero_buckets(workload.bucket_elements)
    frozen = np.where(stage3, states.frozen / grid.dp, states.frozen)
    trained = np.where(stage3, states.partition, states.trained)
    persistent = np.where(stage3 & (grid.dp > 1), states.persistent, 0)
    num_states = _OPTIMIZER_STATES[workload.optimizer]
    num_tensors = workload.shape.num_tensors
    outside = [calibration.outside_bytes(workload.kind, stage, num_tensors) for stage in grid.zero_stage.tolist()]
    reserved = weight * states.partition + _bucket_bytes(workload, buckets)
    return (
        Term("weights", "w*N, or w*N/P in stage 3", weight * (trained + frozen + persistent)),
        Term("fp32 master weights", "4*S", 4.0 * states.partition),
        Term("optimizer states", "4*S for each state (Adam: 2)", 4.0 * num_states * states.partition),
        Term("gradient partition and bucket", "stage 3: w*S + w*B", np.where(stage3, reserved, 0.0)),
        Term("outside tensors", "measured: constant + part of each tensor", np.asarray(outside, dtype=np.float64)),
    )


def _bucket_bytes(workload: Workload, buckets: ZeroBuckets) -> float:
    """The reduction buffers: one for each format gradients are sent in (autocast has two)."""
    formats = 2 if workload.precision is Precision.AUTOCAST_BF16 else 1
    return float(formats * workload.weight_bytes * buckets.reduce)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Everything the points in time are computed from."""

    workload: Workload
    grid: PlanGrid
    states: StateElements
    buckets: ZeroBuckets
    resident: tuple[Term, ...]
    activations: _Activations

    @property
    def weight(self) -> int:
        return self.workload.weight_bytes

    @property
    def bucket_bytes(self) -> float:
        return _bucket_bytes(self.workload, self.buckets)

    def by_stage(self, first: Array | float, second: Array | float, third: Array | float) -> Array:
        """The value of each plan's ZeRO stage."""
        stage = self.grid.zero_stage
        return np.asarray(np.where(stage == 1, first, np.where(stage == 2, second, third)), dtype=np.float64)


@dataclass(frozen=True)
class _Activations:
    """Bytes for one micro-batch of each plan.

    one_layer: kept by each layer. outside: by embedding, last norm and loss.
    in_loss, in_backward: the highest extra. copies: weights of all layers in another format.
    """

    one_layer: Array
    outside: Array
    in_loss: Array
    in_backward: Array
    copies: Array

    @classmethod
    def of(cls, workload: Workload, grid: PlanGrid, calibration: Calibration) -> _Activations | None:
        """None when a needed set of coefficients is missing."""
        parts = []
        for checkpointing in (False, True):
            mask = grid.checkpointing == checkpointing
            found = calibration.activation(workload.shape, workload.precision, checkpointing=checkpointing)
            if found is None and mask.any():
                return None
            parts.append((mask, np.zeros((5, len(grid))) if found is None else _activation_rows(workload, grid, found)))
        rows = np.where(parts[0][0], parts[0][1], parts[1][1])
        one_layer, outside, in_loss, in_backward, copies = rows
        return cls(one_layer, outside, in_loss, in_backward, copies)


def _activation_rows(workload: Workload, grid: PlanGrid, coefficients: ActivationCoefficients) -> Array:
    """(one layer, outside, in the loss, in the backward pass, weight copies) of every plan."""
    shape, length = workload.shape, workload.sequence_length
    by_tp = {}
    for tp in np.unique(grid.tp).tolist():
        linear = sum(each.elements_per_rank(tp) for each in shape.layer if each.is_linear)
        by_tp[tp] = (
            coefficients.layer.per_token(shape, length, tp),
            coefficients.outside.per_token(shape, length, tp),
            max(each.per_token(shape, length, tp) for each in coefficients.in_loss),
            max(each.per_token(shape, length, tp) for each in coefficients.in_backward),
            coefficients.weight_copies * (linear * shape.num_layers + shape.vocab_size * shape.hidden_size),
        )
    rows = np.asarray([by_tp[tp] for tp in grid.tp.tolist()], dtype=np.float64).reshape(len(grid), 5).T
    rows[:4] *= grid.micro_batch * length
    return rows


def _gradients_before(step: _Step) -> Term:
    """Gradients of earlier micro-batches, at the start of the last one."""
    states, weight = step.states, step.weight
    held = step.by_stage(weight * states.trained + step.bucket_bytes, weight * states.overlapping, 0.0)
    return Term(
        "accumulated gradients",
        "stage 1: w*(T + B); stage 2: w*(tensors in the partition); none without accumulation",
        np.where(step.grid.accumulation > 1, held, 0.0),
    )


def _gathered(step: _Step, elements: Array) -> Term:
    """Stage 3's weights in use and those fetched ahead: at least one tensor, until the prefetch size is full."""
    several = (step.grid.zero_stage == 3) & (step.grid.dp > 1)
    ahead = np.maximum(step.buckets.prefetch, step.states.last_linear)
    return Term(
        "gathered weights",
        "stage 3, several ranks: w*(parameters in use and the next)",
        np.where(several, step.weight * (elements + ahead), 0.0),
    )


def _kept(step: _Step, layers_done: Array | float = 0.0) -> tuple[Term, ...]:
    """Activations held when ``layers_done`` layers have gone backward."""
    activations = step.activations
    left = (step.workload.shape.num_layers - layers_done) * activations.one_layer
    return (
        Term("activations of the layers", "layers*t*(bytes a layer keeps)", left),
        Term("activations outside the layers", "t*(embedding, last norm, log-probabilities)", activations.outside),
        Term("weights in another format", "2 bytes for each linear weight under autocast", activations.copies),
    )


def _in_loss(step: _Step) -> Moment:
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


def _in_first_layer(step: _Step) -> Moment:
    """The last layer goes backward: all layers' activations are held, the head's gradient is there."""
    states = step.states
    alone = step.grid.accumulation == 1
    stage1 = np.where(alone, states.head_gradient + step.buckets.reduce, 0.0)
    reduced = states.head_gradient > step.buckets.reduce
    stage2 = step.buckets.reduce + np.where(reduced, states.overlapping, states.head_gradient)
    gradients = step.by_stage(stage1, stage2, 0.0) + states.tied_gradient + states.last_linear
    return _in_layer("first backward layer", step, 0.0, step.weight * gradients)


def _in_later_layer(step: _Step) -> Moment:
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


def _in_layer(name: str, step: _Step, layers_done: Array | float, gradients: Array) -> Moment:
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


def _at_backward_end(step: _Step) -> Moment:
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


def _in_reduction(step: _Step) -> Moment:
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


def _in_optimizer_step(step: _Step) -> Moment:
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


def _at_start(step: _Step) -> Moment:
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
