"""Which card a node has, from what its labels call it; pure.

Names differ by the generation of the driver (``Tesla-T4``, ``NVIDIA-T4``), by cloud
(``nvidia-tesla-t4``, ``t4``, an instance type) and by how the card is divided. A name is reduced to
what tells cards apart; memory decides between cards of one name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.units import MIB

# A driver says some percent more than CUDA leaves to programs; cards of one name differ by 20 % and more.
_SAME_MEMORY: Final = 0.12
_MIG: Final = re.compile(r"-MIG-([1-9]\d*)g\.([1-9]\d*)gb(?:[.+-]?(?:me|gfx|all))*", re.IGNORECASE)
_PROFILE: Final = re.compile(r"(?<![0-9])([1-9]\d*)g\.([1-9]\d*)gb")
_VIRTUAL: Final = re.compile(r"-([1-9]\d*)[AQC]$")
_SHARED: Final = re.compile(r"-SHARED$", re.IGNORECASE)
_WORDS: Final = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)?")
_SIZE: Final = re.compile(r"\d+gb?|hbm\d+e?")
# Words that say who sells the card, or how its housing is called.
_EMPTY_WORDS: Final = frozenset(
    {"nvidia", "tesla", "quadro", "geforce", "graphics", "device", "generation", "blackwell", "edition", "mega"}
)
_HOUSINGS: Final[Mapping[str, str]] = {f"sxm{number}": "sxm" for number in ("", 2, 3, 4, 5, 6)}

_CARDS: Final[Mapping[str, list[str]]] = yaml.safe_load(Path(__file__).with_name("cards.yaml").read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A slice of a card: ``compute`` of its compute slices, ``memory_gb`` of memory, as in ``3g.40gb``."""

    compute: int
    memory_gb: int

    @property
    def name(self) -> str:
        return f"{self.compute}g.{self.memory_gb}gb"

    @classmethod
    def of(cls, text: str) -> MigProfile | None:
        """The profile in ``text`` (``mig-3g.40gb``, ``3g.40gb.me``), if there is one."""
        found = _PROFILE.search(text)
        return None if found is None else cls(compute=int(found[1]), memory_gb=int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product's name, taken apart. name: of the whole card, as it was written. part_gb: memory of a virtual GPU."""

    name: str
    mig: MigProfile | None
    is_shared: bool
    part_gb: int | None = None

    @property
    def key(self) -> str:
        """What tells cards apart: no vendor, no memory size, no generation of the socket."""
        words = (_HOUSINGS.get(word, word) for word in _WORDS.findall(self.name.lower()))
        return " ".join(word for word in words if word not in _EMPTY_WORDS and not _SIZE.fullmatch(word))

    @property
    def written_size_gb(self) -> int | None:
        """The memory in the name, where it is there: ``A100-SXM4-40GB``. A ``GH200-480GB`` names its processor's."""
        if self.key == "gh200":
            return None
        found = re.findall(r"(?<![a-z0-9])(\d+)gb?(?![a-z0-9])", self.name.lower())
        return int(found[-1]) if found else None


def parse_product(text: str) -> Product:
    """``NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED`` as card, slice and whether it is shared."""
    mig = _MIG.search(text)
    whole = _SHARED.sub("", text)
    part = _VIRTUAL.search(whole)
    return Product(
        name=_VIRTUAL.sub("", _MIG.sub("", whole)),
        part_gb=None if part is None else int(part[1]),
        mig=None if mig is None else MigProfile(compute=int(mig[1]), memory_gb=int(mig[2])),
        is_shared=whole != text,
    )


def cards_of(product: Product) -> tuple[GpuType, ...]:
    """The catalogue's cards of that name, likeliest first; none for a name it does not have."""
    return tuple(CATALOGUE[name].gpu for name in _CARDS.get(product.key, ()))


def cards_sold_as(name: str) -> tuple[GpuType, ...]:
    """The catalogue's cards that a driver's ``name`` may mean; of one that says the memory, those that have it."""
    product = parse_product(name)
    sized = card_of(product, None, None)
    return cards_of(product) if product.written_size_gb is None else () if sized is None else (sized,)


def card_of(product: Product, memory_bytes: int | None, compute_capability: str | None) -> GpuType | None:
    """The catalogue's card that agrees in name, memory and compute capability.

    memory_bytes: of the whole card, where it is known. Without it the size in the name decides, and
    without that the card that is likeliest.
    """
    cards = [each for each in cards_of(product) if compute_capability in (None, each.compute_capability)]
    size_gb = product.written_size_gb
    wanted = memory_bytes if memory_bytes is not None else None if size_gb is None else size_gb * 1024 * MIB
    if wanted is None:
        return cards[0] if cards else None
    near = [each for each in cards if abs(each.memory_bytes - wanted) <= _SAME_MEMORY * wanted]
    return min(near, key=lambda each: abs(each.memory_bytes - wanted), default=None)


def can_be_sliced(card: GpuType) -> bool:
    """Whether ``card`` knows MIG: large chips from Ampere on, and the RTX PRO 6000 (NVIDIA's MIG user guide)."""
    return card.compute_capability in ("8.0", "9.0", "10.0", "10.3") or card.name == "rtx-pro-6000"
