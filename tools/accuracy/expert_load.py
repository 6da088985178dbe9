"""How unevenly a router spread tokens over its experts in published runs, and what assuming more costs.

The tables do not record it. Each fitted row implies a load of its busiest expert: the one at which the
prediction meets the measurement. The bound that the memory model takes is held to these; the scored rows
then say what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from frenzy.core.memory.activation_coefficients import BUSIEST_LOAD, TokenBytes
from frenzy.core.memory.torch_kernels import TorchRun
from frenzy.evaluation.margin import is_fitted
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import Grade, PublishedRow
from frenzy.evaluation.score import Errors

# Balanced; what is taken; GShard's capacity factor, which was taken before 2026-11-21.
LOADS: Final = (1.0, BUSIEST_LOAD, 2.0)


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """implied: of the fitted rows, ascending. costs: errors of the scored rows for each assumed load."""

    implied: tuple[float, ...]
    costs: tuple[tuple[float, Errors], ...]


def expert_loads(rows: Iterable[PublishedRow]) -> ExpertLoads:
    """Of the rows of grade A whose models have experts."""
    routed = [each for each in rows if each.grade is Grade.A and each.peak_bytes and _run(each).shape.num_experts]
    scored = [each for each in routed if not is_fitted(each)]
    return ExpertLoads(
        implied=tuple(sorted(_implied(each) for each in routed if is_fitted(each))),
        costs=tuple(
            (load, Errors.of([_peak(each, load) / (each.peak_bytes or 1) - 1 for each in scored])) for load in LOADS
        ),
    )


def _run(row: PublishedRow) -> TorchRun:
    assert isinstance(row.run, TorchRun)
    return row.run


def _implied(row: PublishedRow) -> float:
    """Below 1 where something else is predicted too high: no expert is the busiest with less than its share."""
    balanced, twice = _peak(row, 1.0), _peak(row, 2.0)
    return 1.0 + ((row.peak_bytes or 0) - balanced) / (twice - balanced) if twice > balanced else 1.0


def _peak(row: PublishedRow, load: float) -> int:
    """Predicted peak if the busiest expert got ``load`` times its balanced share."""
    run, factor = _run(row), load / BUSIEST_LOAD
    old = run.coefficients
    coefficients = replace(
        old,
        layer=_scaled(old.layer, factor),
        outside=_scaled(old.outside, factor),
        in_loss=tuple(_scaled(each, factor) for each in old.in_loss),
        in_backward=tuple(_scaled(each, factor) for each in old.in_backward),
    )
    return predict(replace(run, coefficients=coefficients)).peak_allocated_bytes


def _scaled(part: TokenBytes, factor: float) -> TokenBytes:
    return replace(
        part, busiest_hidden=part.busiest_hidden * factor, busiest_intermediate=part.busiest_intermediate * factor
    )
