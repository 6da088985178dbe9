"""CSV files with columns recognised by name; what is wrong is told by file, line and column."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from frenzy.core.values.errors import SpecError, Violation


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. values: by the meaning of their column; a meaning without column is missing."""

    file: str
    line: int
    columns: Mapping[str, str]
    values: Mapping[str, str]

    def text(self, meaning: str) -> str | None:
        """The value as it stands, None where it is blank or has no column."""
        return self.values.get(meaning) or None

    def number(self, meaning: str) -> float | None:
        """A finite number of at least 0. Raises SpecError for anything else that is not blank."""
        text = self.text(meaning)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise self.refusal(meaning, "a number of at least 0")
        return number

    def whole(self, meaning: str) -> int | None:
        """A whole number of at least 0. Raises SpecError for anything else that is not blank."""
        number = self.number(meaning)
        if number is not None and number != int(number):
            raise self.refusal(meaning, "a whole number")
        return None if number is None else int(number)

    def time_s(self, meaning: str) -> float | None:
        """Seconds, or a date with time of day as seconds since 1970, UTC unless it names a zone."""
        if not self.is_date(meaning):
            return self.number(meaning)
        text = self.values[meaning]
        try:
            date = datetime.fromisoformat(text)
        except ValueError as error:
            raise self.refusal(meaning, "seconds, or a date such as 2017-10-09 07:01:55") from error
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()

    def is_date(self, meaning: str) -> bool:
        """Whether the value has the look of a date, not of a number."""
        text = self.values.get(meaning, "")
        return "-" in text[1:] and "e-" not in text.lower()

    def refusal(self, meaning: str, allowed: str) -> SpecError:
        """The error that refuses the value of ``meaning`` on this line."""
        column = self.columns.get(meaning, meaning)
        where = f"{self.file}, line {self.line}, column {column}"
        return SpecError([Violation(path=where, value=repr(self.values.get(meaning, "")), allowed=allowed)])


def read_table(path: Path, meanings: Mapping[str, tuple[str, ...]], required: tuple[str, ...]) -> Iterator[Row]:
    """The rows of the CSV file at ``path``, which may be compressed (.gz).

    meanings: for each meaning the names of columns that have it, first choice first; other columns
    are passed over. Raises SpecError when the file cannot be read or lacks a column for one of
    ``required``.
    """
    try:
        with _open(path) as file:
            yield from _rows(path, csv.reader(file), meanings, required)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        detail = (isinstance(error, OSError) and error.strerror) or str(error)
        allowed = f"name a readable CSV file in UTF-8 ({detail})"
        raise SpecError([Violation(path=str(path), value="the file", allowed=allowed)]) from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _rows(
    path: Path, lines: Iterator[list[str]], meanings: Mapping[str, tuple[str, ...]], required: tuple[str, ...]
) -> Iterator[Row]:
    header = [name.strip().lower() for name in next(lines, [])]
    columns = _columns(header, meanings)
    missing = [meaning for meaning in required if meaning not in columns]
    if missing:
        lacking = [
            Violation(path=f"{path}, line 1", value=f"no column for {meaning}", allowed=_any_of(meanings[meaning]))
            for meaning in missing
        ]
        raise SpecError(lacking)
    places = {meaning: header.index(column) for meaning, column in columns.items()}
    for number, cells in enumerate(lines, start=2):
        if not any(cells):
            continue
        if len(cells) != len(header):
            allowed = f"{len(header)}, as many as the header has"
            raise SpecError([Violation(path=f"{path}, line {number}", value=f"{len(cells)} columns", allowed=allowed)])
        yield Row(str(path), number, columns, {meaning: cells[at].strip() for meaning, at in places.items()})


def _columns(header: list[str], meanings: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    found = {meaning: [name for name in names if name in header] for meaning, names in meanings.items()}
    return {meaning: names[0] for meaning, names in found.items() if names}


def _any_of(names: tuple[str, ...]) -> str:
    return f"a column named {names[0]}" if len(names) == 1 else f"a column with one of the names {', '.join(names)}"
