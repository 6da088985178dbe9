"""Memory of a training step of plain PyTorch, alone or under FSDP: what published figures were run with.

The trainer runs DeepSpeed, so nothing here is launched; the same coefficients of activations are
held to the measurements of others by it. The peak is the maximum over points in time, as in
``memory``. Symbols: N parameters, T trained ones, P ranks, t tokens of a micro-batch, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Final

from frenzy.core.memory.activation_coefficients import ActivationCoefficients
from frenzy.core.memory.cuda_memory import CUBLAS_WORKSPACES_BYTES, HOPPER_WORKSPACES_BYTES
from frenzy.core.models.parameters import ModelShape
from frenzy.core.models.trainable import TrainedPart
from frenzy.core.models.weight_storage import StoredBytes, WeightStorage, stored_layer, stored_outside
from frenzy.core.values.resource_plan import MemoryPrediction, MemoryTerm


class Sharding(StrEnum):
    """What the ranks divide: none: nothing. gradients: gradients and optimizer states
    (FSDP's SHARD_GRAD_OP). full: parameters too (FULL_SHARD).
    """

    NONE = "none"
    GRADIENTS = "gradients"
    FULL = "full"


class TorchOptimizer(StrEnum):
    """adamw: torch's, in its default form for CUDA (foreach). fused: its single kernel.
    adamw-8bit: bitsandbytes' states. lion, sgd: one state.
    """

    ADAMW = "adamw"
    ADAMW_FUSED = "adamw-fused"
    ADAMW_8BIT = "adamw-8bit"
    LION = "lion"
    SGD = "sgd"


# bytes of the states for each byte of a trained parameter's format; 8-bit: for each element.
_STATES: Final = {
    TorchOptimizer.ADAMW: 2.0,
    TorchOptimizer.ADAMW_FUSED: 2.0,
    TorchOptimizer.LION: 1.0,
    TorchOptimizer.SGD: 1.0,
}
_8BIT_STATE_BYTES: Final = 2.0 * (1 + 4 / 256)


@dataclass(frozen=True, kw_only=True)
class TorchRun:
    """One training run on one or several GPUs, as published.

    storage, layer_bytes: format of the layers' weights. outside_bytes: of an element of embeddings,
    norms and head. trained_bytes: of an element of what is trained, its gradient and each state.
    gathered_bytes: of an element of a layer that FSDP gathers (compute format); gathered_layers:
    how many it holds at once. reentrant: activation checkpointing by nested backward passes.
    cached_key_values: bytes for each token and layer that a model keeps as its generation cache.
    hopper: sizes of cuBLAS' workspaces. saved_loss_bytes: what a cross-entropy kernel saves that keeps
    no log-probabilities, for each token and entry of the vocabulary.
    fused_norms: a kernel for root-mean-square norms that keeps their input as it is, not in fp32.
    fused_linear_loss: head and loss in one kernel, chunk by chunk, which keeps the gradient of the
    hidden states in place of logits. accumulation: micro-batches whose gradients are summed.
    lengths_vary: from step to step. segments_grow: those of torch's allocator, which by itself does not let them.
    keeps_unsharded: each rank keeps what is trained whole beside its shard, as it was before FSDP divided it.
    saves_on_card: each rank gathers the whole model on its card to save it. zeroes_gradients: they stay between steps,
    as zeros, instead of being freed.
    """

    shape: ModelShape
    trained: TrainedPart
    coefficients: ActivationCoefficients
    micro_batch: int
    sequence_length: int
    storage: WeightStorage = WeightStorage.PLAIN
    layer_bytes: int = 2
    outside_bytes: int = 2
    trained_bytes: int = 2
    optimizer: TorchOptimizer = TorchOptimizer.ADAMW
    sharding: Sharding = Sharding.NONE
    num_gpus: int = 1
    gathered_bytes: int = 2
    gathered_layers: int = 1
    adapter_rank: int = 0
    autocast: bool = False
    reentrant: bool = True
    cached_key_values: int = 0
    hopper: bool = False
    saved_loss_bytes: int = 0
    fused_norms: bool = False
    fused_linear_loss: bool = False
    accumulation: int = 1
    lengths_vary: bool = False
    segments_grow: bool = False
    keeps_unsharded: bool = False
    saves_on_card: bool = False
    zeroes_gradients: bool = False

    @property
    def num_tokens(self) -> int:
        return self.micro_batch * self.sequence_length

    @property
    def num_trained(self) -> int:
        return self.trained.num_elements(self.shape.num_layers)


def predict_torch_memory(run: TorchRun) -> MemoryPrediction:
    """Peak on one GPU of ``run`` and its breakdown; required_bytes is the peak, without any margin."""
    resident = (*_resident(run), _accumulated(run))
    stepping = resident[:-1]
    moments = {
        "loss": (*resident, *_gathered(run, 0), *_activations(run), _in_loss(run)),
        "first backward layer": (
            *_in_backward(run, resident),
            *_activations(run),
            _in_layer(run),
            *_layer_gradients(run),
        ),
        "last backward layer": (*_in_backward(run, resident), *_at_the_end(run)),
        "optimizer step": (*stepping, *_optimizer_step(run)),
        "saving": (*stepping, *_saving(run)),
    }
    at = max(moments, key=lambda name: sum(each.num_bytes for each in moments[name]))
    terms = tuple(sorted((each for each in moments[at] if each.num_bytes), key=lambda each: -each.num_bytes))
    peak = sum(each.num_bytes for each in terms)
    return MemoryPrediction(peak_allocated_bytes=peak, required_bytes=peak, host_bytes=0, at=at, terms=terms)


def _term(name: str, num_bytes: float, equation: str) -> MemoryTerm:
    return MemoryTerm(name=name, num_bytes=round(num_bytes), equation=equation)


def _model_bytes(run: TorchRun) -> StoredBytes:
    layers = stored_layer(run.shape, run.storage, run.layer_bytes) * run.shape.num_layers
    return layers + stored_outside(run.shape, run.outside_bytes)


def _resident(run: TorchRun) -> tuple[MemoryTerm, ...]:
    """What is there all the time from the second step on."""
    model = _model_bytes(run)
    ranks = run.num_gpus if run.sharding is Sharding.FULL else 1
    owners = 1 if run.sharding is Sharding.NONE else run.num_gpus
    adapters = 0 if run.trained.is_everything else run.trained_bytes * run.num_trained
    workspaces = HOPPER_WORKSPACES_BYTES if run.hopper else CUBLAS_WORKSPACES_BYTES
    copies = 2 * run.num_trained if run.autocast and adapters else 0
    unsharded = run.trained_bytes * run.num_trained if run.keeps_unsharded else 0
    return (
        _term("weights", (model.sharded + adapters) / ranks, "bytes of each parameter's format, /P when sharded"),
        _term("scales of quantised weights", model.beside, "one scale for each block, whole on every rank"),
        _term("optimizer states", _state_bytes(run) / owners, "states * bytes * T, /P when sharded"),
        _term("adapters in the format of autocast", copies / ranks, "2*T"),
        _term("parameters before they were sharded", unsharded, "bytes*T, kept by the scheduler's optimizer"),
        _term("cuBLAS workspaces", workspaces, "one for each of two threads"),
    )


def _state_bytes(run: TorchRun) -> float:
    if run.optimizer is TorchOptimizer.ADAMW_8BIT:
        return _8BIT_STATE_BYTES * run.num_trained
    return _STATES[run.optimizer] * run.trained_bytes * run.num_trained


def _gathered(run: TorchRun, num_layers: int) -> tuple[MemoryTerm, ...]:
    """What FSDP has gathered: the outermost unit (embeddings and head), and layers in use."""
    if run.sharding is not Sharding.FULL or run.num_gpus == 1:
        return ()
    layer = stored_layer(run.shape, run.storage, run.gathered_bytes).sharded
    adapters = 0 if run.trained.is_everything else run.trained_bytes * run.num_trained / run.shape.num_layers
    outside = stored_outside(run.shape, min(run.outside_bytes, run.gathered_bytes)).sharded
    return (
        _term("gathered embeddings and head", outside, "FSDP's outermost unit, whole from forward to backward"),
        _term("gathered layers", num_layers * (layer + adapters), "parameters of the layers in use, whole"),
    )


def _per_token(run: TorchRun, coefficients: str) -> float:
    adapters = run.adapter_rank * _adapted_maps(run)
    parts = getattr(run.coefficients, coefficients)
    parts = parts if isinstance(parts, tuple) else (parts,)
    parts = tuple(replace(each, vocab=0.0) for each in parts) if run.fused_linear_loss else parts
    found = [each.per_token(run.shape, run.sequence_length, adapter_elements=adapters) for each in parts]
    return max(found, default=0.0) * run.num_tokens


def _adapted_maps(run: TorchRun) -> int:
    return 0 if run.trained.is_everything else len(run.trained.layer) // 2


def _activations(run: TorchRun) -> tuple[MemoryTerm, ...]:
    layers = run.shape.num_layers
    kept = layers * _per_token(run, "layer")
    outside = _per_token(run, "outside") - _norm_savings(run, at_the_end=2)
    return (
        _term("activations of the layers", kept, "L*t*(bytes a layer keeps)"),
        _term("activations outside the layers", outside, "t*(embedding, last norm, loss)"),
        _term("generation cache", layers * run.num_tokens * run.cached_key_values, "L*t*(bytes of keys and values)"),
    )


def _norm_savings(run: TorchRun, *, at_the_end: int) -> int:
    """Bytes that fused norms save: a norm keeps its 2-byte input where the plain one keeps it in 4 bytes."""
    return at_the_end * run.shape.hidden_size * run.num_tokens if run.fused_norms else 0


def _accumulated(run: TorchRun) -> MemoryTerm:
    """Gradients of earlier micro-batches, which stay while the next one is computed.

    The Trainer reduces them with the last micro-batch only (``no_sync``). Until then FSDP keeps them whole on each
    rank, in the format it computes in (torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook).
    """
    element = run.gathered_bytes if _is_sharded(run) else run.trained_bytes
    held = element * run.num_trained if run.accumulation > 1 else 0.0
    return _term("accumulated gradients", held, "bytes*T, whole under FSDP, too; none without accumulation")


def _is_sharded(run: TorchRun) -> bool:
    return run.sharding is not Sharding.NONE and run.num_gpus > 1


def _in_fused_loss(run: TorchRun) -> MemoryTerm:
    """Liger's kernel: hidden states copied, their gradient, the head's, and a chunk's logits in 16 and 32 bits.

    A chunk has as many tokens as a hidden state has bytes' share of the vocabulary, rounded up to a
    power of two (LigerFusedLinearCrossEntropyFunction, liger-kernel 0.3).
    """
    tokens, hidden, vocab = run.num_tokens, run.shape.hidden_size, run.shape.vocab_size
    chunk = min(tokens, _power_of_two(ceil(tokens / ceil(vocab / hidden))))
    head = 2.0 * vocab * hidden if run.trained.is_everything else 0.0
    return _term("fused loss", 4.0 * tokens * hidden + 6.0 * chunk * vocab + head, "4*t*h + 6*chunk*V, head's gradient")


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


def _in_loss(run: TorchRun) -> MemoryTerm:
    if run.fused_linear_loss:
        return _in_fused_loss(run)
    saved = run.saved_loss_bytes * run.shape.vocab_size * run.num_tokens
    return _term("gradient of the loss", _per_token(run, "in_loss") - saved, "t*V*(logits and their gradients)")


def _in_layer(run: TorchRun) -> MemoryTerm:
    """The layer that goes backward; of its two norms one finds its input kept already (4 + 2 bytes saved).

    peft makes its input fp32 (4 bytes) for adapters in fp32 beside 16-bit weights, which keeps as much; FSDP
    gathers adapters in 16 bits, and the kernels that come with fused norms for 4-bit weights make no such copy.
    """
    casts = not run.trained.is_everything and run.num_gpus == 1 and run.storage is WeightStorage.PLAIN
    saved = _norm_savings(run, at_the_end=2 if casts and run.autocast else 6)
    return _term(
        "backward pass of one layer",
        _per_token(run, "in_backward") - saved,
        "t*(gradients, and what is recomputed)",
    )


def _in_backward(run: TorchRun, resident: tuple[MemoryTerm, ...]) -> tuple[MemoryTerm, ...]:
    return (*resident, *_gathered(run, run.gathered_layers))


def _layer_gradients(run: TorchRun) -> tuple[MemoryTerm, ...]:
    """Gradients when the first layer goes backward: the head's, and one layer's whole under FSDP."""
    if not run.trained.is_everything:
        return ()
    layer = sum(each.num_elements for each in run.trained.layer)
    head = sum(each.num_elements for each in run.trained.head)
    owners = 1 if run.sharding is Sharding.NONE else run.num_gpus
    return (_term("new gradients", run.trained_bytes * (layer + head / owners), "bytes*(a layer + the head)"),)


def _at_the_end(run: TorchRun) -> tuple[MemoryTerm, ...]:
    """What the last layer of the backward pass finds: all gradients, and hardly any activations.

    Gradients are added to those of earlier micro-batches; a reduction frees whole ones tensor by tensor.
    Where FSDP meets frozen parameters it hooks the inputs of each layer to know when to free its
    parameters; with reentrant checkpointing the hooks keep each layer's input and its gradient to
    the end (torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook).
    """
    if run.trained.is_everything:
        owners = 1 if run.sharding is Sharding.NONE else run.num_gpus
        gradients = 0.0 if run.accumulation > 1 else run.trained_bytes * run.num_trained / owners
        one_layer = _term("activations of the last layer", _per_token(run, "layer"), "t*(bytes a layer keeps)")
        return (one_layer, _in_layer(run), _term("gradients", gradients, "bytes*T, /P when sharded"))
    hooked = run.sharding is Sharding.FULL and run.num_gpus > 1 and run.reentrant and run.coefficients.checkpointing
    kept = run.shape.num_layers * _per_token(run, "layer") if hooked else 0.0
    held = (*_activations(run), _in_layer(run)) if hooked else ()
    return (*held, _term("inputs' gradients that hooks keep", kept, "L*t*(bytes of a layer's input)"))


def _optimizer_step(run: TorchRun) -> tuple[MemoryTerm, ...]:
    """Gradients, and the root that the foreach form makes of all second moments at once."""
    owners = 1 if run.sharding is Sharding.NONE else run.num_gpus
    gradients = run.trained_bytes * run.num_trained / owners
    temporary = gradients if run.optimizer is TorchOptimizer.ADAMW else 0.0
    return (
        _term("gradients", gradients, "bytes*T, /P when sharded"),
        _term("optimizer's temporaries", temporary, "foreach AdamW: bytes*T, /P when sharded"),
    )


def _saving(run: TorchRun) -> tuple[MemoryTerm, ...]:
    """A state dict of whole tensors, as FSDP makes it by default: nothing moves it to the host, or to one rank only.

    Each unit is gathered in its own format and its tensors are cloned before it is given back; the outermost one comes
    last, beside the clones of all others (torch/distributed/fsdp/_state_dict_utils.py, _full_post_state_dict_hook).
    """
    if not (run.saves_on_card and run.sharding is Sharding.FULL and run.num_gpus > 1):
        return ()
    adapters = 0 if run.trained.is_everything else run.trained_bytes * run.num_trained
    gradients = run.trained_bytes * run.num_trained / run.num_gpus if run.zeroes_gradients else 0.0
    return (
        _term("state dict on the card", _model_bytes(run).sharded + adapters, "bytes of each parameter's format"),
        _term("gathered embeddings and head", stored_outside(run.shape, run.outside_bytes).sharded, "FSDP's last unit"),
        _term("zeroed gradients", gradients, "bytes*T/P"),
    )
