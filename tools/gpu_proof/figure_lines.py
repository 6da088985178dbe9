"""One figure, and the file of JSON lines that keeps what was found, whatever ends the session."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError

# The figure that ends each case: what it took. Its line says that the case need not be run again.
SECONDS: Final = "time of the case"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a case found. value: None where there is none, and ``detail`` says why. prediction: in the same unit."""

    name: str
    value: float | None
    unit: str = ""
    prediction: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A line of the file. machine: the card's name, or that of a virtual GPU. date: the UTC day."""

    part: str
    case: str
    name: str
    value: float | None
    unit: str
    prediction: float | None
    machine: str
    date: str
    detail: str = ""

    @property
    def error(self) -> float | None:
        """Of the prediction, relative to what was found; positive when it was too high."""
        if not self.value or self.prediction is None:
            return None
        return self.prediction / self.value - 1.0


def read_figures(file: Path) -> list[Figure]:
    """The lines of ``file``, none without one. A last line without its end is what a killed writer left.

    Raises ContractError naming file and line for any other line that does not have the form.
    """
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [_parsed(file, number, line) for number, line in enumerate(lines, start=1)]


def _parsed(file: Path, number: int, line: str) -> Figure:
    try:
        return codec.loads(Figure, line)
    except ContractError as error:
        raise ContractError(f"{file}, line {number}: {error.reason.detail}") from error


def append_figures(file: Path, figures: Iterable[Figure]) -> None:
    """Put ``figures`` at the end of ``file``; on disk when this returns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as out:
        out.truncate(file.read_bytes().rfind(b"\n") + 1)
        out.write("".join(f"{codec.dumps(each)}\n" for each in figures).encode())
        out.flush()
        os.fsync(out.fileno())
