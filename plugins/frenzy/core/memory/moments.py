"""The points in time at which a training step's memory may peak.

What DeepSpeed holds at each was read from its source (runtime/zero/stage_1_and_2.py, stage3.py)
and checked against measured peaks. Symbols as in ``memory``.
"""

from __future__ import annotations

import numpy as np

from frenzy.core.memory.model_inputs import Array, Workload
from frenzy.core.memory.table import Moment, Term
from frenzy.core.memory.training_step import Step
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision


def _gathered(step: Step, in_use: Array, layers_left: Array | float, beside: Array) -> Term:
    """Stage 3's weights: those in use and one tensor ahead, or all that may be there of those still to be used.

    layers_left, beside: layers, and elements outside them, used from now to the end of the backward pass. DeepSpeed
    gives a module's parameters back unless it has seen a use of them ahead, and it looks ahead past all that is there.
    So they stay until there are as many as may be (``max_live_parameters``), whatever the reuse distance, which agrees
    with what was counted as available under 0.1 to 2 times the model (``PartitionedParameterCoordinator``:
    ``fetch_sub_module``, ``__params_to_release``).

    Experts lie in one tensor of which products take a view (``transformers``: ``integrations/moe.py``,
    ``_grouped_linear``). Autograd saves the view, and with it the gathered tensor: giving it back frees nothing until
    its layer has gone backward. bitsandbytes does the same with the codes of a linear map, in the autograd function
    itself (``MatMul4Bit.forward``), where checkpointing does not reach it unless it is reentrant, which makes no
    such function in the first pass.
    """
    several = (step.grid.zero_stage == 3) & (step.grid.dp > 1)
    ahead = np.maximum(step.buckets.prefetch, step.states.last_linear)
    plain = 1.0 - step.grid.checkpointing * step.workload.checkpointed_share
    coded = plain if step.workload.reentrant else 1.0
    kept = layers_left * (plain * step.states.experts + coded * step.states.packed_maps)
    needed = np.minimum(in_use + ahead, step.workload.shape.num_parameters) + kept
    left = np.minimum(layers_left * step.states.whole_layer + beside, step.workload.shape.num_parameters)
    return Term(
        "gathered weights",
        "stage 3, several ranks: w*(parameters in use and the next, and layers*experts without checkpointing, or as "
        "many as may be live), and the codes of 4-bit linear maps of the layers",
        np.where(several, step.weight * np.maximum(needed, np.minimum(step.buckets.live, left)), 0.0),
    )


def _in_layer_again(step: Step) -> Array:
    """Elements in use while a layer goes backward: all of it where it was recomputed."""
    kept = np.maximum(step.states.experts_at_once, step.states.packed_maps)
    whole = np.maximum(np.minimum(step.states.whole_layer, step.buckets.reuse / 2.0), kept)
    recomputed = np.where(step.grid.checkpointing, whole, 0.0)
    return np.asarray(np.maximum(recomputed, step.states.last_linear), dtype=np.float64)


def kept_terms(step: Step, layers_done: Array | float = 0.0) -> tuple[Term, ...]:
    """Activations held when ``layers_done`` layers have gone backward."""
    activations = step.activations
    layers = step.workload.shape.num_layers - layers_done
    scores = ", attention's whole scores too" if step.workload.whole_scores else ""
    return (
        Term("activations of the layers", f"layers*t*(bytes a layer keeps{scores})", layers * activations.one_layer),
        Term("activations outside the layers", "t*(embedding, last norm, log-probabilities)", activations.outside),
        Term("weights in another format", "2 bytes for each linear weight under autocast", activations.copies),
        Term(
            "document masks",
            "sdpa: t*s, and layers*(4 or 2)*(t*s + t*(repeated key/value heads)) without checkpointing; 0 without them",
            layers * activations.masks.one_layer + activations.masks.outside,
        ),
    )


def in_loss(step: Step) -> Moment:
    """The loss goes backward: every activation is held, and the gradient of the logits is made."""
    return Moment(
        "loss",
        (
            *step.resident,
            step.gradients_before,
            _gathered(step, step.states.head, step.workload.shape.num_layers, step.states.head + step.states.table),
            *kept_terms(step),
            Term("gradient of the loss", "t*V*(logits' gradients)", step.activations.in_loss),
        ),
    )


def in_first_layer(step: Step) -> Moment:
    """The last layer goes backward: all layers' activations are held, the head's gradient is there."""
    states, weight = step.states, step.weight
    reduced = states.head_gradient > step.buckets.reduce
    passing = np.maximum(step.partition_gradient, step.flat_copy(states.head_gradient))
    stage2 = step.bucket_bytes + weight * states.head_gradient + np.where(reduced, passing, 0.0)
    gradients = _of_stages(step, _made_in_stage1(step, states.head_gradient), stage2)
    # stage 1 adds the head's gradient to its sum before the layer's are made
    added = np.where(step.separate, (weight + step.gradient) * states.head_gradient, 0.0)
    beyond = np.maximum(added - step.activations.in_backward, 0.0)
    return _in_layer("first backward layer", step, 0.0, gradients + step.by_stage(beyond, 0.0, 0.0))


def _made_in_stage1(step: Step, elements: Array) -> Array:
    """Bytes of the gradients of ``elements`` made in the only micro-batch; otherwise they were added to those held."""
    return np.where(step.grid.accumulation == 1, step.weight * (elements + step.filling), 0.0)


def _of_stages(step: Step, held: Array, early: Array) -> Array:
    """New gradients: early where they go into the bucket as they are made, held where not; stage 3's are elsewhere."""
    return step.by_stage(np.where(step.reduces_early, early, held), early, 0.0)


def in_later_layer(step: Step) -> Moment:
    """The layer at whose backward pass the bucket is full, and is reduced into the partition's buffer.

    In stage 1 that reduces afterwards: the layer that goes backward last, when all gradients are there.
    """
    states, layers = step.states, step.workload.shape.num_layers
    full = np.full(len(step.grid), float(step.buckets.reduce))
    filled = np.maximum(full - states.head_gradient, 0.0) / np.maximum(states.layer, 1.0)
    later = np.where(step.reduces_early, np.minimum(np.ceil(filled), layers - 1.0), layers - 1.0)
    # what goes backward first is the last rank's: a bucket has others' too only if it is larger than a rank's share
    reduced = np.maximum(
        step.flat_copy(full, of_many=True), step.by_stage(step.partition_gradient, step.partition_gradient, 0.0)
    )
    early = step.bucket_bytes + np.where(step.fills, reduced + step.summed(full), 0.0) + step.too_large
    gradients = _of_stages(step, _made_in_stage1(step, states.trained - step.table), early)
    third = step.by_stage(0.0, 0.0, np.where(step.fills, step.flat_copy(full), 0.0))
    return _in_layer("later backward layer", step, later, gradients + third)


def _in_layer(name: str, step: Step, layers_done: Array | float, gradients: Array) -> Moment:
    one_map = step.weight * (step.states.tied_gradient + step.states.last_gradient) + _being_summed(step)
    return Moment(
        name,
        (
            *step.resident,
            step.gradients_before,
            _gathered(step, _in_layer_again(step), step.workload.shape.num_layers - layers_done, step.states.table),
            *kept_terms(step, layers_done),
            Term(
                "backward pass of one layer",
                "t*(gradients, and what is recomputed)",
                step.activations.in_backward + step.activations.masks.in_backward,
            ),
            Term("new gradients", "w*(head, bucket, partition, one linear map)", gradients + one_map),
            Term(
                "quantised weight made plain",
                "w*max(largest linear map, largest of all experts - t*(inner widths visited)/2); 0 where none is",
                _plain_weight(step),
            ),
        ),
    )


def _being_summed(step: Step) -> Array:
    """In another format: stage 1 adds a tensor at a time, stage 3 a bucket."""
    passing = step.gradient * step.by_stage(step.states.last_gradient, 0.0, float(step.buckets.reduce))
    return np.where(step.separate, passing, 0.0)


def _plain_weight(step: Step) -> Array:
    """Going backward, one weight is made plain at a time (``MatMul4Bit.backward``, ``trainer.model.four_bit_experts``).

    Experts' weights are not when the layer holds most: a trace of it has at least two gradients of the experts' inner
    width fewer then. Half a one is taken off, as measured peaks of small micro-batches allow.
    """
    shape, grid = step.workload.shape, step.grid
    inner = next((each.columns for each in reversed(shape.layer) if each.is_expert), 0)
    tokens = grid.micro_batch * float(step.workload.sequence_length)
    beside = step.states.packed_experts - tokens * shape.experts_per_token * inner / 2.0
    return np.asarray(step.weight * np.maximum(step.states.largest_packed, beside), dtype=np.float64)


def at_backward_end(step: Step) -> Moment:
    """The embedding's gradient is made: with tied weights two of them and their sum are held."""
    states, grid = step.states, step.grid
    early = step.bucket_bytes + step.reduced_before_table + step.too_large
    by_stage = _of_stages(step, _made_in_stage1(step, states.trained - step.table), early)
    scattered = np.where(states.table_gradients > 0, (2 + 1 / grid.dp) * states.table, 0.0)
    table = step.by_stage(states.table_gradients, states.table_gradients, np.maximum(states.table_gradients, scattered))
    table = step.weight * table
    # stages 1 and 2 convert the gradient that is left, or the partition's part of it, to add it to the sum
    whole = np.where(step.separate & (states.table_gradients > 0), states.table, 0.0)
    part = np.minimum(whole, states.partition)
    added = step.weight * whole + step.gradient * step.by_stage(whole, part, 0.0)
    table = np.maximum(table, added)
    return Moment(
        "end of the backward pass",
        (
            *step.resident,
            step.gradients_before,
            _gathered(step, states.table, 0.0, states.table),
            Term("new gradients", "w*(T or B + partition)", by_stage),
            Term(
                "embedding gradient",
                "w*V*h, three times when tied; summed in fp32: and 4*V*h or 4*S",
                table,
            ),
        ),
    )


def in_reduction(step: Step) -> Moment:
    """The last bucket is reduced, at the end of the backward pass or after it, into a copy of the rank's partition.

    The copy is made when the first tensor is reduced: one that fits the bucket has left its own
    storage by then, a larger one has not. Sums in another format: in bf16 they lie flat and are reduced
    in place (``BF16_Optimizer``); in fp16 through a bucket into a copy of the partition.
    """
    reduced = _of_stages(step, _reduced_at_end(step), _reduced_early(step)) + _reduced_in_stage3(step)
    return Moment(
        "gradient reduction",
        (
            *step.resident,
            Term(
                "accumulated gradients",
                "stage 2: a*S of earlier micro-batches",
                step.by_stage(0.0, step.gradients_before.num_bytes, 0.0),
            ),
            _gathered(step, step.states.table, 0.0, step.states.table),
            Term(
                "gradients and their reduction",
                "after the backward pass: w*(T + B + tensors in the partition), or a*T, in fp16 a*(T + 2*B + S); "
                "as they are made: w*(B, twice where reductions overlap; its flat copy; V*h that waits), and a*S",
                reduced + step.whole_gradient,
            ),
        ),
    )


def _reduced_at_end(step: Step) -> Array:
    """Stage 1: all gradients but those moved into the bucket, and the larger of its flat copy and the partition's."""
    states, full = step.states, float(step.buckets.reduce)
    moved = np.where(states.first_tensor > full, 0.0, np.minimum(full, states.trained))
    copied = np.maximum(step.partition_gradient, step.flat_copy(moved))
    held = step.weight * (states.trained - moved) + copied + step.bucket_bytes
    if step.workload.precision is Precision.BF16:  # summed in fp32: reduced where they lie
        return np.where(step.separate, 0.0, held)
    several = step.grid.dp > 1
    return np.where(step.separate, step.gradient * (step.filling + states.partition + moved * several), held)


def _reduced_early(step: Step) -> Array:
    """The buckets, the flat copy of the last one and what waits beside it, or the partition that it leaves for."""
    passing = _passing(step) + step.reduced_before_table + step.summed(step.in_last_bucket)
    return step.bucket_bytes + np.maximum(passing, step.partition_gradient) + step.too_large


def _reduced_in_stage3(step: Step) -> Array:
    return step.by_stage(0.0, 0.0, _passing(step) + step.summed(step.in_last_bucket))


def _passing(step: Step) -> Array:
    """The last bucket's flat copy, and the embedding's gradient, which waits where it has no room in the bucket."""
    fits = step.states.trained <= step.buckets.reduce
    return step.flat_copy(step.in_last_bucket) + np.where(fits, 0.0, step.weight * step.table)


def in_optimizer_step(step: Step) -> Moment:
    """The gradient's norm, its fp32 copy, and torch's optimizer over one flat partition; on the host if offloaded.

    A sum in fp32 is its own copy: stage 1's whole, stage 2's the partition; stage 3 lays its pieces flat, one part of
    the partition at a time.
    """
    states, weight = step.states, step.weight
    copies = weight * states.partition + (0.0 if weight == 4 else 4.0 * states.partition)
    norm = 8.0 * np.minimum(states.largest_tensor, states.partition)
    before = step.partition_gradient + np.maximum(copies, norm)
    updating = _updating_bytes(step.workload) * states.partition
    plain = np.maximum(before, updating)
    beside = np.maximum(norm, updating - 4.0 * states.partition)
    # DeepSpeed's BF16_Optimizer takes the norm in fp32, of the sums as they are
    whole = updating - 4.0 * states.partition if step.workload.precision is Precision.BF16 else beside
    first = np.where(step.separate, whole, plain)
    second = np.where(step.separate, step.gradient * states.partition + beside, plain)
    stepping = step.by_stage(first, second, _in_sub_group(step))
    return Moment(
        "optimizer step",
        (
            *step.resident,
            Term(
                "gradient in fp32 and temporaries",
                "4*S gradient; AdamW on a CPU: 8*S root and quotient, in 8 bits 20*S; or the norm's double of the "
                "largest tensor; stage 3: a flat copy of the gradient, too, and of S a sub-group; 0 offloaded",
                np.where(step.grid.offload, 0.0, stepping) + step.whole_gradient,
            ),
        ),
    )


def _in_sub_group(step: Step) -> Array:
    """Stage 3: gradients of a sub-group are laid flat, then made fp32, which a sum in fp32 is already.

    A sub-group ends with the tensor that fills it (``_create_fp16_sub_groups``, ``_prepare_fp32_grad_for_sub_group``).
    The norm before it is taken of a tensor's part at a time, in double precision.
    """
    states = step.states
    largest = np.minimum(states.largest_tensor / step.grid.dp, states.partition)
    elements = np.minimum(states.partition, step.buckets.sub_group + largest)
    made = np.where(step.gradient == 4, 4.0, step.gradient + 4.0)
    updating = np.maximum(made, _updating_bytes(step.workload)) * elements
    return np.asarray(np.maximum(updating, 8.0 * largest), dtype=np.float64)


def _updating_bytes(workload: Workload) -> float:
    """Bytes for each element of the partition while the optimizer updates it: the fp32 gradient and temporaries.

    torch's plain AdamW makes a root and a quotient. Its fused one and, on a card, bitsandbytes' 8-bit AdamW
    update in place; the CPU kernel of the latter unpacks both moments and makes a copy of the gradient, a
    root and a quotient, all in fp32.
    """
    if workload.optimizer == "adamw":
        return 4.0 if workload.is_fused else 12.0
    on_cpu = workload.optimizer == "adamw-8bit" and workload.kind is DeviceKind.VIRTUAL
    return 24.0 if on_cpu else 4.0


def at_start(step: Step) -> Moment:
    """Before the first step: the model on its rank, its flat copy, the master weights.

    A rank gets the model in the weights' format, in stage 3 cut tensor by tensor unless tensor parallelism cut it
    already (``trainer.model.rank_share``). DeepSpeed makes the flat copy on the host where the card has no room for it;
    the host is the device of a virtual GPU.
    """
    equation = "w*N + 8*S; stage 3: max(2*w*S + w*(largest tensor), w*S + 8*S); virtual, below it: at least w*(N + T)"
    return Moment("start", (Term("model, flat copy, master weights", equation, _made(step)), step.resident[-1]))


def _made(step: Step) -> Array:
    states, weight, grid = step.states, step.weight, step.grid
    # offloaded: one copy of the partition on its way
    masters = np.where(grid.offload, weight, 8.0) * states.partition
    flat = weight * states.trained if step.workload.kind is DeviceKind.VIRTUAL else 0.0
    whole = weight * states.trained + step.frozen_bytes + np.maximum(masters, flat)
    part = weight * states.partition
    # only what is trained is laid flat (``_get_parameter_partitions``); frozen tensors are cut one by one too
    largest = np.maximum(states.largest_tensor, states.table)
    moving = np.maximum(part + weight * largest, np.where(grid.offload, 0.0, 8.0 * states.partition))
    return step.by_stage(whole, whole, np.where(grid.tp > 1, whole, part + step.frozen_bytes + moving))
