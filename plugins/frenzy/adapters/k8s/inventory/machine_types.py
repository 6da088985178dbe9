"""Machines of clouds that have one kind of card alone, and how many: from the clouds' own lists of machine types; pure.

Where nothing else on a node names its card, its type does; and more devices than cards are parts of cards, whatever the
labels say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import GpuType

# How many cards: always so many, or by what the pattern's group found.
_Count = int | Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudMachine:
    """parts: 8 where the machine has an eighth of a card."""

    card: GpuType
    num_cards: int
    parts: int = 1


def _one_or(counts: Mapping[str, int]) -> Callable[[str], int]:
    return lambda size: counts.get(size, 1)


def _one_for_each(cores: int) -> Callable[[str], int]:
    return lambda size: int(size) // cores


_G6: Final = _one_or({"12": 4, "24": 4, "48": 8})

_MACHINES: Final[tuple[tuple[str, str, _Count], ...]] = (
    # Amazon EC2
    (r"p3\.(\d+)xlarge", "v100-16", _one_for_each(2)),
    (r"p3dn\.24xlarge", "v100-32", 8),
    (r"p4d\.24xlarge", "a100-40", 8),
    (r"p4de\.24xlarge", "a100-80", 8),
    (r"p5\.4xlarge", "h100", 1),
    (r"p5\.48xlarge", "h100", 8),
    (r"p5en?\.48xlarge", "h200", 8),
    (r"p6-b200\.48xlarge", "b200", 8),
    (r"p6-b300\.48xlarge", "b300", 8),
    (r"p6e-gb200\.36xlarge", "gb200", 4),
    (r"g4dn\.(\d*xlarge|metal)", "t4", _one_or({"12xlarge": 4, "metal": 8})),
    (r"g5\.(\d*)xlarge", "a10g", _G6),
    (r"gr?6\.(\d*)xlarge", "l4", _G6),
    (r"g6e\.(\d*)xlarge", "l40s", _G6),
    (r"g7e\.(\d+)xlarge", "rtx-pro-6000", _one_or({"12": 2, "24": 4, "48": 8})),
    # Azure
    (r"Standard_NC(\d+)as_T4_v3", "t4", _one_or({"64": 4})),
    (r"Standard_NC(\d+)r?s_v3", "v100-16-pcie", _one_for_each(6)),
    (r"Standard_ND40rs_v2", "v100-32", 8),
    (r"Standard_NC(\d+)ads_A100_v4", "a100-80-pcie", _one_for_each(24)),
    (r"Standard_ND96asr(?:_A100)?_v4", "a100-40", 8),
    (r"Standard_ND96amsr_A100_v4", "a100-80", 8),
    (r"Standard_NCC?(\d+)adi?s_H100_v5", "h100-nvl", _one_for_each(40)),
    (r"Standard_ND96isr_H100_v5", "h100", 8),
    (r"Standard_ND96isr_H200_v5", "h200", 8),
    (r"Standard_ND128isr_NDR_GB200_v6", "gb200", 4),
    (r"Standard_ND128isr_GB300_v6", "gb300", 4),
    (r"Standard_NV(36|72)adm?s_A10_v5", "a10", _one_for_each(36)),  # smaller ones have a part of a card
    # Google Cloud
    (r"a2-(?:highgpu|megagpu)-(\d+)g", "a100-40", int),
    (r"a2-ultragpu-(\d+)g", "a100-80", int),
    (r"a3-(?:edge|high|mega)gpu-(\d+)g(?:-nolssd)?", "h100", int),
    (r"a3-ultragpu-(\d+)g(?:-nolssd)?", "h200", int),
    (r"a4-highgpu-(\d+)g(?:-nolssd)?", "b200", int),
    (r"a4x-highgpu-(\d+)g(?:-nolssd)?", "gb200", int),
    (r"a4x-maxgpu-(\d+)g-metal", "gb300", int),
    (r"g4-standard-(48|96|192|384)", "rtx-pro-6000", _one_for_each(48)),  # smaller ones have a part of a card
    (r"g2-standard-(\d+)", "l4", _one_or({"24": 2, "48": 4, "96": 8})),
    # Oracle Cloud
    (r"(?:VM|BM)\.GPU3\.(\d)", "v100-16", int),
    (r"BM\.GPU4\.8", "a100-40", 8),
    (r"BM\.GPU\.A100-v2\.8", "a100-80", 8),
    (r"BM\.GPU\.H100\.8", "h100", 8),
    (r"BM\.GPU\.H200\.8", "h200", 8),
    (r"BM\.GPU\.B200\.8", "b200", 8),
    (r"BM\.GPU\.GB200\.4", "gb200", 4),
    (r"BM\.GPU\.L40S\.4", "l40s", 4),
    (r"(?:VM|BM)\.GPU\.A10\.(\d)", "a10", int),
)
# Virtual machines with a part of one card: the type, the card, and one part of how many.
_PARTS: Final[tuple[tuple[str, str, int], ...]] = (
    (r"g6f\.x?large", "l4", 8),
    (r"g6f\.2xlarge", "l4", 4),
    (r"gr?6f\.4xlarge", "l4", 2),
)


@lru_cache(maxsize=1024)
def machine_of(instance_type: str) -> CloudMachine | None:
    """The cards of a cloud's machine of that type, for types that have one kind of card alone."""
    for pattern, card, count in _MACHINES:
        found = re.fullmatch(pattern, instance_type, re.IGNORECASE)
        if found is not None:
            num_cards = count if isinstance(count, int) else count(found[1].lower())
            return CloudMachine(card=CATALOGUE[card].gpu, num_cards=max(1, num_cards))
    for pattern, card, parts in _PARTS:
        if re.fullmatch(pattern, instance_type, re.IGNORECASE):
            return CloudMachine(card=CATALOGUE[card].gpu, num_cards=1, parts=parts)
    return None
