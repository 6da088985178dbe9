"""Peaks that trace mode found for published rows, kept beside the data sets with the releases they were traced with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.memory.cuda_memory import CONTEXT_BYTES
from frenzy.core.values import codec
from frenzy.evaluation.published import Outcome, PublishedRow

FILE_NAME: Final = "traced.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRow:
    """One row's traced peak. versions: of the libraries in the environment that traced it.

    reserved_bytes: what torch's allocator holds after both steps when the traced tensors are played in it.
    """

    dataset: str
    number: int
    label: str
    peak_bytes: int
    seconds: float
    versions: tuple[str, ...]
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRow:
    """played_bytes: what the played allocator holds, and CUDA's context. measured_bytes: what the driver showed."""

    label: str
    peak_bytes: int
    played_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.played_bytes / self.measured_bytes - 1.0


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


def played_reserved(rows: Iterable[PublishedRow], traced: Sequence[TracedRow]) -> Sequence[PlayedRow]:
    """The traced rows of which what the driver showed is known, too."""
    played = {(each.dataset, each.number): each for each in traced}
    found = [(row, played.get((row.dataset, row.number))) for row in rows if row.reserved_bytes]
    return tuple(
        PlayedRow(
            label=row.label,
            peak_bytes=row.peak_bytes or 0,
            played_bytes=each.reserved_bytes + CONTEXT_BYTES,
            measured_bytes=row.reserved_bytes or 0,
        )
        for row, each in found
        if each is not None and each.reserved_bytes
    )
