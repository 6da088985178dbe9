"""Machines of clouds that have one kind of card alone, and how many: from the clouds' own lists of machine types; pure.

Where nothing else on a node names its card, its type does; and more devices than cards are parts of cards, whatever the
labels say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import GpuType


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudMachine:
    """parts: 8 where the machine has an eighth of a card."""

    card: GpuType
    num_cards: int
    parts: int = 1


_TYPES: Final[Mapping[str, Any]] = yaml.safe_load(Path(__file__).with_name("machines.yaml").read_text())


@lru_cache(maxsize=1024)
def machine_of(instance_type: str) -> CloudMachine | None:
    """The cards of a cloud's machine of that type, for types that have one kind of card alone."""
    for pattern, card, count in _TYPES["machines"]:
        found = re.fullmatch(pattern, instance_type, re.IGNORECASE)
        if found is not None:
            num_cards = count if isinstance(count, int) else _counted(count, found[1].lower())
            return CloudMachine(card=CATALOGUE[card].gpu, num_cards=max(1, num_cards))
    for pattern, card, parts in _TYPES["parts"]:
        if re.fullmatch(pattern, instance_type, re.IGNORECASE):
            return CloudMachine(card=CATALOGUE[card].gpu, num_cards=1, parts=parts)
    return None


def _counted(by_size: Mapping[str, int], size: str) -> int:
    return int(size) // by_size["divide_by"] if "divide_by" in by_size else by_size.get(size, 1)
