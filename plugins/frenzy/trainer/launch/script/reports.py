"""What a script's agent says to its launcher: lines of JSON in a file of their machine, read as they come.

The script writes them, so a line that is none is passed over, and every number is looked at.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frenzy.core.values.job import MAX_STEPS

_LONGEST_LINE: Final = 64 * 1024
_MOST_AT_ONCE: Final = 4 * 1024**2
_MOST_BYTES: Final = 2**50


@dataclass(frozen=True, slots=True)
class Report:
    """One line. kind: hello, step, checkpoint, stopping, refused or ended."""

    kind: str
    step: int
    content: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """A finite number, or None."""
        value = self.content.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None

    def count(self, name: str) -> int | None:
        """A whole number of bytes or events that can be true, or None."""
        number = self.number(name)
        return None if number is None or not 0 <= number <= _MOST_BYTES else int(number)

    def text(self, name: str) -> str:
        value = self.content.get(name)
        return value if isinstance(value, str) else ""


class ReportFile:
    """The reports of one rank; ``new`` gives each line once, whole lines only."""

    def __init__(self, place: Path) -> None:
        self._place, self._offset = place, 0

    def new(self) -> Iterator[Report]:
        for line in self._lines():
            found = _parsed(line)
            if found is not None:
                yield found

    def _lines(self) -> list[bytes]:
        try:
            text = self._text()
        except OSError:
            return []
        end = text.rfind(b"\n") + 1
        if end == 0 and len(text) == _MOST_AT_ONCE:  # no line: passed over
            end = len(text)
        self._offset += end
        return text[:end].splitlines()

    def _text(self) -> bytes:
        """What follows the lines already given. The script may put anything there: only a plain file is read."""
        descriptor = os.open(self._place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            is_plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return os.pread(descriptor, _MOST_AT_ONCE, self._offset) if is_plain else b""
        finally:
            os.close(descriptor)


def _parsed(line: bytes) -> Report | None:
    if len(line) > _LONGEST_LINE:
        return None
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
        return None
    step = content.get("step", 0)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_STEPS:
        return None
    return Report(content["kind"], step, content)
