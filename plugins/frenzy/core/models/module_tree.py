"""The shape of a model of an unknown family, read from the parameters its module registers.

The parameters come with the config, under ``MODULE_TREE``: whoever can build the module (on torch's
meta device, without memory) lists them. They must be embeddings, equal layers and a head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any, Final

from frenzy.core.models.family_fields import Config
from frenzy.core.models.parameters import ModelShape, ParameterTensor

MODULE_TREE: Final = "module_tree"
_IN_LAYER: Final = re.compile(r"^(?P<stack>.*?)\.(?P<index>\d+)\.(?P<name>.+)$")
_NAME: Final = re.compile(r"\S{1,256}")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KEY_VALUE_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_INNER: Final = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff")
_ATTENTION_DROPOUTS: Final = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
_HIDDEN_DROPOUTS: Final = ("hidden_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob", "dropout")


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    dimensions: tuple[int, ...]
    is_linear: bool

    def tensor(self, name: str) -> ParameterTensor:
        rows = prod(self.dimensions[:-1]) if len(self.dimensions) > 1 else prod(self.dimensions)
        columns = self.dimensions[-1] if len(self.dimensions) > 1 else 1
        return ParameterTensor(name, rows, columns, is_linear=self.is_linear)


def shape_of_tree(config: Config) -> ModelShape:
    """The shape of the module whose parameters ``config[MODULE_TREE]`` lists as [name, dimensions, is linear].

    Raises ValueError saying what keeps them from being embeddings, equal layers and a head.
    """
    parameters = tuple(_parameter(each) for each in config[MODULE_TREE])
    stack = _largest_stack(parameters)
    layers = _layers(parameters, stack)
    positions = [index for index, each in enumerate(parameters) if _is_in(each, stack)]
    before, after = parameters[: positions[0]], parameters[positions[-1] + 1 :]
    if len(positions) != positions[-1] - positions[0] + 1:
        raise ValueError(f"parameters of the layers {stack}.* are mixed with others")
    table = next((each for each in before if len(each.dimensions) == 2), None)
    if table is None:
        raise ValueError(f"no embedding comes before the layers {stack}.*")
    vocab, hidden = table.dimensions
    heads = _first(config, _HEADS)
    if heads is None or hidden % heads:
        raise ValueError(f"no field of {', '.join(_HEADS)} gives heads that divide the width {hidden}")
    return ModelShape(
        family=str(config["model_type"]),
        num_layers=len(layers),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=_first(config, _KEY_VALUE_HEADS) or heads,
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate_size=_first(config, _INNER) or _widest(layers[0], hidden),
        vocab_size=vocab,
        max_positions=_first(config, _POSITIONS) or 0,
        tied_embeddings=not any(each.dimensions == (vocab, hidden) for each in after),
        embeddings=tuple(each.tensor(each.name) for each in before),
        layer=tuple(layers[0]),
        head=tuple(each.tensor(each.name) for each in after),
        attention_dropout=_largest(config, _ATTENTION_DROPOUTS),
        residual_dropout=_largest(config, _HIDDEN_DROPOUTS),
    )


def _parameter(row: Sequence[Any]) -> _Parameter:
    """Raises ValueError, or TypeError for what is none."""
    name, sizes, linear = row
    if not _NAME.fullmatch(name) or any(type(each) is not int or each < 0 for each in sizes):
        raise ValueError(f"{str(name)[:80]!r} of {str(sizes)[:80]} is no parameter")
    return _Parameter(name, tuple(sizes), bool(linear))


def _is_in(parameter: _Parameter, stack: str) -> bool:
    found = _IN_LAYER.match(parameter.name)
    return found is not None and found["stack"] == stack


def _largest_stack(parameters: Iterable[_Parameter]) -> str:
    """The numbered list of modules that holds the most."""
    elements: dict[str, int] = {}
    for each in parameters:
        found = _IN_LAYER.match(each.name)
        if found is not None:
            elements[found["stack"]] = elements.get(found["stack"], 0) + prod(each.dimensions)
    if not elements:
        raise ValueError("the module has no numbered layers")
    return max(elements, key=lambda stack: elements[stack])


def _layers(parameters: Sequence[_Parameter], stack: str) -> list[list[ParameterTensor]]:
    """The tensors of each layer; all layers must have the same."""

    def index_of(parameter: _Parameter) -> str:
        found = _IN_LAYER.match(parameter.name)
        assert found is not None
        return found["index"]

    own = [each for each in parameters if _is_in(each, stack)]
    layers = []
    for _, members in groupby(own, key=index_of):
        layers.append([each.tensor(_IN_LAYER.sub(r"\g<name>", each.name)) for each in members])
    for number, layer in enumerate(layers):
        if layer != layers[0]:
            raise ValueError(f"layer {number} of {stack} is not like the first")
    return layers


def _first(config: Config, names: Iterable[str]) -> int | None:
    found = (config.get(name) for name in names)
    return next((each for each in found if isinstance(each, int) and not isinstance(each, bool) and each > 0), None)


def _widest(layer: Iterable[ParameterTensor], hidden: int) -> int:
    return max((max(each.rows, each.columns) for each in layer if each.is_linear), default=hidden)


def _largest(config: Mapping[str, Any], names: Iterable[str]) -> float:
    rates = (config.get(name) for name in names)
    return max((float(each) for each in rates if isinstance(each, int | float)), default=0.0)
