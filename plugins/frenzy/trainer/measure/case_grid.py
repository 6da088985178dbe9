"""Explicit grids of cases: model shapes times everything a job and a plan choose.

    models: [{model_type: llama, hidden_size: 256, ...}]
    zero_stage: [1, 2, 3]
    adapters: [none, lora-16, qlora-16]

Each entry is a list; an entry left out has one value, the trainer's default.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, SpecError, Violation
from frenzy.trainer.measure.case import MeasureCase

_DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "sequence_length": (256,),
    "precision": ("bf16",),
    "dp": (1,),
    "tp": (1,),
    "zero_stage": (2,),
    "micro_batch": (1,),
    "accumulation": (1,),
    "checkpointing": (False,),
    "adapters": ("none",),
    "optimizer": ("adamw",),
    "attention": ("sdpa",),
    "loss": ("torch",),
    "offload_optimizer": (False,),
}
_ADAPTERS_ALLOWED: Final = "none, lora-RANK, qlora-RANK or qlora-dq-RANK (RANK a whole number of at least 1)"
_COUNTS: Final = ("sequence_length", "dp", "tp", "micro_batch", "accumulation")

GRIDS: Final[Mapping[str, Mapping[str, Any]]] = json.loads(Path(__file__).with_name("grids.json").read_text())


def grid_cases(grid: Mapping[str, Any], *, name: str, seed: int) -> list[MeasureCase]:
    """Every case of ``grid``, in a random order that ``seed`` fixes, so that a part of it speaks for the whole.

    Raises SpecError with every entry of the grid ``name`` that is refused.
    """
    models, axes = _checked(grid, name)
    rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    cases = [_case(model, row) for model in models for row in rows]
    random.Random(seed).shuffle(cases)
    return cases


def _checked(grid: Mapping[str, Any], name: str) -> tuple[list[dict[str, Any]], dict[str, tuple[Any, ...]]]:
    violations = _violations(grid, name)
    if violations:
        raise SpecError(violations)
    axes = {key: tuple(grid.get(key, default)) for key, default in _DEFAULTS.items()}
    return [dict(each) for each in grid["models"]], axes


def _violations(grid: Mapping[str, Any], name: str) -> list[Violation]:
    known = ("models", *_DEFAULTS)
    found = [
        Violation(path=f"{name}.{key}", value=_short(grid[key]), allowed=f"one of the entries {', '.join(known)}")
        for key in grid
        if key not in known
    ]
    for key in known:
        if key not in grid and key != "models":
            continue
        values = grid.get(key)
        if not isinstance(values, list | tuple) or not values:
            found.append(Violation(path=f"{name}.{key}", value=_short(values), allowed="a list with an entry or more"))
            continue
        for index, value in enumerate(values):
            allowed = _allowed(key, value)
            if allowed:
                found.append(Violation(path=f"{name}.{key}[{index}]", value=_short(value), allowed=allowed))
    return found


def _allowed(key: str, value: Any) -> str | None:
    """What is allowed instead of ``value``; None when it is."""
    if key == "models":
        named = isinstance(value, Mapping) and isinstance(value.get("model_type"), str)
        return None if named else "a Hugging Face model config with its model_type"
    if key in _COUNTS:
        return None if type(value) is int and value >= 1 else "a whole number of at least 1"
    if key == "adapters":
        return None if _adapters(value) is not None else _ADAPTERS_ALLOWED
    try:
        _case({"model_type": "llama"}, {**{name: values[0] for name, values in _DEFAULTS.items()}, key: value})
    except ContractError as error:
        return f"{error.reason.detail.split(': ', 1)[-1]}"
    if key == "zero_stage" and value not in (0, 1, 2, 3):
        return "0, 1, 2 or 3"
    return None


def _case(model: Mapping[str, Any], row: Mapping[str, Any]) -> MeasureCase:
    chosen = {key: value for key, value in row.items() if key != "adapters"}
    return codec.decode(MeasureCase, {"config": dict(model), **chosen, **(_adapters(row["adapters"]) or {})})


def _adapters(text: Any) -> dict[str, Any] | None:
    """The fields of a case for ``lora-16``, ``qlora-16`` or ``qlora-dq-16``; None for what is none of them."""
    if text == "none":
        return {}
    name, _, rank = str(text).rpartition("-")
    if name not in ("lora", "qlora", "qlora-dq") or not rank.isdecimal() or int(rank) < 1:
        return None
    quantised = name.startswith("qlora")
    return {
        "lora_rank": int(rank),
        "quantization": "nf4" if quantised else "none",
        "double_quantization": name == "qlora-dq",
    }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
