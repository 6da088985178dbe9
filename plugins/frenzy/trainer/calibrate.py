"""Generates the calibration of the memory model.

    python -m frenzy.trainer.calibrate OUTPUT                      coefficients of activations
    python -m frenzy.trainer.measure --output DATA ...             real peaks of a grid of jobs
    python -m frenzy.trainer.calibrate OUTPUT --measured DATA      memory outside tensors
                                                                   (--measured may be repeated)

Each family is traced on a few dozen tiny models of random widths. The bytes held after each
operation are linear in the widths, so one least-squares solution for each operation gives its
coefficients exactly; a solution that leaves a residual is an error, not a fit.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from frenzy.core import codec
from frenzy.core.hardware import DeviceKind
from frenzy.core.job import Precision
from frenzy.core.memory_calibration import ActivationCoefficients, Calibration, OutsideBytes, TokenBytes
from frenzy.core.model_shape import ModelShape, model_shape
from frenzy.trainer.activation_trace import ActivationTrace, trace_activations
from frenzy.trainer.measure import Measurement, replayed

Config = Mapping[str, Any]
Floats = NDArray[np.float64]

PRECISIONS: Final = (Precision.FP32, Precision.BF16, Precision.AUTOCAST_BF16)
_NUM_MODELS: Final = 34
_NUM_LAYERS: Final = 2
_TOLERATED_RESIDUAL: Final = 1e-5
_DROPOUT: Final = 0.1
_WIDTHS: Final = (
    "hidden",
    "query",
    "key_value",
    "intermediate",
    "heads",
    "key_value_heads",
    "scores",
    "vocab",
    "constant",
)


@dataclass(frozen=True, slots=True)
class Family:
    """How to make small configs of one model type.

    own_head_dim: the head width is free of the hidden size. grouped: fewer key/value heads.
    hidden_dropouts, attention_dropouts: config fields; none where the family has no dropout.
    """

    model_type: str
    names: tuple[str, str, str, str]
    hidden_dropouts: tuple[str, ...] = ()
    attention_dropouts: tuple[str, ...] = ()
    own_head_dim: bool = False
    grouped: bool = False


_USUAL: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
FAMILIES: Final = (
    Family("gpt2", ("n_embd", "n_layer", "n_head", "n_inner"), ("resid_pdrop", "embd_pdrop"), ("attn_pdrop",)),
    Family("llama", _USUAL, (), ("attention_dropout",), own_head_dim=True, grouped=True),
    Family("mistral", _USUAL, (), ("attention_dropout",), own_head_dim=True, grouped=True),
    Family("qwen2", _USUAL, (), ("attention_dropout",), own_head_dim=False, grouped=True),
    Family("qwen3", _USUAL, (), ("attention_dropout",), own_head_dim=True, grouped=True),
    Family("gemma", _USUAL, (), ("attention_dropout",), own_head_dim=True, grouped=True),
    Family("phi", _USUAL, ("resid_pdrop", "embd_pdrop"), ("attention_dropout",), grouped=True),
    Family("gpt_neox", _USUAL, ("hidden_dropout",), ("attention_dropout",)),
    Family(
        "opt",
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim"),
        ("dropout",),
        ("attention_dropout",),
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One set of coefficients to find."""

    family: Family
    precision: Precision
    checkpointing: bool
    attention_dropout: bool
    hidden_dropout: bool


def cases(families: Iterable[Family] = FAMILIES) -> list[Case]:
    """Every combination that the families know."""
    return [
        Case(family, precision, checkpointing, attention, hidden)
        for family in families
        for precision in PRECISIONS
        for checkpointing in (False, True)
        for attention in ((False, True) if family.attention_dropouts else (False,))
        for hidden in ((False, True) if family.hidden_dropouts else (False,))
    ]


def small_config(case: Case, generator: random.Random) -> dict[str, Any]:
    """A random small config of the case's family, wide enough in every direction to tell widths apart."""
    family = case.family
    hidden, layers, heads, inner = family.names
    num_heads = generator.choice([4, 6, 8, 12])
    head_dim = generator.choice([8, 16, 24])
    width = num_heads * head_dim
    config: dict[str, Any] = {
        "model_type": family.model_type,
        hidden: width,
        layers: _NUM_LAYERS,
        heads: num_heads,
        inner: generator.choice([40, 72, 136, 200, 264]),
        "vocab_size": generator.choice([48, 96, 304, 504]),
        **dict.fromkeys(family.hidden_dropouts, _DROPOUT if case.hidden_dropout else 0.0),
        **dict.fromkeys(family.attention_dropouts, _DROPOUT if case.attention_dropout else 0.0),
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    if family.grouped:
        config["num_key_value_heads"] = num_heads // 2 if num_heads > 4 else 2
        config["num_key_value_heads"] = generator.choice([2, config["num_key_value_heads"]])
    if family.own_head_dim:
        config["head_dim"] = generator.choice([8, 16, 24, 32])
    if family.model_type == "opt":
        config["word_embed_proj_dim"] = width
    return config


@dataclass(frozen=True, slots=True)
class _Sample:
    """One traced model: the products of widths its bytes may be linear in, and the bytes."""

    by_tokens: tuple[float, ...]
    by_weights: tuple[float, ...]
    trace: ActivationTrace


def _sample(case: Case, generator: random.Random) -> _Sample:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**small_config(case, generator))
    shape = model_shape(config.to_dict())
    batch, length = generator.choice([2, 3, 4]), generator.choice([32, 64, 96])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    inputs = torch.zeros((batch, length), dtype=torch.long)
    trace = trace_activations(model, inputs, case.precision, checkpointing=case.checkpointing)
    return _Sample(_token_products(shape, batch * length, length), _weight_products(shape, length), trace)


def _token_products(shape: ModelShape, tokens: int, length: int) -> tuple[float, ...]:
    widths = (
        shape.hidden_size,
        shape.query_width,
        shape.key_value_width,
        shape.intermediate_size,
        shape.num_heads,
        shape.num_key_value_heads,
        shape.num_heads * length,
        shape.vocab_size,
        1,
    )
    return tuple(float(tokens * width) for width in widths)


def _weight_products(shape: ModelShape, length: int) -> tuple[float, ...]:
    """What does not grow with the batch: weights and their gradients, positions, masks."""
    hidden, query, key_value = shape.hidden_size, shape.query_width, shape.key_value_width
    products = (
        hidden * query,
        hidden * key_value,
        hidden * shape.intermediate_size,
        hidden * shape.vocab_size,
        hidden,
        query,
        key_value,
        shape.intermediate_size,
        shape.vocab_size,
        shape.head_dim,
        length * hidden,
        length * shape.head_dim,
        length * length,
        length,
        1,
    )
    return tuple(float(each) for each in products)


def solve(case: Case, *, seed: int = 0) -> ActivationCoefficients:
    """The coefficients of ``case``; raises ValueError when the bytes are not linear in the widths."""
    generator = random.Random(seed)
    samples = [_sample(case, generator) for _ in range(_NUM_MODELS)]
    first = samples[0].trace
    if any(len(each.trace.live_bytes) != len(first.live_bytes) for each in samples):
        raise ValueError(f"{case}: the number of operations depends on the widths")
    solution = _least_squares(case, samples)
    return _coefficients(case, solution, first)


def _least_squares(case: Case, samples: list[_Sample]) -> Floats:
    """Coefficients, one column for each operation and a last one for what is kept at the forward pass's end."""
    products = np.asarray([each.by_tokens + each.by_weights for each in samples])
    live = np.asarray([(*each.trace.live_bytes, each.trace.kept_bytes) for each in samples], dtype=np.float64)
    independent = _independent_columns(products)
    scale = np.abs(products[:, independent]).max(axis=0)
    found = np.linalg.lstsq(products[:, independent] / scale, live, rcond=None)[0] / scale[:, None]
    residual = np.abs(products[:, independent] @ found - live).max() / live.max()
    if residual > _TOLERATED_RESIDUAL:
        raise ValueError(f"{case}: bytes are not linear in the widths, relative residual {residual:.2e}")
    solution = np.zeros((products.shape[1], live.shape[1]))
    solution[independent] = found
    return solution


def _independent_columns(products: Floats) -> list[int]:
    """Columns that add rank; where widths coincide in a family, the first of them stands for all."""
    scaled = products / np.abs(products).max(axis=0)
    kept: list[int] = []
    for column in range(scaled.shape[1]):
        if np.linalg.matrix_rank(scaled[:, [*kept, column]], tol=1e-8) > len(kept):
            kept.append(column)
    return kept


def _coefficients(case: Case, solution: Floats, trace: ActivationTrace) -> ActivationCoefficients:
    by_tokens = solution[: len(_WIDTHS)]
    first_layer, last_layer = trace.layer_ends[0] - 1, trace.layer_ends[-1] - 1
    layer = by_tokens[:, last_layer] - by_tokens[:, first_layer]
    outside = by_tokens[:, -1] - _NUM_LAYERS * layer
    above = by_tokens[:, :-1] - (_NUM_LAYERS * layer + outside)[:, None]
    by_weights = solution[len(_WIDTHS) :]
    copies = by_weights[2, last_layer] - by_weights[2, first_layer]
    gated = 3 if case.family.grouped and case.family.model_type != "phi" else 2
    return ActivationCoefficients(
        family=case.family.model_type,
        precision=case.precision,
        checkpointing=case.checkpointing,
        attention_dropout=case.attention_dropout,
        hidden_dropout=case.hidden_dropout,
        layer=_token_bytes(layer),
        outside=_token_bytes(outside),
        in_loss=_highest(above[:, first_layer + 1 : trace.head_end]),
        in_backward=_highest(above[:, trace.head_end :]),
        weight_copies=_rounded(copies / gated),
    )


def _highest(columns: Floats) -> tuple[TokenBytes, ...]:
    """The operations that hold more than every other one for some widths (no coefficient-wise larger one)."""
    rounded = np.unique(np.round(columns.T, 3) + 0.0, axis=0)
    kept = [
        row
        for index, row in enumerate(rounded)
        if not any((other >= row).all() for position, other in enumerate(rounded) if position != index)
    ]
    return tuple(_token_bytes(row) for row in kept)


def _token_bytes(values: Floats) -> TokenBytes:
    return TokenBytes(**{name: _rounded(value) for name, value in zip(_WIDTHS, values, strict=True)})


def _rounded(value: float) -> float:
    return round(float(value), 3) + 0.0


def main() -> None:
    """Trace the families and write the calibration; other parts of an existing file are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="JSON file of the calibration")
    names = [each.model_type for each in FAMILIES]
    parser.add_argument("--family", action="append", choices=names, help="trace only this family (may be repeated)")
    measured_help = "trace nothing; find the memory outside tensors from these measurements"
    parser.add_argument("--measured", type=Path, action="append", help=measured_help)
    arguments = parser.parse_args()
    if arguments.measured is not None:
        _update_outside(arguments.output, arguments.measured)
        return
    torch.set_num_threads(1)
    for family in FAMILIES:
        if arguments.family is None or family.model_type in arguments.family:
            _update(arguments.output, [solve(case) for case in cases([family])])


def _update(output: Path, traced: list[ActivationCoefficients]) -> None:
    """Replace these coefficients in the file; everything else in it stays."""
    before = codec.loads(Calibration, output.read_text()) if output.exists() else Calibration()
    renewed = {each.key for each in traced}
    kept = [each for each in before.activations if each.key not in renewed]
    after = replace(
        before,
        activations=tuple(sorted([*kept, *traced], key=lambda each: each.key)),
        versions=_versions(),
        measured_on=datetime.now(tz=UTC).date().isoformat(),
    )
    output.write_text(codec.dumps(after, indent=1) + "\n")


def _update_outside(output: Path, measured: list[Path]) -> None:
    before = codec.loads(Calibration, output.read_text())
    bare = replace(before, outside=(), tensor_parallel_bytes=0)
    found = replace(bare, outside=outside_tensors(measured, bare))
    after = replace(found, tensor_parallel_bytes=_tensor_parallel_bytes(measured, found), versions=_versions())
    output.write_text(codec.dumps(after, indent=1) + "\n")


def _tensor_parallel_bytes(measured: list[Path], calibration: Calibration) -> int:
    """Median of what tensor-parallel ranks measured beyond the prediction."""
    beyond = [
        each.measured_bytes - each.prediction.peak_allocated_bytes
        for each in _replayed(measured, calibration)
        if each.measured_bytes is not None and each.case.tp > 1
    ]
    return max(0, round(statistics.median(beyond))) if beyond else 0


def _replayed(measured: list[Path], calibration: Calibration) -> Iterable[Measurement]:
    return itertools.chain.from_iterable(replayed(each, calibration) for each in measured)


def outside_tensors(measured: list[Path], calibration: Calibration) -> tuple[OutsideBytes, ...]:
    """What was measured beyond all tensors, by ZeRO stage, as a constant and a part for each tensor.

    Stages 1 and 2 share one engine in DeepSpeed and are fitted together. Least absolute deviations
    over all pairs of measurements (Theil and Sen), so that one odd measurement changes nothing.
    """
    points: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for each in _replayed(measured, calibration):
        if each.measured_bytes is not None and each.case.tp == 1:
            beyond = each.measured_bytes - each.prediction.peak_allocated_bytes
            points[each.case.zero_stage == 3].append((each.case.num_tensors, beyond))
    found = []
    for stage in (1, 2, 3):
        constant, slope = _line(points[stage == 3])
        found.append(
            OutsideBytes(kind=DeviceKind.VIRTUAL, zero_stage=stage, num_bytes=constant, bytes_per_tensor=slope)
        )
    return tuple(found)


def _line(points: list[tuple[int, int]]) -> tuple[int, int]:
    """(value at 0, slope) through ``points``, neither below zero."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2) if x1 != x2]
    slope = max(0.0, statistics.median(slopes)) if slopes else 0.0
    constant = statistics.median([y - slope * x for x, y in points]) if points else 0.0
    return max(0, round(constant)), round(slope)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "deepspeed")}


if __name__ == "__main__":
    main()
