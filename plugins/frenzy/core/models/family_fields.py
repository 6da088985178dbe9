"""What the family readers share: fields of a Hugging Face config, and the tensors of common modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from frenzy.core.models.parameters import ModelShape, ParameterTensor, Split

Config = Mapping[str, Any]


class Names(NamedTuple):
    """How a family's config calls its sizes."""

    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    positions: str = "max_position_embeddings"


_USUAL: Final = Names()


def sizes_of(
    config: Config,
    names: Names = _USUAL,
    *,
    inner: int | None,
    tied: bool,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> ModelShape:
    """The sizes of a model, without its tensors. Raises KeyError, ValueError.

    inner: of the MLP, 4 x hidden by default. tied: where the config does not say. kv_heads: all heads by default.
    """
    hidden, heads = integer(config, names.hidden), integer(config, names.heads)
    if head_dim is None and hidden % heads:
        raise ValueError(f"hidden size {hidden} is not a multiple of {heads} heads")
    return ModelShape(
        family=str(config["model_type"]),
        num_layers=integer(config, names.layers),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=kv_heads or heads,
        head_dim=hidden // heads if head_dim is None else head_dim,
        intermediate_size=inner or 4 * hidden,
        vocab_size=integer(config, "vocab_size"),
        max_positions=integer(config, names.positions),
        tied_embeddings=bool(config.get("tie_word_embeddings", tied)),
        embeddings=(),
        layer=(),
        head=(),
    )


def linear(name: str, inputs: int, outputs: int, split: Split, *, bias: bool) -> list[ParameterTensor]:
    """A linear map's weight and, with ``bias``, its bias (a row-split map's bias is not divided)."""
    weight = ParameterTensor(name, outputs, inputs, split, is_linear=True)
    bias_split = Split.COLUMN if split is Split.COLUMN else Split.NONE
    return [weight, ParameterTensor(f"{name}.bias", outputs, 1, bias_split)] if bias else [weight]


def layer_norm(name: str, width: int, *, bias: bool = True) -> list[ParameterTensor]:
    return [ParameterTensor(name, width), *([ParameterTensor(f"{name}.bias", width)] if bias else [])]


def embedding(name: str, rows: int, width: int) -> ParameterTensor:
    return ParameterTensor(name, rows, width)


def integer(config: Config, name: str) -> int:
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} = {value!r} is not a positive whole number")
    return value


def output_matrix(sizes: ModelShape, *, bias: bool = False) -> list[ParameterTensor]:
    """The output matrix, when it is not the embedding itself."""
    weight = ParameterTensor("lm_head", sizes.vocab_size, sizes.hidden_size, is_linear=True)
    weights = [] if sizes.tied_embeddings else [weight]
    return [*weights, *([ParameterTensor("lm_head.bias", sizes.vocab_size)] if bias else [])]


def refuse(config: Config, fields: Mapping[str, Any]) -> None:
    """Refuse fields whose value is neither absent, empty nor the one that is covered.

    Raises ValueError naming the field, its value and the covered one.
    """
    for name, covered in fields.items():
        value = config.get(name)
        if value not in (None, covered):
            raise ValueError(f"{name} = {value!r} is not covered, only {covered!r} is")
