"""What a model's training computes in a step, for the time model."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.core.models.flops import FlopsShape
from frenzy.core.models.parameters import ModelShape
from frenzy.core.models.trainable import TrainedPart
from frenzy.core.models.weight_storage import WeightStorage, is_packed
from frenzy.core.planning.throughput import StepWork
from frenzy.core.values.job import Precision

# Their norms are one kernel, and they have no rotary embeddings. Phi and GPT-NeoX, which have, are not among them.
_LAYER_NORM_FAMILIES: Final = frozenset({"gpt2", "gpt_bigcode", "opt", "mpt", "bert", "roberta"})


def model_work(shape: ModelShape, trained: TrainedPart, storage: WeightStorage, sequence_length: int) -> StepWork:
    """The work of training ``trained`` of ``shape`` in 16 bits, all layers repeated where checkpointing is on."""
    packed = sum(each.num_elements for each in shape.layer if is_packed(each, storage))
    return StepWork(
        flops=_multiplied(shape, shape.flops_shape(trained.num_elements(shape.num_layers))),
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        sequence_length=sequence_length,
        precision=Precision.BF16,
        weight_bytes=2.0,
        gradient_bytes=2.0,
        has_rms_norms=shape.family not in _LAYER_NORM_FAMILIES,
        num_packed=packed * shape.num_layers,
        adapted_width=0 if trained.is_everything else _adapted_width(trained) * shape.num_layers,
    )


def _multiplied(shape: ModelShape, flops: FlopsShape) -> FlopsShape:
    """Embeddings are looked up, not multiplied with, unless the head is tied to them."""
    looked_up = sum(each.num_elements for each in shape.embeddings if not each.is_linear)
    tied = shape.vocab_size * shape.hidden_size if shape.tied_embeddings else 0
    return replace(flops, num_inactive=flops.num_inactive + max(0, looked_up - tied))


def _adapted_width(trained: TrainedPart) -> int:
    """Inputs and outputs of a layer's maps with adapters."""
    inputs = sum(each.columns for each in trained.layer if each.name.endswith(".lora_A"))
    return inputs + sum(each.rows for each in trained.layer if each.name.endswith(".lora_B"))
