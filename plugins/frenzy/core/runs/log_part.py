"""A part of a log that is still being written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frenzy.core.values.telemetry import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Text of a log, the offset in bytes after it, and whether there is more behind it now."""

    text: str
    next_offset: int
    has_more: bool


def read_hiding(read: Callable[[int, int], bytes], start: int, max_bytes: int, hidden: Sequence[bytes] = ()) -> bytes:
    """``max_bytes`` of a log from byte ``start`` on, with stars for each of ``hidden``, the longest first.

    read: gives so many bytes from an offset on. What begins before the part, or ends behind it, is hidden, too:
    whoever chooses the offset must not cut a text so that the rest of it is not known any more.
    """
    beside = max(map(len, hidden), default=1) - 1
    first = max(0, start - beside)
    data = read(first, start - first + max_bytes + beside)
    for each in hidden:
        data = data.replace(each, b"*" * len(each))
    return data[start - first :][:max_bytes]


def log_part_of(data: bytes, start: int, size: int, *, is_tail: bool, whole_lines: bool) -> LogPart:
    """``data``, read from byte ``start`` of a log of ``size`` bytes; a tail begins with a line."""
    if is_tail and start and b"\n" in data:
        cut = data.index(b"\n") + 1
        start, data = start + cut, data[cut:]
    after_last_line = data.rfind(b"\n") + 1
    if start + len(data) < size:
        data = data[: after_last_line or len(data)]
    elif whole_lines:
        data = data[:after_last_line]
    end = start + len(data)
    return LogPart(text=printable(data.decode(errors="replace")), next_offset=end, has_more=end < size)
