"""Bytes and durations: whole numbers inside, human units only at the edges."""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_BYTE_FACTORS: Final = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024**4,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_MOST_BYTES: Final = 2**63
_MOST_DIGITS: Final = 12  # tell a byte in a TiB
_SECOND_FACTORS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*$")
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])")


def counted(number: int, noun: str) -> str:
    """``"1 GPU"``, ``"2 GPUs"``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def large_number(number: int) -> str:
    """``"65,536"``, ``"131 million"``, ``"8.03 billion"``."""
    for word, factor in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6)):
        if number >= factor:
            value = number / factor
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {word}"
    return f"{number:,}"


def are(count: int) -> str:
    """The verb after so many."""
    return "is" if count == 1 else "are"


def parse_bytes(text: str | int) -> int:
    """Whole bytes of ``"640 MiB"``, ``"24GB"`` or a plain number of bytes.

    Raises ValueError when the unit is unknown, or the size beyond any memory.
    """
    if isinstance(text, int):
        return text
    match = _BYTES.match(text)
    if match is None or match[2].lower() not in _BYTE_FACTORS:
        raise ValueError(f"{text!r} is not a size; write for example '640 MiB' or '24 GiB'")
    size = float(match[1]) * _BYTE_FACTORS[match[2].lower()]
    if size >= _MOST_BYTES:
        raise ValueError(f"{text[:80]!r} is more than any memory holds")
    return round(size)


def parse_memory(text: str | int) -> int:
    """Whole bytes of a memory, as ``parse_bytes`` has them.

    Raises ValueError also for a number without a unit below 1 MiB: it was meant in GB, and no memory is so small.
    """
    size = parse_bytes(text)
    if 0 < size < MIB and str(text).strip()[-1:].isdigit():
        raise ValueError(f"{text} without a unit is {counted(size, 'byte')}; write {text} GB or {text} GiB")
    return size


def format_bytes(num_bytes: float, *, more_digits: int = 0, up: bool = False) -> str:
    """``num_bytes`` in the largest binary unit that keeps it at least 1, e.g. ``"612 MiB"``.

    more_digits: decimals beyond the usual ones. up: never less than it is.
    """
    sign = "-" if num_bytes < 0 else ""
    size = abs(num_bytes)
    for unit, factor in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            value = size / factor
            digits = (1 if value < 100 else 0) + more_digits
            shown = math.ceil(value * 10**digits) / 10**digits if up else value
            return f"{sign}{shown:.{digits}f} {unit}"
    return f"{sign}{size:.0f} B"


class Shortage(NamedTuple):
    """What is needed and what is there, in words that differ. enough: ``needed``, never less than it is."""

    needed: str
    there: str
    enough: str


def format_shortage(needed_bytes: int, there_bytes: int) -> Shortage:
    """Both with as many digits as tell them apart: 2.54 and 2.47 TiB, not twice 2.5; needed_bytes is more."""

    def shown(digits: int) -> Shortage:
        needed, there = (format_bytes(each, more_digits=digits) for each in (needed_bytes, there_bytes))
        return Shortage(needed, there, format_bytes(needed_bytes, more_digits=digits, up=True))

    told = (shown(digits) for digits in range(_MOST_DIGITS))
    return next((each for each in told if each.needed != each.there), shown(0))


def parse_duration_s(text: str | float) -> float:
    """Seconds of ``"90s"``, ``"1h30m"`` or a plain number of seconds.

    Raises ValueError when the text is not a duration.
    """
    if isinstance(text, int | float):
        return float(text)
    compact = text.replace(" ", "")
    parts = list(_DURATION.finditer(compact))
    if not parts or "".join(part[0] for part in parts) != compact:
        raise ValueError(f"{text!r} is not a duration; write for example '90s' or '1h30m'")
    return sum(float(part[1]) * _SECOND_FACTORS[part[2]] for part in parts)


def format_duration(seconds: float) -> str:
    """``seconds`` as a person would say it: ``"29.5 ms"``, ``"8.2 s"``, ``"3 min 05 s"``, ``"2 h 10 min"``."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_difference(measured: float, predicted: float) -> str:
    """How far ``measured`` is from ``predicted``, not 0: ``"+4.4 %"`` where more was measured; from three times as
    much on, ``"19 times"``."""
    times = measured / predicted
    if times >= 3:
        return f"{times:.{0 if times >= 10 else 1}f} times"
    value = round(100 * (times - 1), 1)
    return f"{value:+.1f} %" if value else "0.0 %"


def round_up(value: float, digits: int = 3) -> float:
    """``value`` to so many digits, never less than it was."""
    if value <= 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    candidates = (float(f"{(math.ceil(value / unit) + more) * unit:.{digits}g}") for more in (0, 1, 2))
    return next((each for each in candidates if each >= value), value)
