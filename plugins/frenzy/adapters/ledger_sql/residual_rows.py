"""What a sample teaches of a group of plans, as a row of its own: groups are looked for by column."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Row

from frenzy.core.memory.residuals import Residual, ResidualGroup
from frenzy.core.runs.ledger import CalibrationSample, versions_key
from frenzy.core.values import codec


def values_of(sample: CalibrationSample, residual: Residual) -> dict[str, Any]:
    """The columns of ``sample``'s residual, but for its key."""
    return {
        **codec.encode(residual.group),
        "time_s": sample.time_s,
        "versions": versions_key(sample.versions),
        "predicted_bytes": residual.predicted_bytes,
        "measured_bytes": residual.measured_bytes,
        "censored": residual.censored,
        "step_ratio": residual.step_ratio,
    }


def residual_of(row: Row[Any]) -> Residual:
    known = {each.name: getattr(row, each.name) for each in fields(ResidualGroup)}
    return Residual(
        group=codec.decode(ResidualGroup, known),
        predicted_bytes=row.predicted_bytes,
        measured_bytes=row.measured_bytes,
        censored=row.censored,
        step_ratio=row.step_ratio,
    )
