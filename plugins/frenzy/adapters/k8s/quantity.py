"""Kubernetes' quantities: ``"7910m"``, ``"16Gi"``, ``"1e3"``."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

_FORM: Final = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)")
_FACTORS: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> float:
    """The number that ``text`` stands for. Raises ValueError for what is no quantity."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    if found[2]:
        return float(found[1] + found[2])
    return float(Decimal(found[1]) * _FACTORS[found[3] or ""])
