"""``python -m tools.accuracy.throughput_fit FOLDER``: fit the utilisation values to the fitted part.

Least squares of the logarithm of predicted over measured step time, with weights that fall for rows
far off (soft absolute value), so that a run with a broken network does not move the values.
Prints the values that ``frenzy.core.values.utilisation`` and ``software`` hold; a test refits and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.memory.model_inputs import Array, PlanRow
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.throughput import StepParts, step_parts, step_seconds
from frenzy.core.values.utilisation import Utilisation, architecture_of
from tools.accuracy.throughput_rows import PublishedRun, all_runs, published_runs

# first value, least, greatest
_BOUNDS: Final[Mapping[str, tuple[float, float, float]]] = {
    "matmul Ampere": (0.7, 0.3, 0.95),
    "matmul Hopper": (0.6, 0.3, 0.95),
    "attention Ampere": (0.5, 0.1, 1.5),
    "attention Hopper": (0.4, 0.1, 1.5),
    "hidden_passes FSDP": (100, 1, 900),
    "hidden_passes nanotron": (50, 1, 900),
    "hidden_passes transformers": (100, 1, 900),
    "hidden_passes trainer": (300, 1, 900),
    "norm_passes transformers": (100, 1, 900),
    "vocab_passes FSDP": (20, 1, 300),
    "vocab_passes nanotron": (50, 1, 300),
    "adapter_passes transformers": (10, 0, 200),
    "adapter_passes fused kernels": (10, 0, 200),
    "gradient_passes FSDP": (8, 0, 60),
    "launch_s_per_layer FSDP": (0.004, 1e-4, 0.04),
    "launch_s_per_layer nanotron": (0.004, 1e-4, 0.04),
    "launch_s_per_layer DeepSpeed": (0.004, 1e-4, 0.04),
    "repeated_launches": (0.5, 0, 2.5),
    "update_launches FSDP": (0.5, 0, 4),
    "update_launches DeepSpeed": (0.5, 0, 4),
    "hook_s_per_layer DeepSpeed": (0.004, 0, 0.04),
    "attention_factor transformers": (1.0, 0.3, 2.1),
    "inside FSDP": (0.8, 0.2, 1.0),
    "inside nanotron": (0.6, 0.05, 1.0),
    "inside DeepSpeed": (0.8, 0.05, 1.0),
    "between FSDP": (0.9, 0.05, 1.0),
    "between nanotron": (0.3, 0.05, 1.0),
    "overlap FSDP": (0.3, 0.0, 1.0),
    "overlap nanotron": (0.3, 0.0, 1.0),
    "overlap DeepSpeed": (0.3, 0.0, 1.0),
}
# What the rows of a program cannot tell (one node, one vocabulary, no adapters) is taken from another's.
_BORROWED: Final = {
    "transformers": "FSDP",
    "fused kernels": "transformers",
    "nanotron": "FSDP",
    "DeepSpeed": "transformers",
    "trainer": "DeepSpeed",
}
_NONE: Final = {
    "norm_passes": ("FSDP", "nanotron", "fused kernels"),
    "adapter_passes": ("FSDP", "nanotron"),
    "update_launches": ("nanotron",),
    "hook_s_per_layer": ("FSDP", "nanotron", "fused kernels", "transformers"),
}
# The first program's kernels are those of the generation's share. Nanotron's source tells that 12 bytes are moved.
_GIVEN: Final = {"attention_factor FSDP": 1.0, "gradient_passes nanotron": 6.0}
_SOFT_SCALE: Final = 0.05
_ROUNDS: Final = 300


def parts_of(runs: Sequence[PublishedRun]) -> StepParts:
    """The parts of every run, an entry for each."""
    each = [_parts(run) for run in runs]
    return StepParts(
        **{field.name: np.concatenate([getattr(part, field.name) for part in each]) for field in fields(StepParts)}
    )


def _parts(run: PublishedRun) -> StepParts:
    plan = PlanRow(run.dp, run.tp, run.zero_stage, run.micro_batch, run.accumulation, run.checkpointing, run.offload)
    return step_parts(run.work, grid_of([plan]), run.gpu, run.link)


def fitted_values(runs: Sequence[PublishedRun]) -> dict[str, float]:
    """The values that bring predicted step times nearest to those of ``runs``; deterministic.

    Levenberg-Marquardt with clipping to the bounds and re-weighting in each round.
    """
    names = tuple(_BOUNDS)
    value, least, most = (np.asarray(column, dtype=np.float64) for column in zip(*_BOUNDS.values(), strict=True))
    parts, measured = parts_of(runs), np.asarray([run.step_s for run in runs])
    software = _Owners.of([run.software.name for run in runs])
    generation = _Owners.of([architecture_of(run.gpu).name for run in runs])

    def residuals(at: Array) -> Array:
        reached = _shares(dict(zip(names, at.tolist(), strict=True)), software, generation)
        return np.asarray(np.log(step_seconds(parts, reached) / measured), dtype=np.float64)

    damping, found = 1e-2, residuals(value)
    for _ in range(_ROUNDS):
        step = _step(residuals, value, found, most - least, damping)
        tried = np.clip(value + step, least, most)
        outcome = residuals(tried)
        if _loss(outcome) < _loss(found):
            value, found, damping = tried, outcome, max(damping / 3, 1e-9)
        else:
            damping = min(damping * 4, 1e6)
    return dict(zip(names, value.tolist(), strict=True))


def _loss(residuals: Array) -> float:
    return float(np.sum(np.sqrt(1 + (residuals / _SOFT_SCALE) ** 2) - 1))


def _step(residuals: Callable[[Array], Array], value: Array, found: Array, scale: Array, damping: float) -> Array:
    slopes = np.empty((len(found), len(value)))
    for index, width in enumerate(scale.tolist()):
        moved = value.copy()
        moved[index] += 1e-6 * width
        slopes[:, index] = (residuals(moved) - found) / 1e-6
    weights = 1 / np.sqrt(1 + (found / _SOFT_SCALE) ** 2)
    normal = slopes.T @ (weights[:, None] * slopes)
    damped = normal + damping * np.diag(np.diag(normal) + 1e-12)
    step: Array = -np.linalg.solve(damped, slopes.T @ (weights * found)) * scale
    return step


@dataclass(frozen=True, slots=True)
class _Owners:
    """Names that own values, and which of them each run has."""

    names: tuple[str, ...]
    of_runs: NDArray[np.intp]

    @classmethod
    def of(cls, each_run: Sequence[str]) -> _Owners:
        names, of_runs = np.unique(each_run, return_inverse=True)
        return cls(tuple(names.tolist()), of_runs)


def _shares(values: Mapping[str, float], software: _Owners, generation: _Owners) -> Utilisation:
    """The shares with an entry for each run."""

    def column(name: str, owners: _Owners) -> Array:
        return np.asarray([_value(values, name, each) for each in owners.names])[owners.of_runs]

    return Utilisation(
        name="the fit",
        matmul=column("matmul", generation),
        attention=column("attention", generation) * column("attention_factor", software),
        hidden_passes=column("hidden_passes", software),
        norm_passes=column("norm_passes", software),
        vocab_passes=column("vocab_passes", software),
        adapter_passes=column("adapter_passes", software),
        gradient_passes=column("gradient_passes", software),
        launch_s_per_layer=column("launch_s_per_layer", software),
        repeated_launches=values["repeated_launches"],
        update_launches=column("update_launches", software),
        hook_s_per_layer=column("hook_s_per_layer", software),
        inside=column("inside", software),
        between=column("between", software),
        overlap=column("overlap", software),
    )


def _value(values: Mapping[str, float], name: str, owner: str) -> float:
    """Its own, or that of whom it borrows from; 0 of what a program does not have."""
    if owner in _NONE.get(name, ()):
        return 0.0
    own = {**_GIVEN, **values}.get(f"{name} {owner}")
    return _value(values, name, _BORROWED[owner]) if own is None else own


def main(arguments: Sequence[str]) -> int:
    """Print the fitted values."""
    runs = [run for run in all_runs(published_runs(Path(arguments[0]))) if run.is_fitted]
    for name, value in fitted_values(runs).items():
        sys.stdout.write(f"{name:28} {value:.4g}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
