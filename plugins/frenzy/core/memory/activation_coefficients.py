"""What activations take for each token: coefficients that a command traces, one set for each setting.

``tools.calibration`` traces a family's own module and solves for them. Nothing here is
typed by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final

from frenzy.core.models.parameters import ModelShape
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision

# How many times its balanced share of the tokens the busiest expert gets, at most all of them. Fourteen
# published runs of Mixtral imply 0.36 to 1.245 (`tools.accuracy.expert_load`; docs/accuracy.md has the cost);
# it is also the capacity that Fedus et al. 2022 (Switch Transformers, section 2.2) find enough.
BUSIEST_LOAD: Final = 1.25


class Attention(StrEnum):
    """How attention is computed: the names of the Hugging Face implementations."""

    SDPA = "sdpa"
    EAGER = "eager"
    FLASH_2 = "flash_attention_2"
    FLASH_3 = "flash_attention_3"


class Loss(StrEnum):
    """torch: over the logits of all tokens at once; fused: chunk by chunk, no logits are kept."""

    TORCH = "torch"
    FUSED = "fused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes for each token of a micro-batch, as a linear combination of the model's widths.

    hidden, query, key_value, intermediate, vocab: bytes for each element of that width; with a
    fused loss vocab counts for the tokens of one chunk only.
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

    def plus(self, other: TokenBytes) -> TokenBytes:
        """The sum, width by width."""
        return TokenBytes(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def minus(self, other: TokenBytes) -> TokenBytes:
        """The difference, width by width."""
        return TokenBytes(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})

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
        """What experts add; the busiest one is taken to get 1.25 times its balanced share of the tokens."""
        if not shape.num_experts:
            return 0.0
        active, hidden, inner = shape.experts_per_token, shape.hidden_size, shape.intermediate_size
        busiest = min(1.0, BUSIEST_LOAD * active / shape.num_experts)
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
    answers_in_kind: frozen linear maps compute in 16 bits but answer in the format they were asked
    in, as bitsandbytes' 4-bit maps do; under autocast, plain ones answer in 16 bits.
    """

    targets: tuple[str, ...]
    dropout: bool = False
    frozen: Precision = Precision.BF16
    answers_in_kind: bool = False


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
            (adapters.targets, adapters.dropout, adapters.frozen, adapters.answers_in_kind),
        )

    def suits(self, shape: ModelShape, setting: ActivationSetting) -> bool:
        """Whether these hold for ``shape`` and ``setting``, or for more than is asked.

        More are dropouts that the model does not have, and adapters on further linear maps.
        """
        same = (
            self.precision is setting.precision
            and self.checkpointing == setting.checkpointing
            and self.kind is setting.kind
            and self.attention is setting.attention
            and self.loss is setting.loss
        )
        return same and self._drops_out_enough(shape, setting) and _covers(self.adapters, setting.adapters)

    def _drops_out_enough(self, shape: ModelShape, setting: ActivationSetting) -> bool:
        hidden_dropout = max(shape.embedding_dropout, shape.residual_dropout) > 0
        attention_dropout = shape.attention_dropout > 0 and setting.attention_dropout_matters
        return self.hidden_dropout >= hidden_dropout and self.attention_dropout >= attention_dropout


def _covers(known: AdapterSetting | None, asked: AdapterSetting | None) -> bool:
    if known is None or asked is None:
        return known is asked
    return replace(known, targets=asked.targets) == asked and set(known.targets) >= set(asked.targets)


def find_coefficients(
    known: Iterable[ActivationCoefficients], shape: ModelShape, setting: ActivationSetting
) -> ActivationCoefficients | None:
    """The set among ``known`` (all of one family) that holds for ``shape`` and ``setting``, if any.

    fp16 shares the sets of bf16, which has the same width. A family that has eager attention only
    is computed eagerly whatever is asked. On a card torch's own attention in 16 bits takes the same
    kernel as FlashAttention 2, and FlashAttention 3 keeps the same. Of several sets with adapters, the one
    with the fewest adapted linear maps. A fused loss is put together from the plain one's set and one that
    was traced.
    """
    known = tuple(known)
    asked = _as_traced(known, setting)
    found = _suiting(known, shape, asked)
    if found is None and asked.loss is Loss.FUSED:
        plain = _suiting(known, shape, replace(asked, loss=Loss.TORCH))
        head = _change_of_head(known, asked)
        return None if plain is None or head is None else _with_fused_loss(plain, *head)
    return found


def with_fused_loss_of(
    others: Iterable[ActivationCoefficients], own: ActivationCoefficients
) -> ActivationCoefficients | None:
    """``own`` with the fused loss, as ``others`` (of another family) tell of it: the code of the head is the same."""
    head = _change_of_head(tuple(others), own.setting)
    return None if head is None else _with_fused_loss(own, *head)


def _as_traced(known: tuple[ActivationCoefficients, ...], setting: ActivationSetting) -> ActivationSetting:
    """``setting`` in the terms that sets are traced for."""
    adapters = setting.adapters
    if adapters is not None:
        adapters = replace(adapters, frozen=same_width(adapters.frozen))
    asked = replace(setting, precision=same_width(setting.precision), adapters=adapters)
    attentions = {each.attention for each in known}
    if attentions == {Attention.EAGER}:
        return replace(asked, attention=Attention.EAGER)
    if asked.attention in (Attention.FLASH_2, Attention.FLASH_3):
        alike = (Attention.FLASH_2, Attention.SDPA)
        return replace(asked, attention=next((each for each in alike if each in attentions), asked.attention))
    return asked


def _suiting(
    known: tuple[ActivationCoefficients, ...], shape: ModelShape, asked: ActivationSetting
) -> ActivationCoefficients | None:
    found = [each for each in known if each.suits(shape, asked)]
    return min(found, key=_beyond, default=None)


def _beyond(known: ActivationCoefficients) -> tuple[int, int]:
    """How much a set holds for: the least is the closest to what is asked."""
    adapted = len(known.adapters.targets) if known.adapters else 0
    return (known.attention_dropout + known.hidden_dropout, adapted)


def same_width(precision: Precision) -> Precision:
    """The precision whose sets hold for ``precision``, too."""
    return Precision.BF16 if precision is Precision.FP16 else precision


def _change_of_head(
    known: tuple[ActivationCoefficients, ...], asked: ActivationSetting
) -> tuple[ActivationCoefficients, ActivationCoefficients] | None:
    """Sets with the plain and with the fused loss that differ in nothing else; the layers below do not matter."""
    for fused in known:
        if fused.loss is Loss.FUSED and (fused.precision, fused.kind) == (asked.precision, asked.kind):
            wanted = replace(fused.setting, loss=Loss.TORCH)
            for plain in known:
                same_dropout = (plain.attention_dropout, plain.hidden_dropout) == (
                    fused.attention_dropout,
                    fused.hidden_dropout,
                )
                if plain.setting == wanted and same_dropout:
                    return plain, fused
    return None


def _with_fused_loss(
    own: ActivationCoefficients, plain: ActivationCoefficients, fused: ActivationCoefficients
) -> ActivationCoefficients:
    """``own`` with the head of ``fused`` in the place of that of ``plain``.

    in_loss and in_backward are relative to what is kept at the forward pass's end, which changes
    with the head; of ``own`` stay the operations at which no logits are held.
    """
    less_kept = plain.outside.minus(fused.outside)
    kept_without_logits = [each for each in own.in_loss if each.vocab + own.outside.vocab <= 0]
    return replace(
        own,
        loss=Loss.FUSED,
        outside=own.outside.minus(less_kept),
        in_loss=(*fused.in_loss, *(each.plus(less_kept) for each in kept_without_logits)),
        in_backward=tuple(each.plus(less_kept) for each in own.in_backward),
        head_copies=fused.head_copies,
    )
