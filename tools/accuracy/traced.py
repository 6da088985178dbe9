"""Peaks that trace mode found for published rows, kept beside the data sets with the releases they were traced with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.values import codec
from frenzy.evaluation.published import Outcome, PublishedRow

FILE_NAME: Final = "traced.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRow:
    """One row's traced peak. versions: of the libraries in the environment that traced it."""

    dataset: str
    number: int
    label: str
    peak_bytes: int
    seconds: float
    versions: tuple[str, ...]


def read_traced(folder: Path) -> tuple[TracedRow, ...]:
    """The traced rows in ``folder``; none where nothing was traced."""
    file = folder / FILE_NAME
    if not file.is_file():
        return ()
    return tuple(codec.loads(TracedRow, line) for line in file.read_text(encoding="utf-8").splitlines() if line)


def traced_errors(rows: Iterable[PublishedRow], traced: Sequence[TracedRow]) -> list[float]:
    """Relative errors of the traced peaks of ``rows`` that ran."""
    peaks = {(each.dataset, each.number): each.peak_bytes for each in traced}
    return [
        peaks[row.dataset, row.number] / row.peak_bytes - 1.0
        for row in rows
        if row.peak_bytes and row.outcome is Outcome.RAN and (row.dataset, row.number) in peaks
    ]
