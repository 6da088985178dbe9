"""Cells of a table of runs: read by the column's name, refused by it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, TypeVar

from frenzy.evaluation.published import Cells, UnknownRow

_FLAGS: Final = {"": None, "none": None, "true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_MOST: Final = 2**31
# Of a size in any unit: more than all memory there is.
_LARGEST: Final = 1e18
T = TypeVar("T")


def text(cells: Cells, name: str, default: str | None = None) -> str:
    """The cell's text; ``default`` where column or cell is missing. Raises UnknownRow without a default."""
    found = (cells.get(name) or "").strip()
    if found or default is not None:
        return found or str(default)
    raise UnknownRow(f"{name} is not recorded")


def whole(cells: Cells, name: str, default: int | None = None, *, least: int = 1) -> int:
    """The cell as a whole number of at least ``least``. Raises UnknownRow otherwise."""
    found = text(cells, name, "" if default is not None else None)
    if not found:
        return default or 0
    value = _value(found)
    if _MOST < value < math.inf:
        raise UnknownRow(f"{name} {found!r} is more than {_MOST}")
    if not (least <= value <= _MOST and value == int(value)):
        raise UnknownRow(f"{name} {found!r} is not a whole number of at least {least}")
    return int(value)


def number(cells: Cells, name: str, default: float | None = None) -> float:
    """The cell as a finite number of at least 0. Raises UnknownRow otherwise."""
    found = text(cells, name, "" if default is not None else None)
    if not found:
        return float(default or 0.0)
    value = _value(found)
    if not 0 <= value < math.inf:
        raise UnknownRow(f"{name} {found!r} is not a number of at least 0")
    return value


def _value(found: str) -> float:
    try:
        return float(found)
    except ValueError:
        return math.nan


def optional_size(cells: Cells, name: str) -> float | None:
    """The cell as a number above 0; None where column or cell is missing. Raises UnknownRow for another text."""
    found = text(cells, name, "")
    if not found:
        return None
    value = _value(found)
    if _LARGEST < value < math.inf:
        raise UnknownRow(f"{name} {found!r} is more than {_LARGEST:g}")
    if not 0 < value < math.inf:
        raise UnknownRow(f"{name} {found!r} is not a number above 0")
    return value


def flag(cells: Cells, name: str, *, default: bool = False) -> bool:
    """The cell as true or false. Raises UnknownRow for another text."""
    found = text(cells, name, "")
    if found.lower() not in _FLAGS:
        raise UnknownRow(f"{name} {found!r} is neither true nor false")
    answer = _FLAGS[found.lower()]
    return default if answer is None else answer


def choice(cells: Cells, name: str, choices: Mapping[str, T], default: str | None = None) -> T:
    """What the cell's text stands for. Raises UnknownRow for a text that is none of ``choices``."""
    found = text(cells, name, default)
    if found.lower() not in choices:
        raise UnknownRow(f"{name} {found!r} is none of {', '.join(each or '(empty)' for each in choices)}")
    return choices[found.lower()]


def release_of(version: str, of: str = "transformers") -> tuple[int, int]:
    """The first two numbers of a release of the package ``of``. Raises UnknownRow for another text."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        raise UnknownRow(f"{of} {version!r} is not a release such as {'2.4.1' if of == 'torch' else '4.48.1'}")
    return int(found[1]), int(found[2])


def words(cells: Cells, name: str) -> tuple[str, ...]:
    """The cell's words, parted by spaces, commas or a list's signs. Raises UnknownRow where there is none."""
    found = tuple(each for each in re.split(r"[\s,;\[\]\"'|]+", text(cells, name)) if each)
    if not found:
        raise UnknownRow(f"{name} is not recorded")
    return found
