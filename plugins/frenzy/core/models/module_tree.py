"""The shape of a model of an unknown family, read from the parameters its module registers.

The parameters come with the config, under ``MODULE_TREE``: whoever can build the module (on torch's
meta device, without memory) lists them. They must be embeddings, layers and a head. The layers must be equal,
or come again and again in the same order; the first few may differ, and count with the embeddings.
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
# Why there is none: what the library said.
TREE_PROBLEM: Final = "module_tree_problem"
_IN_LAYER: Final = re.compile(r"^(?P<stack>.*?)\.(?P<index>\d+)\.(?P<name>.+)$")
_NAME: Final = re.compile(r"\S{1,256}")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KEY_VALUE_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
_INNER: Final = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k")
_OF_EXPERTS: Final = re.compile(r"(^|\.)experts\.")
_MOST_FIRST: Final = 8
_LONGEST_PERIOD: Final = 8
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
        is_expert = _OF_EXPERTS.search(self.name) is not None
        name = name.removesuffix(".weight") if self.is_linear else name  # a map is called by its module
        return ParameterTensor(name, rows, columns, is_linear=self.is_linear, is_expert=is_expert)


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """How the layers of a module follow each other: ``first`` of their own, then ``repeats`` times ``period``."""

    stack: str
    first: int
    period: int
    repeats: int


def layer_pattern(rows: Iterable[Sequence[Any]]) -> LayerPattern:
    """The pattern in a module's parameters, listed as for ``shape_of_tree``. Raises ValueError where there is none."""
    return _pattern(tuple(_parameter(each) for each in rows))


def shape_of_tree(config: Config) -> ModelShape:
    """The shape of the module whose parameters ``config[MODULE_TREE]`` lists as [name, dimensions, is linear].

    Raises ValueError saying what keeps them from being embeddings, equal layers and a head.
    """
    parameters = tuple(_parameter(each) for each in config[MODULE_TREE])
    pattern = _pattern(parameters)
    before, layers, after = _parts(parameters, pattern.stack)
    first = [each.tensor(each.name) for layer in layers[: pattern.first] for each in layer]
    layer = _repeated(layers[pattern.first :][: pattern.period])
    table = next((each for each in before if len(each.dimensions) == 2), None)
    if table is None:
        raise ValueError(f"no embedding comes before the layers {pattern.stack}.*")
    vocab, hidden = table.dimensions
    heads = _first(config, _HEADS)
    if heads is None or (hidden % heads and not config.get("head_dim")):
        raise ValueError(f"no field of {', '.join(_HEADS)} gives heads that divide the width {hidden}")
    experts, per_token = _first(config, _EXPERTS), _first(config, _EXPERTS_PER_TOKEN)
    if not (experts and per_token and any(each.is_expert for each in layer)):
        experts = per_token = None
    return ModelShape(
        family=str(config["model_type"]),
        num_layers=pattern.repeats,
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=_first(config, _KEY_VALUE_HEADS) or heads,
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate_size=_first(config, _INNER) or _widest(layer, hidden),
        vocab_size=vocab,
        max_positions=_first(config, _POSITIONS) or 0,
        tied_embeddings=not any(each.dimensions == (vocab, hidden) for each in after),
        embeddings=(*(each.tensor(each.name) for each in before), *first),
        layer=layer,
        head=tuple(each.tensor(each.name) for each in after),
        attention_dropout=_largest(config, _ATTENTION_DROPOUTS),
        residual_dropout=_largest(config, _HIDDEN_DROPOUTS),
        num_experts=experts or 0,
        experts_per_token=min(per_token or 0, experts or 0),
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


_Layers = list[list[_Parameter]]


def _parts(parameters: tuple[_Parameter, ...], stack: str) -> tuple[list[_Parameter], _Layers, list[_Parameter]]:
    """(before the layers, each layer's, after them)."""
    positions = [index for index, each in enumerate(parameters) if _is_in(each, stack)]
    if len(positions) != positions[-1] - positions[0] + 1:
        raise ValueError(f"parameters of the layers {stack}.* are mixed with others")
    own = parameters[positions[0] : positions[-1] + 1]
    layers = [list(members) for _, members in groupby(own, key=lambda each: _IN_LAYER.sub(r"\g<index>", each.name))]
    return list(parameters[: positions[0]]), layers, list(parameters[positions[-1] + 1 :])


def _in_layer(parameter: _Parameter) -> ParameterTensor:
    return parameter.tensor(_IN_LAYER.sub(r"\g<name>", parameter.name))


def _pattern(parameters: tuple[_Parameter, ...]) -> LayerPattern:
    """The pattern with the fewest layers to tell."""
    stack = _largest_stack(parameters)
    layers = [tuple(_in_layer(each) for each in layer) for layer in _parts(parameters, stack)[1]]
    found = [
        LayerPattern(stack, first, period, (len(layers) - first) // period)
        for first in range(min(_MOST_FIRST, len(layers)))
        for period in range(1, _LONGEST_PERIOD + 1)
        if _comes_again(layers[first:], period, alone=first == 0)
    ]
    if not found:
        raise ValueError(f"the layers {stack}.* are neither alike nor come again in the same order")
    return min(found, key=lambda each: each.first + each.period)


def _comes_again(layers: Sequence[object], period: int, *, alone: bool) -> bool:
    """Whether the first ``period`` of ``layers`` are repeated to the end; one layer is a pattern if it is ``alone``."""
    enough = len(layers) >= 2 * period or (alone and len(layers) == 1 == period)
    return enough and len(layers) % period == 0 and all(each == layers[at % period] for at, each in enumerate(layers))


def _repeated(layers: _Layers) -> tuple[ParameterTensor, ...]:
    """What is repeated, as one layer: names begin with the layer's place in it where there are several."""
    if len(layers) == 1:
        return tuple(_in_layer(each) for each in layers[0])
    named = ((f"{at}.{_in_layer(each).name}", each) for at, layer in enumerate(layers) for each in layer)
    return tuple(each.tensor(name) for name, each in named)


def _first(config: Config, names: Iterable[str]) -> int | None:
    found = (config.get(name) for name in names)
    return next((each for each in found if isinstance(each, int) and not isinstance(each, bool) and each > 0), None)


def _widest(layer: Iterable[ParameterTensor], hidden: int) -> int:
    return max((max(each.rows, each.columns) for each in layer if each.is_linear), default=hidden)


def _largest(config: Mapping[str, Any], names: Iterable[str]) -> float:
    rates = (config.get(name) for name in names)
    return max((float(each) for each in rates if isinstance(each, int | float)), default=0.0)
