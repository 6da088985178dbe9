"""A causal language model as the memory model sees it: its parameter tensors and its widths.

The shape is read from a full Hugging Face config (defaults already filled in, which is the
adapters' work) by ``model_shape.model_shape``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from frenzy.core.models.flops import FlopsShape

# Far beyond any real model; so that no sum over a model overflows, and none takes long.
_MOST_LAYERS: Final = 10_000
_WIDEST: Final = 2**31
_MOST_PARAMETERS: Final = 10**15


class Split(StrEnum):
    """How tensor parallelism divides a parameter."""

    NONE = "none"
    COLUMN = "column"
    ROW = "row"


class Part(StrEnum):
    """Where a parameter is used, in the order of the forward pass."""

    EMBEDDING = "embedding"
    LAYER = "layer"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """One parameter: ``rows`` x ``columns`` elements (a vector has one column).

    is_linear: the weight of a linear map, from ``columns`` inputs to ``rows`` outputs.
    is_expert: belongs to the experts, of which a token visits only some.
    """

    name: str
    rows: int
    columns: int = 1
    split: Split = Split.NONE
    is_linear: bool = False
    is_expert: bool = False

    @property
    def num_elements(self) -> int:
        return self.rows * self.columns

    def elements_per_rank(self, tp: int) -> int:
        """Elements one of ``tp`` tensor-parallel ranks holds."""
        return self.num_elements if self.split is Split.NONE else -(-self.num_elements // tp)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Parameters and widths of one model.

    embeddings, layer, head: tensors in the order the model registers them; ``layer`` is one of
    ``num_layers`` equal layers; ``head`` is what follows them, without a tied output matrix.
    query_width, key_value_width: heads, and key/value heads, times the head width.
    dropouts: rates of the embedding, attention and residual dropouts.
    autotp: whether DeepSpeed's AutoTP is known to split this family.
    num_experts, experts_per_token: 0 without experts; with them ``intermediate_size`` is one expert's.
    is_encoder: trained to fill in masked tokens, not to continue a text.
    has_output_matrix: tied or not; without it the head is a map to a few scores.
    attention_window: positions attended to at most, where the family limits them.
    """

    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    tied_embeddings: bool
    embeddings: tuple[ParameterTensor, ...]
    layer: tuple[ParameterTensor, ...]
    head: tuple[ParameterTensor, ...]
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    autotp: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    is_encoder: bool = False
    has_output_matrix: bool = True
    attention_window: int | None = None

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def has_dropout(self) -> bool:
        return max(self.embedding_dropout, self.attention_dropout, self.residual_dropout) > 0

    @cached_property
    def num_parameters(self) -> int:
        """Every parameter once; tied weights count once."""
        outer = sum(each.num_elements for each in (*self.embeddings, *self.head))
        return outer + self.num_layers * sum(each.num_elements for each in self.layer)

    @cached_property
    def num_inactive_parameters(self) -> int:
        """Parameters of the experts that a token does not visit."""
        if not self.num_experts:
            return 0
        experts = sum(each.num_elements for each in self.layer if each.is_expert)
        return self.num_layers * experts * (self.num_experts - self.experts_per_token) // self.num_experts

    @property
    def num_tensors(self) -> int:
        return len(self.embeddings) + self.num_layers * len(self.layer) + len(self.head)

    def all_tensors(self) -> tuple[tuple[Part, ParameterTensor], ...]:
        """Every parameter in registration order."""
        layers = tuple((Part.LAYER, each) for each in self.layer) * self.num_layers
        return (
            *((Part.EMBEDDING, each) for each in self.embeddings),
            *layers,
            *((Part.HEAD, each) for each in self.head),
        )

    def parameters_per_rank(self, tp: int) -> int:
        """Elements one tensor-parallel rank holds (embeddings and norms are not divided)."""
        return sum(each.elements_per_rank(tp) for _, each in self.all_tensors())

    def flops_shape(self, num_trainable: int | None = None) -> FlopsShape:
        """What the FLOP count needs; ``num_trainable`` defaults to all parameters."""
        trainable = self.num_parameters if num_trainable is None else num_trainable
        return FlopsShape(
            num_parameters=self.num_parameters,
            num_trainable=trainable,
            num_inactive=self.num_inactive_parameters,
            num_layers=self.num_layers,
            attention_width=self.query_width,
        )


def checked_shape(shape: ModelShape) -> ModelShape:
    """``shape``, whose numbers a config may have given as anything. Raises ValueError naming what is no such number."""
    widths = {name: getattr(shape, name) for name in _WIDTHS}
    for each in (*shape.embeddings, *shape.layer, *shape.head):
        widths |= {f"rows of {each.name}": each.rows, f"columns of {each.name}": each.columns}
    for name, value in widths.items():
        _check_whole(name, value, 1, _WIDEST)
    _check_whole("the number of layers", shape.num_layers, 1, _MOST_LAYERS)
    for name in ("max_positions", "num_experts", "experts_per_token"):
        _check_whole(name, getattr(shape, name), 0, _WIDEST)
    if shape.attention_window is not None:
        _check_whole("attention_window", shape.attention_window, 1, _WIDEST)
    for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
        if not 0 <= getattr(shape, name) <= 1:
            raise ValueError(f"{name} = {getattr(shape, name)!r} is not between 0 and 1")
    _check_whole("the number of parameters", shape.num_parameters, 1, _MOST_PARAMETERS)
    return shape


_WIDTHS: Final = (
    "hidden_size",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} = {value!r} is not a whole number from {least} to {most}")
