"""Floating-point operations of a training step, by counting matrix products.

The memory model's step time and the throttle of a virtual GPU use the same count.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopsShape:
    """What the count needs to know of a model.

    num_parameters counts every parameter once (tied weights too); num_trainable those that get
    gradients; num_inactive those of experts that a token does not visit, which cost nothing;
    attention_width is heads times head width (the hidden size in most families).
    """

    num_parameters: int
    num_trainable: int
    num_layers: int
    attention_width: int
    num_inactive: int = 0

    @property
    def num_active(self) -> int:
        """Parameters that each token is multiplied with."""
        return self.num_parameters - self.num_inactive

    @property
    def num_active_trainable(self) -> int:
        """Those of them that get gradients: experts do only when everything is trained."""
        everything = self.num_trainable >= self.num_parameters
        return self.num_active if everything else self.num_trainable


def checkpointed_layers(num_layers: int, every: int) -> int:
    """How many layers are checkpointed where one of ``every`` is, the first always."""
    return -(-num_layers // every)


def training_flops(shape: FlopsShape, *, num_tokens: int, sequence_length: int, checkpointing: float) -> float:
    """Operations to train on ``num_tokens`` tokens in sequences of ``sequence_length``.

    checkpointing: share of the layers whose forward pass is repeated, here and below.
    """
    weights = weight_flops_per_token(shape, checkpointing=checkpointing)
    return num_tokens * (weights + attention_flops_per_token(shape, sequence_length, checkpointing=checkpointing))


def weight_flops_per_token(shape: FlopsShape, *, checkpointing: float) -> float:
    """Operations of the products with weights.

    A product with a weight costs 2 operations per parameter and token in the forward pass, 2 for
    the gradient of its input and 2 for the gradient of the weight itself (trainable ones only);
    checkpointing repeats the forward pass. With all weights trainable that is 6 N (8 N) per token.
    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    return 2.0 * (2 + checkpointing) * shape.num_active + 2.0 * shape.num_active_trainable


def attention_flops_per_token(shape: FlopsShape, sequence_length: int, *, checkpointing: float) -> float:
    """Operations of attention scores and their use.

    4 * width * length per layer and token forward, twice that backward, the forward part again with
    checkpointing; the causal half is not taken off. Source as above.
    """
    return 4.0 * (3 + checkpointing) * shape.num_layers * shape.attention_width * sequence_length
