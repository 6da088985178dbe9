"""Rows that the project's own trainer measured on a card: what was said before they ran, and what is said today."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.trainer.measure.record import Measurement, read_measurements, replayed

FILE: Final = "deepspeed_h100.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRow:
    """One case. before: relative error of the prediction made before it ran; today: of today's."""

    label: str
    measured_bytes: int
    before: float
    today: float
    at: str


def own_rows(folder: Path, calibration: Calibration) -> tuple[OwnRow, ...]:
    stored = [each for each in read_measurements(folder / FILE) if each.error is not None]
    pairs = zip(stored, replayed(stored, calibration), strict=True)
    return tuple(_row(before, today) for before, today in pairs)


def _row(before: Measurement, today: Measurement) -> OwnRow:
    assert before.error is not None and today.error is not None  # of the same case, which ran
    assert before.measured_bytes is not None and today.prediction is not None
    return OwnRow(
        label=before.case.label,
        measured_bytes=before.measured_bytes,
        before=before.error,
        today=today.error,
        at=today.prediction.at,
    )
