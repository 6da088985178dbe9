"""Attention where torch has no kernel that avoids the matrix of scores: cards before Ampere.

torch's own attention takes one of three kernels. FlashAttention needs compute capability 8.0. The memory-efficient
one computes fp16 and fp32 on older cards, bf16 from 8.0 on, and in no case key/value heads that several query heads
share (``sdp_utils.cpp``: ``check_flash_attention_hardware_support``, ``can_use_mem_efficient_attention``; torch 2.13).
What is left is the formula (``_scaled_dot_product_attention_math``), which holds every score, in fp32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, TokenBytes
from frenzy.core.models.parameters import ModelShape
from frenzy.core.values.job import Precision

_AMPERE: Final = 8.0
# Kept by a layer beyond what it keeps with a kernel: query, key and value in fp32 for each query head, and the
# probabilities, in the place of 16-bit copies and the log-sum-exp. Dropout keeps a mask of a byte, and its result.
_KEPT: Final = TokenBytes(query=10, key_value=-4, scores=4)
_KEPT_BY_DROPOUT: Final = TokenBytes(scores=5)
# Made while attention goes backward: the gradients of the probabilities and of the scores.
_BACKWARD: Final = TokenBytes(scores=8)
# The same of a checkpointed layer, which was computed again; and a moment before that, when it computes again.
_CHECKPOINTED: Final = (
    TokenBytes(hidden=4, query=12, scores=12),
    TokenBytes(hidden=10, query=32, key_value=16, scores=8),
)


def computes_whole_scores(
    compute_capability: str | None, precision: Precision, shape: ModelShape, *, shares_heads: bool
) -> bool:
    """Whether torch's own attention holds all scores on a card of this capability; not where that is not known.

    precision: of what attention computes. shares_heads: key/value heads come to it as they are, not repeated.
    """
    if compute_capability is None or float(compute_capability) >= _AMPERE:
        return False
    if precision is Precision.FP16:
        return shares_heads and shape.num_key_value_heads < shape.num_heads
    return precision is not Precision.FP32  # whose coefficients are of the same kernels on every card


def with_whole_scores(own: ActivationCoefficients, shape: ModelShape) -> ActivationCoefficients:
    """``own``, of torch's own attention with a kernel, without one.

    Bytes were read from traces of llama, gpt2 and gpt_neox with the formula, and are never too few of them.
    """
    dropped = _KEPT_BY_DROPOUT if shape.attention_dropout > 0 else TokenBytes()
    kept, no_logits = _KEPT.plus(dropped), TokenBytes(vocab=-own.outside.vocab)
    if own.checkpointing:
        more = tuple(each.plus(dropped).plus(no_logits) for each in _CHECKPOINTED)
        return replace(own, in_backward=(*(each.plus(kept) for each in own.in_backward), *more))
    return replace(own, layer=own.layer.plus(kept), in_backward=(*own.in_backward, _BACKWARD.plus(no_logits)))
