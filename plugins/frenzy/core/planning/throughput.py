"""Time of an optimizer step on real GPUs: matrix products, memory traffic and ring collectives.

Each part is first counted at the rates of the datasheet (``StepParts``), then divided by the shares
that were measured (``Utilisation``); the counts are exact, all that is uncertain is in the shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frenzy.core.memory.host_offload import offload_times_s
from frenzy.core.memory.model_inputs import Array, PlanGrid
from frenzy.core.models.flops import FlopsShape, attention_flops_per_token, weight_flops_per_token
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.job import Precision
from frenzy.core.values.utilisation import Utilisation

_ACTIVATION_BYTES: Final = 2.0
# Adam in mixed precision: gradient, master weight and two states are read, the latter three and the weight written.
_STATE_BYTES: Final = 28.0
# A 4-bit element is read and written in 16 bits, forward, repeated and backward.
_PACKED_BYTES: Final = 0.5
_UNPACKED_BYTES: Final = _PACKED_BYTES + 2.0
# What NCCL itself reckons a hop of a ring to take (its src/graph/tuning.cc: protocol Simple, NVLink and network).
_HOP_INSIDE_S: Final = 3.4e-6
_HOP_BETWEEN_S: Final = 14e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What connects the GPUs of a plan.

    inside_bytes_per_s: from a GPU to its neighbours; between_bytes_per_s: from a node to others, all
    its adapters together.
    """

    gpus_per_node: int
    inside_bytes_per_s: float
    between_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What is computed in a step, whatever the plan.

    weight_bytes, gradient_bytes: of one element when it is communicated. repeated: share of the layers
    that checkpointing computes again. stream_bytes: of an element of the hidden states. has_rms_norms:
    the family's norms and rotary embeddings are chains of kernels, not one each. num_packed: parameters
    in 4 bits, which every pass unpacks. adapted_width: inputs and outputs of all maps with adapters.
    splits_hidden: hidden states outside products are divided among tensor-parallel ranks. reductions: collectives
    that sum the gradients once, one for each bucket (stages below 3).
    """

    flops: FlopsShape
    hidden_size: int
    vocab_size: int
    sequence_length: int
    precision: Precision
    weight_bytes: float
    gradient_bytes: float
    repeated: float = 1.0
    stream_bytes: float = 2.0
    has_rms_norms: bool = False
    num_packed: int = 0
    adapted_width: int = 0
    splits_hidden: bool = False
    reductions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Seconds of each part of a step at the datasheet's rates, an entry for each plan; launches counts layers in all
    micro-batches, relaunches those computed again, updates those of one, hooks those of stage 3.

    hidden, norms, vocabulary, adapted, packed, gradients: one pass over them. states: nothing where they are in
    host memory; host: what that adds (``host_offload``). hops: what collectives take however little they carry.
    gathered: share of ``inside`` and ``between`` that gathers updated weights. hiding: share of the step that
    communication may hide behind: below stage 2 the last micro-batch alone.
    """

    matmul: Array
    attention: Array
    hidden: Array
    norms: Array
    vocabulary: Array
    adapted: Array
    packed: Array
    tensor_parallel: Array
    gradients: Array
    launches: Array
    relaunches: Array
    updates: Array
    inside: Array
    between: Array
    hops: Array
    gathered: Array
    hiding: Array
    states: Array
    host: Array
    hooks: Array


def step_parts(work: StepWork, grid: PlanGrid, gpu: GpuType, link: Link) -> StepParts:
    """The parts of a step of each plan in ``grid``.

    With d ranks in data parallel and t in tensor parallel: products take 2 (4 with the input's
    gradient, 6 with the weight's, 2 more when checkpointing) operations for each parameter and
    token, divided by t; hidden states are divided by t only where ``splits_hidden``.
    """
    peak, memory = gpu.peak_flops_per_s(work.precision), gpu.memory_bandwidth_bytes_per_s
    tokens = np.asarray(grid.micro_batch * grid.accumulation * float(work.sequence_length), dtype=np.float64)
    again = grid.checkpointing.astype(np.float64) * work.repeated
    share = tokens / (grid.tp * peak)
    activation_s = tokens * _ACTIVATION_BYTES / memory
    passes = 1.0 + again / 3.0
    hidden = tokens * work.stream_bytes / memory * work.flops.num_layers * work.hidden_size * passes
    hidden = hidden / np.where(work.splits_hidden, grid.tp, 1)
    updated = _updated_bytes(work, grid)
    communicated = _collective_bytes(work, grid) + updated
    crosses_nodes = grid.dp * grid.tp > link.gpus_per_node
    inside_s = communicated / grid.tp / link.inside_bytes_per_s
    between_s = np.maximum(communicated / link.between_bytes_per_s, inside_s)
    launches = np.asarray(grid.accumulation * float(work.flops.num_layers), dtype=np.float64)
    return StepParts(
        matmul=share * _weight_flops(work, again),
        attention=share * _attention_flops(work, again),
        hidden=hidden,
        norms=hidden * float(work.has_rms_norms),
        vocabulary=activation_s * work.vocab_size / grid.tp,
        adapted=activation_s * work.adapted_width * passes / grid.tp,
        packed=_UNPACKED_BYTES * work.num_packed * grid.accumulation * (2.0 + again) / (memory * grid.tp),
        tensor_parallel=_tensor_parallel_bytes(work, grid, tokens) / link.inside_bytes_per_s,
        gradients=grid.accumulation / grid.tp * (_ACTIVATION_BYTES * work.flops.num_trainable / memory),
        launches=launches,
        relaunches=launches * again,
        updates=np.full_like(launches, work.flops.num_layers),
        hooks=np.where(grid.zero_stage == 3, launches, 0.0),
        inside=np.where(crosses_nodes, 0.0, inside_s),
        between=np.where(crosses_nodes, between_s, 0.0),
        hops=_hops_s(work, grid, link),
        gathered=updated / np.maximum(communicated, 1.0),
        hiding=np.where(grid.zero_stage < 2, 1.0 / grid.accumulation, 1.0),
        states=_states(work, grid) * (_STATE_BYTES / memory),
        host=offload_times_s(work.flops.num_trainable, work.weight_bytes, grid, link.gpus_per_node),
    )


def step_seconds(parts: StepParts, reached: Utilisation) -> Array:
    """Seconds of a step: compute (or kernel launches, if they take longer), exposed communication, optimizer.

    Of communication the share ``overlap`` hides behind compute, as far as compute lasts; the gathering of updated
    weights, which follows the optimizer step, does not.
    """
    compute = (
        parts.matmul / reached.matmul
        + parts.attention / reached.attention
        + parts.hidden * reached.hidden_passes
        + parts.norms * reached.norm_passes
        + parts.vocabulary * reached.vocab_passes
        + parts.adapted * reached.adapter_passes
        + parts.packed
        + parts.gradients * reached.gradient_passes
        + parts.tensor_parallel / reached.inside
    )
    launched = parts.launches + parts.relaunches * reached.repeated_launches + parts.updates * reached.update_launches
    launching = launched * reached.launch_s_per_layer + parts.hooks * reached.hook_s_per_layer
    busy = np.maximum(compute, launching)
    collectives = parts.inside / reached.inside + parts.between / reached.between
    gathering = collectives * parts.gathered
    reducing = collectives - gathering + parts.hops
    exposed = np.maximum((1.0 - reached.overlap) * reducing, reducing - busy * parts.hiding)
    update = gathering + parts.states + parts.host
    return np.asarray(busy + exposed + update, dtype=np.float64)


def _weight_flops(work: StepWork, again: Array) -> Array:
    """Operations for each token; ``again``: the repeated share of the forward pass, which leaves the head out."""
    plain, repeated = (weight_flops_per_token(work.flops, checkpointing=each) for each in (False, True))
    head = 2.0 * work.vocab_size * work.hidden_size
    return plain + again * (repeated - plain - head)


def _attention_flops(work: StepWork, again: Array) -> Array:
    plain, repeated = (
        attention_flops_per_token(work.flops, work.sequence_length, checkpointing=each) for each in (False, True)
    )
    return plain + again * (repeated - plain)


def _collective_bytes(work: StepWork, grid: PlanGrid) -> Array:
    """Bytes that ring collectives of the data-parallel ranks pass on in a step, over all tensor-parallel ranks.

    A ring passes (d-1)/d of a buffer, twice for an all-reduce. Without ZERO and in stages 1 and 2
    gradients are all-reduced, in stage 2 each micro-batch. Stage 3 reduce-scatters gradients and gathers the
    weights forward and backward, each micro-batch.
    """
    ring = (grid.dp - 1) / grid.dp
    gradients = work.gradient_bytes * work.flops.num_trainable
    weights = work.weight_bytes * work.flops.num_parameters - (work.weight_bytes - _PACKED_BYTES) * work.num_packed
    reductions = np.where(grid.zero_stage >= 2, grid.accumulation, 1)
    divided = 2 * gradients * reductions
    gathered = grid.accumulation * (gradients + 2.0 * weights)
    return np.asarray(ring * np.where(grid.zero_stage == 3, gathered, divided), dtype=np.float64)


def _updated_bytes(work: StepWork, grid: PlanGrid) -> Array:
    """Stages 1 and 2 gather the updated weights at the end of a step."""
    updated = (grid.dp - 1) / grid.dp * work.weight_bytes * work.flops.num_trainable
    return np.asarray(np.where((grid.zero_stage == 1) | (grid.zero_stage == 2), updated, 0.0), dtype=np.float64)


def _hops_s(work: StepWork, grid: PlanGrid, link: Link) -> Array:
    """What the hops of the rings that reduce take: d-1 in a pass, one for each further node between nodes.

    An all-reduce is two passes. In stage 3 each layer takes three in a micro-batch.
    """
    nodes = np.clip(np.ceil(grid.dp * grid.tp / max(1, link.gpus_per_node)), 1, grid.dp)
    pass_s = (grid.dp - nodes) * _HOP_INSIDE_S + (nodes - 1) * _HOP_BETWEEN_S
    summed = 2 * work.reductions * np.where(grid.zero_stage == 2, grid.accumulation, 1)
    passes = np.where(grid.zero_stage == 3, 3 * work.flops.num_layers * grid.accumulation, summed)
    return np.asarray(passes * pass_s, dtype=np.float64)


def _tensor_parallel_bytes(work: StepWork, grid: PlanGrid, tokens: Array) -> Array:
    """Hidden states are all-reduced twice forward and twice backward in each layer."""
    crossings = 8.0 * work.flops.num_layers * (grid.tp - 1) / grid.tp
    return np.asarray(crossings * tokens * work.hidden_size * _ACTIVATION_BYTES, dtype=np.float64)


def _states(work: StepWork, grid: PlanGrid) -> Array:
    """Parameters whose optimizer states one rank holds in its GPU's memory."""
    ranks = grid.tp * np.where(grid.zero_stage > 0, grid.dp, 1)
    return np.asarray(work.flops.num_trainable * ~grid.offload / ranks, dtype=np.float64)
