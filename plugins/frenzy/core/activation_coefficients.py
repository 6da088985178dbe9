"""What activations take for each token: coefficients that a command traces, one set for each setting.

``frenzy.trainer.calibrate`` traces a family's own module and solves for them. Nothing here is
typed by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from frenzy.core.hardware import DeviceKind
from frenzy.core.job import Precision
from frenzy.core.model_parameters import ModelShape

# How many times its balanced share of the tokens the busiest expert is taken to get, at most all
# of them: the capacity factor of Lepikhin et al. 2020 (GShard), section 2.2.
_BUSIEST_LOAD: Final = 2.0


class Attention(StrEnum):
    """How attention is computed: the names of the Hugging Face implementations."""

    SDPA = "sdpa"
    EAGER = "eager"
    FLASH_2 = "flash_attention_2"


class Loss(StrEnum):
    """torch: over the logits of all tokens at once; fused: chunk by chunk, no logits are kept."""

    TORCH = "torch"
    FUSED = "fused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes for each token of a micro-batch, as a linear combination of the model's widths.

    hidden, query, key_value, intermediate, vocab: bytes for each element of that width.
    heads, key_value_heads: bytes for each of them (log-sum-exp, norms of heads); scores: for each
    head and each position attended to (attention that materialises its score matrix).
    constant: bytes independent of any width.
    Mixture of experts: experts: bytes for each expert (the router's logits); active_experts: for
    each expert a token visits; expert_hidden, expert_intermediate: for each element of that width
    and each expert a token visits; busiest_hidden, busiest_intermediate: the same, of the tokens
    that visit the busiest expert only (what is held for one expert at a time).
    adapter_rank: for each adapted linear map of a layer and each element of the adapters' rank.
    """

    hidden: float = 0.0
    query: float = 0.0
    key_value: float = 0.0
    intermediate: float = 0.0
    heads: float = 0.0
    key_value_heads: float = 0.0
    scores: float = 0.0
    vocab: float = 0.0
    constant: float = 0.0
    experts: float = 0.0
    active_experts: float = 0.0
    expert_hidden: float = 0.0
    expert_intermediate: float = 0.0
    busiest_hidden: float = 0.0
    busiest_intermediate: float = 0.0
    adapter_rank: float = 0.0

    def per_token(self, shape: ModelShape, sequence_length: int, tp: int = 1, *, adapter_elements: int = 0) -> float:
        """Bytes for one token on one of ``tp`` tensor-parallel ranks.

        adapter_elements: the adapters' rank times the adapted linear maps of a layer.
        """
        split = (
            self.query * shape.query_width
            + self.key_value * shape.key_value_width
            + self.intermediate * shape.intermediate_size
            + self.heads * shape.num_heads
            + self.key_value_heads * shape.num_key_value_heads
            + self.scores * shape.num_heads * sequence_length
        )
        whole = self.hidden * shape.hidden_size + self.vocab * shape.vocab_size + self.constant
        return whole + split / tp + self._by_expert(shape) + self.adapter_rank * adapter_elements

    def _by_expert(self, shape: ModelShape) -> float:
        """What experts add; the busiest one is taken to get twice its balanced share of the tokens."""
        if not shape.num_experts:
            return 0.0
        active, hidden, inner = shape.experts_per_token, shape.hidden_size, shape.intermediate_size
        busiest = min(1.0, _BUSIEST_LOAD * active / shape.num_experts)
        return (
            self.experts * shape.num_experts
            + self.active_experts * active
            + active * (self.expert_hidden * hidden + self.expert_intermediate * inner)
            + busiest * (self.busiest_hidden * hidden + self.busiest_intermediate * inner)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSetting:
    """Low-rank adapters as they matter for activations.

    targets: last parts of the adapted linear maps' names, sorted. dropout: whether adapters drop
    out. frozen: format of the frozen weights (``precision`` of the coefficients is the adapters').
    """

    targets: tuple[str, ...]
    dropout: bool = False
    frozen: Precision = Precision.BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSetting:
    """All that activations depend on beside the model and the number of tokens."""

    precision: Precision
    checkpointing: bool
    kind: DeviceKind = DeviceKind.VIRTUAL
    attention: Attention = Attention.SDPA
    loss: Loss = Loss.TORCH
    adapters: AdapterSetting | None = None

    @property
    def attention_dropout_matters(self) -> bool:
        """Fused kernels on a card drop out inside, at no cost; eager attention and a CPU keep a mask."""
        return self.kind is DeviceKind.VIRTUAL or self.attention is Attention.EAGER


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationCoefficients:
    """What one family keeps for the backward pass, and what each part of the step adds to it.

    layer: kept by each layer. outside: kept outside the layers, the loss included. in_loss,
    in_backward: what is held above that at each operation of the head and the loss, and of the
    last layer's backward pass; the highest counts. weight_copies: bytes for each element of a
    layer's (and the head's) linear maps, kept in another format (autocast). head_copies: bytes for
    each element of the output matrix that the fused loss keeps until it has gone backward. kind: on
    which devices; attention kernels, and what autocast computes in fp32, differ between them.
    """

    family: str
    precision: Precision
    checkpointing: bool
    attention_dropout: bool
    hidden_dropout: bool
    layer: TokenBytes
    outside: TokenBytes
    in_loss: tuple[TokenBytes, ...]
    in_backward: tuple[TokenBytes, ...]
    weight_copies: float = 0.0
    head_copies: float = 0.0
    kind: DeviceKind = DeviceKind.VIRTUAL
    attention: Attention = Attention.SDPA
    loss: Loss = Loss.TORCH
    adapters: AdapterSetting | None = None

    @property
    def setting(self) -> ActivationSetting:
        """What these coefficients hold for, beside the family and its dropout."""
        return ActivationSetting(
            precision=self.precision,
            checkpointing=self.checkpointing,
            kind=self.kind,
            attention=self.attention,
            loss=self.loss,
            adapters=self.adapters,
        )

    @property
    def order(self) -> tuple[object, ...]:
        """Where these coefficients stand in a file; one place for each set."""
        adapters = self.adapters or AdapterSetting(targets=())
        return (
            self.family,
            self.kind,
            self.attention,
            self.loss,
            self.precision,
            self.checkpointing,
            self.attention_dropout,
            self.hidden_dropout,
            (adapters.targets, adapters.dropout, adapters.frozen),
        )

    def suits(self, shape: ModelShape, setting: ActivationSetting) -> bool:
        """Whether these hold for ``shape`` and ``setting``; adapters may be on more linear maps than asked."""
        hidden_dropout = max(shape.embedding_dropout, shape.residual_dropout) > 0
        return (
            self.hidden_dropout == hidden_dropout
            and self.attention_dropout == (shape.attention_dropout > 0 and setting.attention_dropout_matters)
            and replace(self.setting, adapters=None) == replace(setting, adapters=None)
            and _covers(self.adapters, setting.adapters)
        )


def _covers(known: AdapterSetting | None, asked: AdapterSetting | None) -> bool:
    if known is None or asked is None:
        return known is asked
    return replace(known, targets=asked.targets) == asked and set(known.targets) >= set(asked.targets)


def find_coefficients(
    known: Iterable[ActivationCoefficients], shape: ModelShape, setting: ActivationSetting
) -> ActivationCoefficients | None:
    """The set among ``known`` (all of one family) that holds for ``shape`` and ``setting``, if any.

    fp16 shares the sets of bf16, which has the same width. A family that has eager attention only
    is computed eagerly whatever is asked. Of several sets with adapters, the one with the fewest
    adapted linear maps.
    """
    known = tuple(known)
    asked = replace(setting, precision=_same_width(setting.precision))
    if known and all(each.attention is Attention.EAGER for each in known):
        asked = replace(asked, attention=Attention.EAGER)
    if not any(each.kind is asked.kind for each in known):
        asked = replace(asked, kind=DeviceKind.VIRTUAL)
    found = [each for each in known if each.suits(shape, asked)]
    return min(found, key=lambda each: len(each.adapters.targets) if each.adapters else 0, default=None)


def _same_width(precision: Precision) -> Precision:
    return Precision.BF16 if precision is Precision.FP16 else precision
