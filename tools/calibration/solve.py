"""From traces of small models to coefficients: one linear system for each case.

The bytes held after each operation are linear in the widths, so one least-squares solution for
each operation gives its coefficients exactly; a solution that leaves a residual is an error.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, ActivationSetting, Loss, TokenBytes
from frenzy.core.models.module_tree import MODULE_TREE
from frenzy.core.models.shape import SUPPORTED_FAMILIES, ModelShape, model_shape
from frenzy.trainer.model.list_modules import module_tree
from frenzy.trainer.trace.held_bytes import ActivationTrace, trace_activations
from tools.calibration.families import NUM_EXPERTS, NUM_LAYERS, SIZES, Family, small_config
from tools.calibration.models import (
    ADAPTER_RANKS,
    built,
    full_config,
    given_routing,
    loops_over_experts,
    random_counts,
)

Floats = NDArray[np.float64]

_DRAWN_MODELS: Final = 150
_CHECKS: Final = 6
# Of a vector, the part that earlier ones do not explain, as a share of its length.
_INDEPENDENT: Final = 1e-6
_TOLERATED_RESIDUAL: Final = 1e-5
# Not 1: a dimension of one element makes copies into views.
_PRODUCTS: Final = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
_BATCHES: Final = (2, 3, 4)
_SNAP: Final = 0.02
_WIDTHS: Final = tuple(each.name for each in fields(TokenBytes))
_BY_EXPERT: Final = ("hidden", "intermediate")


@dataclass(frozen=True, slots=True)
class Case:
    """One set of coefficients to find."""

    family: Family
    setting: ActivationSetting
    attention_dropout: bool = False
    hidden_dropout: bool = False


@dataclass(frozen=True, slots=True)
class _Draw:
    """A random small model and batch that may be traced, and the products its bytes may be linear in."""

    config: Any
    shape: ModelShape
    tokens: int
    length: int
    adapter_rank: int
    adapter_elements: int
    counts: tuple[int, ...]

    @property
    def by_tokens(self) -> dict[str, float]:
        return _token_products(self)

    @property
    def by_weights(self) -> dict[str, float]:
        return _weight_products(self)

    @property
    def products(self) -> list[float]:
        return [*self.by_tokens.values(), *self.by_weights.values()]


def solve(case: Case, *, seed: int = 0) -> ActivationCoefficients:
    """The coefficients of ``case``; raises ValueError when the bytes are not linear in the widths."""
    generator = random.Random(seed)
    draws = _telling([_draw(case, generator) for _ in range(_DRAWN_MODELS)])
    traces = [_traced(case, each) for each in draws]
    if any(len(each.live_bytes) != len(traces[0].live_bytes) for each in traces):
        raise ValueError(f"{case}: the number of operations depends on the widths")
    return _coefficients(case, draws, traces)


def _draw(case: Case, generator: random.Random) -> _Draw:
    sizes = SIZES[case.setting.kind]
    given = small_config(
        case.family,
        sizes,
        generator,
        hidden_dropout=case.hidden_dropout,
        attention_dropout=case.attention_dropout,
    )
    config = full_config(given)
    shape = _shape(config)
    batch, length = generator.choice(_BATCHES), generator.choice(sizes.lengths)
    rank = generator.choice(ADAPTER_RANKS) if case.setting.adapters else 0
    adapted = len(case.setting.adapters.targets) if case.setting.adapters else 0
    counts = _counts(shape, batch * length, generator)
    return _Draw(config, shape, batch * length, length, rank, rank * adapted, counts)


def _shape(config: Any) -> ModelShape:
    """By its family's reader, or by the parameters of the module itself."""
    document = config.to_dict()
    if document["model_type"] not in SUPPORTED_FAMILIES:
        document[MODULE_TREE] = module_tree(config)
    return model_shape(document)


def _telling(draws: list[_Draw]) -> list[_Draw]:
    """The fewest and smallest draws that tell all products apart, and some more to check the solution by."""
    draws = sorted(draws, key=lambda each: each.tokens * each.shape.num_parameters)
    products = np.asarray([each.products for each in draws])
    rows = _adding_rank(products / np.abs(products).max(axis=0))
    others = [index for index in range(len(draws)) if index not in set(rows)]
    return [draws[index] for index in (*rows, *others[:: max(1, len(others) // _CHECKS)])]


def _adding_rank(rows: Floats) -> list[int]:
    """Rows none of which is a combination of earlier ones: Gram and Schmidt."""
    basis = np.zeros((0, rows.shape[1]))
    kept: list[int] = []
    for index, row in enumerate(rows):
        rest = row - basis.T @ (basis @ row)
        rest = rest - basis.T @ (basis @ rest)
        length = float(np.linalg.norm(rest))
        if length > _INDEPENDENT * float(np.linalg.norm(row)):
            basis = np.vstack([basis, rest / length])
            kept.append(index)
    return kept


def _traced(case: Case, draw: _Draw) -> ActivationTrace:
    torch.manual_seed(0)
    counts, per_token = draw.counts, draw.shape.experts_per_token
    with built(case.family, draw.config, case.setting, adapter_rank=draw.adapter_rank) as model:
        inputs = torch.zeros((draw.tokens // draw.length, draw.length), dtype=torch.long)
        with given_routing(counts, per_token) if counts else contextlib.nullcontext():
            return trace_activations(model, inputs, case.setting, call=_without_products)


def _without_products(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As torch does it, but for products of matrices: they take longest, and no size depends on what is in them."""
    if func in _PRODUCTS:
        left, right = args[-2:]
        return left.new_zeros((*left.shape[:-1], right.shape[-1]))
    return func(*args, **kwargs)


def _counts(shape: ModelShape, tokens: int, generator: random.Random) -> tuple[int, ...]:
    """Visits of each expert, where a release takes one after the other."""
    if not (shape.num_experts and loops_over_experts()):
        return ()
    return tuple(random_counts(tokens, shape.experts_per_token, generator))


def _token_products(drawn: _Draw) -> dict[str, float]:
    """What grows with the tokens, by the name of its coefficient."""
    shape = drawn.shape
    widths: dict[str, float] = {
        "hidden": shape.hidden_size,
        "query": shape.query_width,
        "key_value": shape.key_value_width,
        "intermediate": 0 if shape.num_experts else shape.intermediate_size,
        "heads": shape.num_heads,
        "key_value_heads": shape.num_key_value_heads,
        "scores": shape.num_heads * drawn.length,
        "vocab": shape.vocab_size,
        "constant": 1,
    }
    if shape.num_experts and not drawn.counts:
        active = shape.experts_per_token
        widths |= {
            "active_experts": active,
            "expert_hidden": active * shape.hidden_size,
            "expert_intermediate": active * shape.intermediate_size,
        }
    if drawn.adapter_elements:
        widths["adapter_rank"] = drawn.adapter_elements
    products = {name: float(drawn.tokens * width) for name, width in widths.items() if width}
    for expert, visits in enumerate(drawn.counts):
        products[f"active:{expert}"] = float(visits)
        products[f"hidden:{expert}"] = float(visits * shape.hidden_size)
        products[f"intermediate:{expert}"] = float(visits * shape.intermediate_size)
    return products


def _weight_products(drawn: _Draw) -> dict[str, float]:
    """What does not grow with the batch: weights and their gradients, positions, masks."""
    shape = drawn.shape
    hidden, query, key_value = shape.hidden_size, shape.query_width, shape.key_value_width
    products = {
        "hidden query": hidden * query,
        "hidden key_value": hidden * key_value,
        "hidden intermediate": hidden * shape.intermediate_size,
        "hidden vocab": hidden * shape.vocab_size,
        "hidden hidden": hidden * hidden,
        "hidden": hidden,
        "query": query,
        "key_value": key_value,
        "intermediate": shape.intermediate_size,
        "vocab": shape.vocab_size,
        "head_dim": shape.head_dim,
        "heads": shape.num_heads,
        "length hidden": drawn.length * hidden,
        "length head_dim": drawn.length * shape.head_dim,
        "length length": drawn.length**2,
        "length heads": drawn.length * shape.num_heads,
        "length": drawn.length,
        # one mask for all heads of a sequence, once for all layers: nothing beside the scores
        "tokens length": drawn.tokens * drawn.length,
        # releases that shift labels cut the logits of each sequence's last token off
        "sequences vocab": drawn.tokens // drawn.length * shape.vocab_size,
        "sequences": drawn.tokens // drawn.length,
        "one": 1,
    }
    rank = drawn.adapter_elements
    widths = (hidden, query, key_value, shape.intermediate_size)
    adapters = {f"rank {index}": rank * width for index, width in enumerate(widths)} if rank else {}
    return {name: float(value) for name, value in (products | adapters).items()}


@dataclass(frozen=True, slots=True)
class _Solution:
    """Coefficients by the product's name, one for each operation, and a last one for what is kept."""

    by_tokens: Mapping[str, Floats]
    by_weights: Mapping[str, Floats]


def _least_squares(case: Case, draws: list[_Draw], traces: list[ActivationTrace]) -> _Solution:
    products = np.asarray([each.products for each in draws])
    live = np.asarray([(*each.live_bytes, each.kept_bytes) for each in traces], dtype=np.float64)
    independent = _independent_columns(products)
    scale = np.abs(products[:, independent]).max(axis=0)
    found = np.linalg.lstsq(products[:, independent] / scale, live, rcond=None)[0] / scale[:, None]
    residual = np.abs(products[:, independent] @ found - live).max() / live.max()
    if residual > _TOLERATED_RESIDUAL:
        raise ValueError(f"{case}: bytes are not linear in the widths, relative residual {residual:.2e}")
    solution = np.zeros((products.shape[1], live.shape[1]))
    solution[independent] = found
    names, num_tokens = draws[0].by_tokens, len(draws[0].by_tokens)
    return _Solution(
        dict(zip(names, solution[:num_tokens], strict=True)),
        dict(zip(draws[0].by_weights, solution[num_tokens:], strict=True)),
    )


def _independent_columns(products: Floats) -> list[int]:
    """Columns that add rank; where widths coincide in a family, the first of them stands for all."""
    return _adding_rank((products / np.abs(products).max(axis=0)).T)


def _coefficients(case: Case, draws: list[_Draw], traces: list[ActivationTrace]) -> ActivationCoefficients:
    solution, trace = _least_squares(case, draws, traces), traces[0]
    before, after = trace.layer_ends[-2] - 1, trace.layer_ends[-1] - 1
    by_tokens = np.asarray(list(solution.by_tokens.values()))
    layer = by_tokens[:, after] - by_tokens[:, before]
    outside = by_tokens[:, -1] - NUM_LAYERS * layer
    above = by_tokens[:, :-1] - (NUM_LAYERS * layer + outside)[:, None]
    names = tuple(solution.by_tokens)
    return ActivationCoefficients(
        family=case.family.model_type,
        precision=case.setting.precision,
        checkpointing=case.setting.checkpointing,
        attention_dropout=case.attention_dropout,
        hidden_dropout=case.hidden_dropout,
        layer=_token_bytes(_by_width(names, layer[:, None])[0]),
        outside=_token_bytes(_by_width(names, outside[:, None])[0]),
        in_loss=_highest(_by_width(names, above[:, before + 1 : trace.head_end])),
        in_backward=_highest(_by_width(names, above[:, trace.head_end :])),
        weight_copies=_weight_copies(case, solution.by_weights, before, after),
        head_copies=_head_copies(case, solution.by_weights),
        kind=case.setting.kind,
        attention=case.setting.attention,
        loss=case.setting.loss,
        adapters=case.setting.adapters,
    )


def _weight_copies(case: Case, by_weights: Mapping[str, Floats], before: int, after: int) -> float:
    """Bytes kept for each element of a layer's linear maps, from those of the MLP (or, with experts, of attention)."""
    maps = 3 if case.family.grouped and case.family.model_type != "phi" else 2
    column = by_weights["hidden intermediate"]
    if case.family.num_experts is not None:
        maps, column = 2, by_weights["hidden query"]
    return _rounded((column[after] - column[before]) / maps)


def _head_copies(case: Case, by_weights: Mapping[str, Floats]) -> float:
    """Bytes for each element of the output matrix that the fused loss keeps: its gradient, and a copy."""
    return _rounded(by_weights["hidden vocab"][-1]) if case.setting.loss is Loss.FUSED else 0.0


def _by_width(names: tuple[str, ...], columns: Floats) -> Floats:
    """[operations, widths]: rows in the order of TokenBytes; experts taken together by ``_together``."""
    given = dict(zip(names, columns, strict=True))
    found = {name: value for name, value in given.items() if ":" not in name}
    if "active:0" in given:
        found["active_experts"] = np.max([given[f"active:{each}"] for each in range(NUM_EXPERTS)], axis=0)
        for width in _BY_EXPERT:
            every = np.asarray([given[f"{width}:{each}"] for each in range(NUM_EXPERTS)])
            found[f"expert_{width}"], found[f"busiest_{width}"] = _together(every)
    zeros = np.zeros(columns.shape[1])
    return np.stack([found.get(name, zeros) for name in _WIDTHS], axis=1)


def _together(every: Floats) -> tuple[Floats, Floats]:
    """(bytes of each visit of any expert, bytes of the busiest expert's beyond): never too few.

    With c the experts' coefficients, c1 >= c2 >= ..., and n their visits: sum of c*n is at most
    c2 * (all visits) + (c1 - c2) * (visits of the busiest).
    """
    ordered = np.sort(every, axis=0)
    return ordered[-2], ordered[-1] - ordered[-2]


def _highest(rows: Floats) -> tuple[TokenBytes, ...]:
    """The operations that hold more than every other one for some model."""
    rounded = np.unique(np.asarray([[_rounded(value) for value in row] for row in rows]), axis=0)
    outdone = [
        any((other >= row).all() for position, other in enumerate(rounded) if position != index)
        for index, row in enumerate(rounded)
    ]
    candidates = rounded[~np.asarray(outdone)]
    return tuple(_token_bytes(row) for row in candidates[_ever_highest(candidates)])


_PLAUSIBLE_MODELS: Final = 4000
_NEGLIGIBLE: Final = 1e-3


def _ever_highest(rows: Floats) -> list[int]:
    """Rows that are the highest, by more than a thousandth, for one of many plausible models."""
    values = _plausible_widths() @ rows.T
    reference = np.abs(values).max(axis=1)
    kept: list[int] = []
    best = np.full(len(values), -np.inf)
    while True:
        lacking = (values.max(axis=1) - best) / reference
        worst = int(lacking.argmax())
        if kept and lacking[worst] <= _NEGLIGIBLE:
            return sorted(kept)
        kept.append(int(values[worst].argmax()))
        best = np.maximum(best, values[:, kept[-1]])


def _plausible_widths() -> Floats:
    """[models, widths]: from toys to the largest published, drawn from a fixed seed."""
    generator = np.random.default_rng(0)

    def between(low: float, high: float) -> Floats:
        drawn: Floats = np.exp(generator.uniform(np.log(low), np.log(high), _PLAUSIBLE_MODELS))
        return drawn

    hidden = between(64, 20_000)
    query = hidden * between(0.5, 4)
    heads = np.maximum(1.0, query / between(16, 256))
    groups = np.minimum(heads, between(1, 64))
    inner, active = hidden * between(0.5, 10), between(1, 9)
    load = between(0.05, 1.0)
    widths: dict[str, Floats | float] = {
        "hidden": hidden,
        "query": query,
        "key_value": query / groups,
        "intermediate": inner,
        "heads": heads,
        "key_value_heads": heads / groups,
        "scores": heads * between(64, 33_000),
        "vocab": between(256, 300_000),
        "constant": 1.0,
        "experts": between(4, 256),
        "active_experts": active,
        "expert_hidden": active * hidden,
        "expert_intermediate": active * inner,
        "busiest_hidden": load * hidden,
        "busiest_intermediate": load * inner,
        "adapter_rank": between(4, 512),
    }
    return np.stack([np.broadcast_to(widths[name], _PLAUSIBLE_MODELS) for name in _WIDTHS], axis=1)


def _token_bytes(values: Floats) -> TokenBytes:
    return TokenBytes(**{name: _rounded(value) for name, value in zip(_WIDTHS, values, strict=True)})


def _rounded(value: Any) -> float:
    """To the nearest eighth when it is that close (bytes and masks are), else three digits."""
    eighth = round(float(value) * 8) / 8
    return (eighth if abs(float(value) - eighth) < _SNAP else round(float(value), 3)) + 0.0
