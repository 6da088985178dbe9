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
from frenzy.core.memory_states import StateElements, state_elements
from frenzy.core.model_parameters import ModelShape
from frenzy.core.plan import MemoryPrediction, MemoryTerm
from frenzy.core.trainable import TrainedPart
from frenzy.core.zero_buckets import zero_buckets

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
    """One point in time: its terms, and whether the peak of a training step may fall here."""

    name: str
    terms: tuple[Term, ...]
    in_step: bool = True

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
        return np.stack([each.total for each in self.moments if each.in_step])

    @cached_property
    def peak_bytes(self) -> Integers:
        """Highest memory of a training step (what the trainer measures)."""
        peak: Integers = np.rint(self._totals.max(axis=0)).astype(np.int64)
        return peak

    @cached_property
    def required_bytes(self) -> Integers:
        """What the card must have: the highest memory at any time, and the headroom."""
        highest = np.stack([each.total for each in self.moments]).max(axis=0)
        headroom = np.maximum(highest * self.headroom_share, self.headroom_bytes)
        required: Integers = np.ceil(highest + headroom).astype(np.int64)
        return required

    def prediction(self, index: int) -> MemoryPrediction:
        """Peak, requirement and breakdown of plan ``index``."""
        in_step = [each for each in self.moments if each.in_step]
        moment = in_step[int(self._totals[:, index].argmax())]
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
    states = state_elements(workload.shape, workload.trained, grid.dp, grid.tp)
    resident = _Resident.of(workload, grid, states, calibration)
    moments = (
        _in_loss(workload, grid, states, resident, activations),
        _in_first_backward_layer(workload, grid, states, resident, activations),
        _at_backward_end(workload, grid, states, resident, activations),
        _in_reduction(workload, grid, states, resident),
        _in_optimizer_step(workload, grid, states, resident),
        _at_start(workload, grid, states, resident),
    )
    return MemoryTable(moments, calibration.headroom_share, calibration.headroom_bytes)


@dataclass(frozen=True)
class _Resident:
    """Terms that are there all the time."""

    terms: tuple[Term, ...]

    @classmethod
    def of(cls, workload: Workload, grid: PlanGrid, states: StateElements, calibration: Calibration) -> _Resident:
        weight, stage3 = workload.weight_bytes, grid.zero_stage == 3
        buckets = zero_buckets(workload.bucket_elements)
        frozen = np.where(stage3, states.frozen / grid.dp, states.frozen)
        trained = np.where(stage3, states.partition, states.trained)
        persistent = np.where(stage3 & (grid.dp > 1), states.persistent(buckets.persistent), 0)
        num_states = _OPTIMIZER_STATES[workload.optimizer]
        outside = [
            calibration.outside_bytes(workload.kind, int(stage), several_ranks=bool(several))
            for stage, several in zip(grid.zero_stage, grid.dp * grid.tp > 1, strict=True)
        ]
        return cls(
            (
                Term("weights", "w*N, or w*N/P in stage 3", weight * (trained + frozen + persistent)),
                Term("fp32 master weights", "4*S", 4.0 * states.partition),
                Term("optimizer states", "4*S for each state (Adam: 2)", 4.0 * num_states * states.partition),
                Term(
                    "gradient partition",
                    "w*S + w*B, held all the time in stage 3 only",
                    np.where(stage3, weight * (states.partition + buckets.reduce), 0.0),
                ),
                Term("outside tensors", "measured", np.asarray(outside, dtype=np.float64)),
            )
        )


@dataclass(frozen=True)
class _Activations:
    """Bytes for one micro-batch of each plan.

    kept: by all layers. one_layer: by one of them. outside: by embedding, last norm and loss.
    in_loss, in_backward: the highest extra. copies: weights of all layers in another format.
    """

    kept: Array
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
        layers = workload.shape.num_layers
        one_layer, outside, in_loss, in_backward, copies = rows
        return cls(layers * one_layer, one_layer, outside, in_loss, in_backward, copies)


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
            coefficients.weight_copies * linear * shape.num_layers,
        )
    rows = np.asarray([by_tp[tp] for tp in grid.tp.tolist()], dtype=np.float64).reshape(len(grid), 5).T
    rows[:4] *= grid.micro_batch * length
    return rows


def _gradients_before(workload: Workload, grid: PlanGrid, states: StateElements) -> Term:
    """Gradients of earlier micro-batches, at the start of the last one."""
    weight, buckets = workload.weight_bytes, zero_buckets(workload.bucket_elements)
    accumulates = grid.accumulation > 1
    stage1 = weight * (states.trained + buckets.reduce)
    stage2 = weight * states.overlapping
    held = np.where(grid.zero_stage == 1, stage1, np.where(grid.zero_stage == 2, stage2, 0.0))
    return Term(
        "accumulated gradients",
        "stage 1: w*(T + B); stage 2: w*(tensors in the partition); none without accumulation",
        np.where(accumulates, held, 0.0),
    )


def _gathered(workload: Workload, grid: PlanGrid, elements: Array) -> Term:
    needed = np.where((grid.zero_stage == 3) & (grid.dp > 1), workload.weight_bytes * elements, 0.0)
    return Term("gathered weights", "w*(parameters in use), stage 3 with several ranks", needed)


def _in_loss(
    workload: Workload, grid: PlanGrid, states: StateElements, resident: _Resident, activations: _Activations
) -> Moment:
    """The loss goes backward: every activation is held, and the gradient of the logits is made."""
    return Moment(
        "loss",
        (
            *resident.terms,
            _gradients_before(workload, grid, states),
            _gathered(workload, grid, states.head),
            Term("activations of the layers", "L*t*(bytes a layer keeps)", activations.kept),
            Term("activations outside the layers", "t*(embedding, last norm, log-probabilities)", activations.outside),
            Term("weights in another format", "2 bytes for each linear weight under autocast", activations.copies),
            Term("gradient of the loss", "t*V*(logits' gradients)", activations.in_loss),
        ),
    )


def _in_first_backward_layer(
    workload: Workload, grid: PlanGrid, states: StateElements, resident: _Resident, activations: _Activations
) -> Moment:
    """The last layer goes backward: all layers' activations are still held."""
    return Moment(
        "first backward layer",
        (
            *resident.terms,
            _gradients_before(workload, grid, states),
            _gathered(workload, grid, states.layer),
            Term("activations of the layers", "L*t*(bytes a layer keeps)", activations.kept),
            Term("activations outside the layers", "t*(embedding, last norm, log-probabilities)", activations.outside),
            Term("weights in another format", "2 bytes for each linear weight under autocast", activations.copies),
            Term("backward pass of one layer", "t*(its gradients, and its recomputation)", activations.in_backward),
            Term("new gradients", "w*(head and one layer) + w*B", _gradients_at_first_layer(workload, grid, states)),
        ),
    )


def _gradients_at_first_layer(workload: Workload, grid: PlanGrid, states: StateElements) -> Array:
    weight, bucket = workload.weight_bytes, zero_buckets(workload.bucket_elements).reduce
    alone = grid.accumulation == 1
    stage1 = np.where(alone, states.head_gradient + states.layer + bucket, states.tied_head_gradient)
    stage2 = states.tied_head_gradient + bucket + states.overlapping
    stage3 = states.tied_head_gradient + np.zeros_like(stage1)
    return weight * np.where(grid.zero_stage == 1, stage1, np.where(grid.zero_stage == 2, stage2, stage3))


def _at_backward_end(
    workload: Workload, grid: PlanGrid, states: StateElements, resident: _Resident, activations: _Activations
) -> Moment:
    """The embedding's gradient is made: with tied weights two of them and their sum are held."""
    weight, bucket = workload.weight_bytes, zero_buckets(workload.bucket_elements).reduce
    alone = grid.accumulation == 1
    stage1 = np.where(alone, states.trained - states.embedding + bucket, 0.0)
    stage2 = bucket + states.overlapping
    by_stage = np.where(grid.zero_stage == 1, stage1, np.where(grid.zero_stage == 2, stage2, 0.0))
    return Moment(
        "end of the backward pass",
        (
            *resident.terms,
            _gradients_before(workload, grid, states),
            _gathered(workload, grid, states.embedding),
            Term("new gradients", "w*(T or B + partition)", weight * by_stage),
            Term("embedding gradient", "w*V*h, three times when tied", weight * states.embedding_gradient),
        ),
    )


def _in_reduction(workload: Workload, grid: PlanGrid, states: StateElements, resident: _Resident) -> Moment:
    """Stage 1 reduces all gradients after the last backward pass, into a copy of its partition."""
    weight, bucket = workload.weight_bytes, zero_buckets(workload.bucket_elements).reduce
    first = np.minimum(bucket, states.trained)
    held = states.trained - first + bucket + states.overlapping
    return Moment(
        "gradient reduction",
        (
            *resident.terms,
            Term(
                "gradients and their reduction",
                "stage 1: w*(T + B + tensors in the partition)",
                np.where(grid.zero_stage == 1, weight * held, 0.0),
            ),
        ),
    )


def _in_optimizer_step(workload: Workload, grid: PlanGrid, states: StateElements, resident: _Resident) -> Moment:
    """torch's optimizer over one flat partition: the gradient in fp32 and two temporaries."""
    weight = workload.weight_bytes
    flattening = weight * (states.overlapping + states.partition) + np.where(weight == 4, 0.0, 4.0 * states.partition)
    temporaries = 8.0 if workload.optimizer == "adamw" else 0.0
    updating = (4.0 + temporaries) * states.partition
    return Moment(
        "optimizer step",
        (
            *resident.terms,
            Term(
                "gradient in fp32 and temporaries",
                "AdamW: 4*S gradient, 8*S for the root and the quotient",
                np.where(grid.zero_stage == 3, updating, np.maximum(flattening, updating)),
            ),
        ),
    )


def _at_start(workload: Workload, grid: PlanGrid, states: StateElements, resident: _Resident) -> Moment:
    """Before the first step: the model in fp32 on every rank, then its flat copy."""
    weight = workload.weight_bytes
    made = 4.0 * (states.trained + states.frozen)
    flat = weight * (2.0 * states.trained + states.frozen)
    outside = resident.terms[-1]
    return Moment(
        "start",
        (Term("model and flat copy", "max(4*N, 2*w*T)", np.maximum(made, flat)), outside),
        in_step=False,
    )
