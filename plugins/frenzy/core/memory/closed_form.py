"""The closed form of a training step's memory, over many plans at once.

The peak is the maximum over points in time; at each point it is a sum of terms, each a NumPy
array with one entry for each plan. Symbols: N parameters on a rank, T of them trained, P data-
parallel ranks, S = T/P elements of a rank's partition, w bytes of a weight, a of an element of an
accumulated gradient (w by default), B elements of the reduction bucket, t = micro-batch x sequence
length tokens, L layers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frenzy.core.memory.activations import Activations
from frenzy.core.memory.allocator_holes import hole_bytes
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.card_overheads import beside_bytes, workspace_bytes
from frenzy.core.memory.host_memory import host_terms, saved_bytes
from frenzy.core.memory.host_offload import STATES_EQUATION, optimizer_state_bytes
from frenzy.core.memory.model_inputs import Array, Integers, PlanGrid, PlanRow, Workload
from frenzy.core.memory.model_states import StateElements, StateRequest, state_elements
from frenzy.core.memory.moments import (
    at_backward_end,
    at_start,
    in_first_layer,
    in_later_layer,
    in_loss,
    in_optimizer_step,
    in_reduction,
)
from frenzy.core.memory.script_heads import as_passed
from frenzy.core.memory.table import MemoryTable, Moment, Term
from frenzy.core.memory.training_step import Step, bucket_bytes
from frenzy.core.memory.undivided import undivided_moments, undivided_terms
from frenzy.core.models.weight_storage import WeightStorage, stored_layer, stored_outside
from frenzy.core.values.zero_buckets import zero_buckets

__all__ = [
    "Array",
    "Calibration",
    "Integers",
    "MemoryTable",
    "PlanGrid",
    "PlanRow",
    "Workload",
    "activations_at_loss_bytes",
    "predict_memory",
]


def predict_memory(workload: Workload, grid: PlanGrid, calibration: Calibration) -> MemoryTable | None:
    """Memory of every plan in ``grid``; None when no coefficients cover this family and precision."""
    activations = Activations.of(workload, as_passed(grid, workload), calibration)
    if activations is None:
        return None
    buckets = workload.buckets or zero_buckets(workload.bucket_elements)
    request = StateRequest(
        workload.shape,
        workload.trained,
        buckets.persistent,
        buckets.reduce,
        storage=workload.storage,
        weight_bytes=workload.weight_bytes,
        joins_experts=calibration.joins_experts,
    )
    states = state_elements(request, grid.dp, grid.tp)
    step = Step(
        workload=workload,
        grid=grid,
        states=states,
        buckets=buckets,
        resident=(),
        frozen_bytes=_frozen_bytes(workload, grid, states),
        activations=activations,
    )
    of_states = _state_terms if workload.divides_states else undivided_terms
    step = replace(step, resident=(*of_states(step), *_beside_states(workload, grid, calibration)))
    return MemoryTable(
        _zero_moments(step) if workload.divides_states else undivided_moments(step),
        calibration.headroom_share,
        calibration.headroom_bytes,
        host=host_terms(workload, grid, states),
        uncopied_bytes=None if workload.copies_checkpoints else saved_bytes(workload, states),
        beside_bytes=beside_bytes(workload.kind, grid) + hole_bytes(workload, grid),
    )


def activations_at_loss_bytes(workload: Workload, grid: PlanGrid, calibration: Calibration) -> Array | None:
    """Activations alone at the loss: less than any plan's peak, and much quicker to know."""
    found = Activations.of(workload, as_passed(grid, workload), calibration)
    if found is None:
        return None
    return found.at_loss_bytes(workload.shape.num_layers)


def _zero_moments(step: Step) -> tuple[Moment, ...]:
    return (
        at_start(step),
        in_loss(step),
        in_first_layer(step),
        in_later_layer(step),
        at_backward_end(step),
        in_reduction(step),
        in_optimizer_step(step),
    )


def _state_terms(step: Step) -> tuple[Term, ...]:
    """What ZeRO holds all the time from the first optimizer step on."""
    workload, grid, states, buckets, frozen = step.workload, step.grid, step.states, step.buckets, step.frozen_bytes
    weight, stage3 = workload.weight_bytes, grid.zero_stage == 3
    trained = np.where(stage3, states.partition, states.trained)
    persistent = np.where(stage3 & (grid.dp > 1), states.persistent, 0)
    kept = np.where(grid.offload, 0.0, states.partition)
    reserved = workload.gradient_bytes(grid) * kept + bucket_bytes(workload, buckets)
    staged = np.where(grid.offload & ~stage3, weight * states.largest_tensor, 0.0)
    return (
        Term(
            "weights",
            "w*N, or w*N/P in stage 3; frozen ones as they are stored",
            weight * (trained + persistent) + frozen,
        ),
        Term("fp32 master weights", "4*S; on the host if offloaded", 4.0 * kept),
        Term(
            "optimizer states",
            f"{STATES_EQUATION}; on the host if offloaded",
            optimizer_state_bytes(workload, kept),
        ),
        Term("gradient partition and bucket", "stage 3: a*S + w*B, w*B offloaded", np.where(stage3, reserved, 0.0)),
        Term("buffer for offloaded gradients", "stages 1 and 2 offloaded: w*(largest tensor)", staged),
    )


def _beside_states(workload: Workload, grid: PlanGrid, calibration: Calibration) -> tuple[Term, ...]:
    """What libraries hold all the time."""
    return (
        Term(
            "cuBLAS workspaces",
            "on a card: one for each of two threads",
            np.full(len(grid), float(workspace_bytes(workload.kind))),
        ),
        Term(
            "outside tensors",
            "measured: constant + part of each tensor",
            _outside_bytes(workload, grid, calibration),
        ),
    )


def _frozen_bytes(workload: Workload, grid: PlanGrid, states: StateElements) -> Array:
    """Weights that are not trained: plain, or quantised as ``weight_storage`` counts them."""
    if workload.trained.is_everything or workload.storage is WeightStorage.PLAIN:
        sharded, beside = workload.weight_bytes * states.frozen, 0.0
    else:
        shape, weight = workload.shape, workload.weight_bytes
        stored = stored_layer(shape, workload.storage, weight) * shape.num_layers + stored_outside(shape, weight)
        sharded, beside = np.full(len(grid), stored.sharded), stored.beside
    divided = np.where(grid.zero_stage == 3, sharded / grid.dp, sharded)
    return np.asarray(divided + beside, dtype=np.float64)


def _outside_bytes(workload: Workload, grid: PlanGrid, calibration: Calibration) -> Array:
    """Bytes outside tensors of each plan."""
    num_tensors = workload.shape.num_tensors
    return grid.by_setting(
        lambda zero_stage, tp, _: calibration.outside_bytes(workload.kind, zero_stage, num_tensors=num_tensors, tp=tp)
    )
