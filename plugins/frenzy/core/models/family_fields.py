"""What the family readers share: fields of a Hugging Face config, and the tensors of common modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frenzy.core.models.parameters import ParameterTensor, Split

Config = Mapping[str, Any]


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


def head_dim_of(config: Config, hidden: int, heads: int) -> int:
    given = config.get("head_dim")
    if given is not None:
        return int(given)
    if hidden % heads:
        raise ValueError(f"hidden size {hidden} is not a multiple of {heads} heads")
    return hidden // heads


def output_matrix(vocab: int, hidden: int, *, tied: bool, bias: bool = False) -> list[ParameterTensor]:
    """The output matrix, when it is not the embedding itself."""
    weight = [] if tied else [ParameterTensor("lm_head", vocab, hidden, is_linear=True)]
    return [*weight, *([ParameterTensor("lm_head.bias", vocab)] if bias else [])]


def refuse(config: Config, fields: Mapping[str, Any]) -> None:
    """Refuse fields whose value is neither absent, empty nor the one that is covered.

    Raises ValueError naming the field, its value and the covered one.
    """
    for name, covered in fields.items():
        value = config.get(name)
        if value not in (None, covered):
            raise ValueError(f"{name} = {value!r} is not covered, only {covered!r} is")
