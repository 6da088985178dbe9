"""GPU cards that a cluster file may name without describing them.

Memory is what the CUDA driver reports as the device's total, below the printed size because
firmware, page tables and (on the server cards, which have it on) ECC take their part; it differs by
some tens of MiB between driver releases, and the lower figure is kept. Peak rates are dense (half of
a datasheet's figure with sparsity) and with fp32 accumulation, since that is what training uses:
GeForce cards run at half rate there. Cards before compute capability 8.0 have no bf16 units and
compute it at the fp32 rate. Links are per direction (half of a datasheet's total): NVLink where the
form factor has it, else the PCIe slot. Prices are the cluster's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from frenzy.core.values.hardware import GpuType
from frenzy.core.values.units import GIB

_TERA: Final = 1e12
_GIGA: Final = 1e9
_FIRST_WITH_BF16: Final = (8, 0)
_CARDS_OF_A_NODE: Final = 8

SoldAs = Callable[[str], Iterable[GpuType]]
"""The cards that a driver's name may mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One card, what joins it to its neighbours, and the document its rates are from.

    cards_of_a_node: the most that the servers have which are sold with it.
    """

    gpu: GpuType
    link: str
    source: str
    cards_of_a_node: int


class _Link(NamedTuple):
    """name, and GB/s in each direction."""

    name: str
    gb_per_s: float


_PCIE3: Final = _Link("PCIe 3 x16", 16)
_PCIE4_X8: Final = _Link("PCIe 4 x8", 16)
_PCIE4: Final = _Link("PCIe 4 x16", 32)
_PCIE5: Final = _Link("PCIe 5 x16", 64)


def _nvlink(generation: int, gb_per_s: float) -> _Link:
    return _Link(f"NVLink {generation}", gb_per_s)


class _Card(NamedTuple):
    """One row: memory in GiB, dense rates in TFLOP/s (tf32: None before Ampere), memory GB/s, board power in W."""

    name: str
    memory_gib: float
    fp16: float
    tf32: float | None
    fp32: float
    memory_gb_per_s: float
    link: _Link
    power_w: float
    compute_capability: str
    source: str
    cards_of_a_node: int = _CARDS_OF_A_NODE

    @property
    def bf16(self) -> float:
        major, minor = self.compute_capability.split(".")
        return self.fp16 if (int(major), int(minor)) >= _FIRST_WITH_BF16 else self.fp32

    @property
    def entry(self) -> CatalogueEntry:
        gpu = GpuType(
            name=self.name,
            memory_bytes=round(self.memory_gib * GIB),
            flops_per_s=self.fp16 * _TERA,
            bf16_flops_per_s=self.bf16 * _TERA,
            tf32_flops_per_s=None if self.tf32 is None else self.tf32 * _TERA,
            fp32_flops_per_s=self.fp32 * _TERA,
            memory_bandwidth_bytes_per_s=self.memory_gb_per_s * _GIGA,
            link_bytes_per_s=self.link.gb_per_s * _GIGA,
            compute_capability=self.compute_capability,
            power_w=self.power_w,
        )
        return CatalogueEntry(gpu=gpu, link=self.link.name, source=self.source, cards_of_a_node=self.cards_of_a_node)


_BLACKWELL: Final = (
    _Card(
        "gb300", 276.7, 2500, 1250, 80, 8000, _nvlink(5, 900), 1400, "10.3", "NVIDIA GB300 NVL72 datasheet, per GPU", 4
    ),
    _Card("b300", 267.7, 2250, 1125, 75, 8000, _nvlink(5, 900), 1100, "10.3", "NVIDIA HGX B300 datasheet, per GPU"),
    _Card(
        "gb200", 184.3, 2500, 1250, 80, 8000, _nvlink(5, 900), 1200, "10.0", "NVIDIA GB200 NVL72 datasheet, per GPU", 4
    ),
    _Card("b200", 178.3, 2250, 1125, 75, 7700, _nvlink(5, 900), 1000, "10.0", "NVIDIA HGX/DGX B200 datasheet, per GPU"),
    _Card("rtx-pro-6000", 94.9, 503.8, 251.9, 126, 1792, _PCIE5, 600, "12.0", "NVIDIA RTX PRO Blackwell paper"),
    _Card("rtx-5090", 31.3, 209.5, 104.8, 104.8, 1792, _PCIE5, 575, "12.0", "NVIDIA RTX Blackwell architecture paper"),
)
_HOPPER: Final = (
    _Card("gh200-96", 94.5, 989.4, 494.7, 66.9, 4000, _nvlink(4, 450), 900, "9.0", "NVIDIA GH200 datasheet, 96GB HBM3"),
    _Card("h200", 139.8, 989.4, 494.7, 66.9, 4800, _nvlink(4, 450), 700, "9.0", "NVIDIA H200 datasheet, SXM"),
    _Card("h200-nvl", 139.8, 835.5, 417.5, 60, 4800, _nvlink(4, 450), 600, "9.0", "NVIDIA H200 datasheet, NVL"),
    _Card("h100", 79.1, 989.4, 494.7, 66.9, 3350, _nvlink(4, 450), 700, "9.0", "NVIDIA H100 datasheet, SXM5"),
    _Card("h100-nvl", 93.0, 835.5, 417.5, 60, 3938, _nvlink(4, 300), 400, "9.0", "NVIDIA H100 NVL product brief"),
    _Card("h100-pcie", 79.1, 756, 378, 51.2, 2000, _PCIE5, 350, "9.0", "NVIDIA H100 PCIe product brief"),
    _Card("h800", 79.1, 989.4, 494.7, 66.9, 3350, _nvlink(4, 200), 700, "9.0", "NVIDIA H800 datasheet, SXM5"),
    _Card("h800-pcie", 79.1, 756, 378, 51.2, 2000, _PCIE5, 350, "9.0", "NVIDIA H800 datasheet, 80GB PCIe"),
    _Card("h20", 95.0, 148, 74, 44, 4000, _nvlink(4, 450), 400, "9.0", "NVIDIA H20 datasheet, 96GB SXM"),
)
_ADA: Final = (
    _Card("l40s", 44.4, 362, 183, 91.6, 864, _PCIE4, 350, "8.9", "NVIDIA L40S datasheet"),
    _Card("l40", 44.4, 181, 90.5, 90.5, 864, _PCIE4, 300, "8.9", "NVIDIA L40 datasheet"),
    _Card("l20", 44.5, 119.5, 59.8, 59.8, 864, _PCIE4, 275, "8.9", "NVIDIA L20 datasheet"),
    _Card("l4", 22.0, 121, 60.5, 30.3, 300, _PCIE4, 72, "8.9", "NVIDIA L4 datasheet"),
    _Card("rtx-6000-ada", 47.4, 364.2, 182.1, 91.1, 960, _PCIE4, 300, "8.9", "NVIDIA RTX 6000 Ada datasheet"),
    _Card("rtx-5000-ada", 31.5, 261.1, 130.6, 65.3, 576, _PCIE4, 250, "8.9", "NVIDIA RTX 5000 Ada datasheet"),
    _Card("rtx-4000-ada", 19.6, 106.9, 53.4, 26.7, 360, _PCIE4, 130, "8.9", "NVIDIA RTX 4000 Ada datasheet"),
    _Card("rtx-4090", 23.5, 165.2, 82.6, 82.6, 1008, _PCIE4, 450, "8.9", "NVIDIA Ada architecture paper, appendix A"),
    _Card("rtx-4080", 15.6, 97.5, 48.7, 48.7, 717, _PCIE4, 320, "8.9", "NVIDIA Ada architecture paper, appendix B"),
)
_AMPERE: Final = (
    _Card("a100-80", 79.1, 312, 156, 19.5, 2039, _nvlink(3, 300), 400, "8.0", "NVIDIA A100 datasheet, 80GB SXM"),
    _Card("a100-40", 39.4, 312, 156, 19.5, 1555, _nvlink(3, 300), 400, "8.0", "NVIDIA A100 datasheet, 40GB SXM"),
    _Card("a100-80-pcie", 79.1, 312, 156, 19.5, 1935, _PCIE4, 300, "8.0", "NVIDIA A100 datasheet, 80GB PCIe"),
    _Card("a100-40-pcie", 39.4, 312, 156, 19.5, 1555, _PCIE4, 250, "8.0", "NVIDIA A100 PCIe product brief, 40GB"),
    _Card("a800-80", 79.1, 312, 156, 19.5, 2039, _nvlink(3, 200), 400, "8.0", "NVIDIA A800 datasheet, 80GB SXM"),
    _Card("a800-80-pcie", 79.1, 312, 156, 19.5, 1935, _PCIE4, 300, "8.0", "NVIDIA A800 datasheet, 80GB PCIe"),
    _Card("a30", 23.5, 165, 82, 10.3, 933, _PCIE4, 165, "8.0", "NVIDIA A30 datasheet"),
    _Card("a40", 44.3, 149.7, 74.8, 37.4, 696, _PCIE4, 300, "8.6", "NVIDIA A40 datasheet"),
    _Card("a10", 22.0, 125, 62.5, 31.2, 600, _PCIE4, 150, "8.6", "NVIDIA A10 datasheet"),
    _Card("a10g", 22.0, 70, 35, 35, 600, _PCIE4, 300, "8.6", "NVIDIA A10G datasheet"),
    _Card("a2", 14.5, 18, 9, 4.5, 200, _PCIE4_X8, 60, "8.6", "NVIDIA A2 datasheet"),
    _Card("rtx-a6000", 47.4, 154.8, 77.4, 38.7, 768, _PCIE4, 300, "8.6", "NVIDIA RTX A6000 datasheet"),
    _Card("rtx-a5000", 23.6, 111.1, 55.6, 27.8, 768, _PCIE4, 230, "8.6", "NVIDIA RTX A5000 datasheet"),
    _Card("rtx-a4000", 15.6, 76.7, 38.4, 19.2, 448, _PCIE4, 140, "8.6", "NVIDIA RTX A4000 datasheet"),
    _Card("rtx-3090-ti", 23.6, 80, 40, 40, 1008, _PCIE4, 450, "8.6", "NVIDIA Ampere GA102 paper"),
    _Card("rtx-3090", 23.6, 71, 35.6, 35.6, 936, _PCIE4, 350, "8.6", "NVIDIA Ampere GA102 paper"),
    _Card("rtx-3080", 9.7, 59.5, 29.8, 29.8, 760, _PCIE4, 320, "8.6", "NVIDIA Ampere GA102 paper, 10GB"),
)
_OLDER: Final = (
    _Card("t4", 14.56, 65, None, 8.1, 320, _PCIE3, 70, "7.5", "NVIDIA T4 datasheet"),
    _Card("titan-rtx", 23.6, 130.5, None, 16.3, 672, _PCIE3, 280, "7.5", "NVIDIA Turing GPU architecture paper"),
    _Card("rtx-6000", 23.6, 130.5, None, 16.3, 672, _PCIE3, 295, "7.5", "NVIDIA Quadro RTX 6000 datasheet (Turing)"),
    _Card("rtx-2080-ti", 10.7, 53.8, None, 13.4, 616, _PCIE3, 250, "7.5", "NVIDIA Turing GPU architecture paper"),
    _Card("v100-32", 31.7, 125, None, 15.7, 900, _nvlink(2, 150), 300, "7.0", "NVIDIA V100 datasheet, 32GB SXM2"),
    _Card("v100-16", 15.7, 125, None, 15.7, 900, _nvlink(2, 150), 300, "7.0", "NVIDIA V100 datasheet, 16GB SXM2"),
    _Card("v100s-32-pcie", 31.7, 130, None, 16.4, 1134, _PCIE3, 250, "7.0", "NVIDIA V100S datasheet, 32GB PCIe"),
    _Card("v100-32-pcie", 31.7, 112, None, 14, 900, _PCIE3, 250, "7.0", "NVIDIA V100 datasheet, 32GB PCIe"),
    _Card("v100-16-pcie", 15.7, 112, None, 14, 900, _PCIE3, 250, "7.0", "NVIDIA V100 datasheet, 16GB PCIe"),
    _Card("p100-16-sxm", 15.9, 21.2, None, 10.6, 732, _nvlink(1, 80), 300, "6.0", "NVIDIA Tesla P100 datasheet, SXM2"),
    _Card("p100-16", 15.9, 18.7, None, 9.3, 732, _PCIE3, 250, "6.0", "NVIDIA Tesla P100 datasheet, 16GB PCIe"),
)

CATALOGUE: Final[Mapping[str, CatalogueEntry]] = {
    card.name: card.entry for card in (*_BLACKWELL, *_HOPPER, *_ADA, *_AMPERE, *_OLDER)
}
# A driver says some percent more than CUDA leaves to programs.
_SAME_MEMORY: Final = 0.12
# Part of a name that is no size of memory: GeForce cards are known by four digits.
_PART: Final = re.compile(r"[a-z]|\d{4}", re.IGNORECASE)


def card_called(name: str) -> str | None:
    """The catalogue's card of that name, also with the memory in GB that it has anyway: ``h100-80`` is ``h100``."""
    if name in CATALOGUE:
        return name
    card, _, size = name.rpartition("-")
    if card not in CATALOGUE or not size.isdigit():
        return None
    return card if abs(CATALOGUE[card].gpu.memory_bytes / GIB - int(size)) <= _SAME_MEMORY * int(size) else None


def cards_of_a_node(name: str) -> int:
    """The most that a server has of this card, as it is sold; eight of a card that the catalogue does not have."""
    card = card_called(name)
    return _CARDS_OF_A_NODE if card is None else CATALOGUE[card].cards_of_a_node


def sold_as_nothing(_name: str) -> Iterable[GpuType]:
    """No driver's name is known."""
    return ()


def types_named(asked: str, types: Iterable[GpuType], sold_as: SoldAs = sold_as_nothing) -> tuple[GpuType, ...]:
    """Those of ``types`` that ``asked`` means, as people write cards: ``RTX4090``, ``NVIDIA H100 80GB``, ``4090``.

    Case, punctuation and the maker count only between types that differ in nothing else. The type of that name, else of
    that card. Where the catalogue does not have such a card either, all types whose name begins or ends so (``A100`` is
    each A100, ``A10`` is none, ``80`` is but a size), else those of the cards that ``sold_as`` tells.
    """
    known = tuple(types)
    for spelling in (str, type_key, _card_key):
        same = tuple(each for each in known if spelling(each.name) == spelling(asked))
        if same:
            return same
    if _card_key(asked) in map(type_key, CATALOGUE):
        return ()
    if _PART.search(asked):
        same = tuple(each for each in known if type_key(asked) in _ends(each.name))
    return same or tuple(each for card in sold_as(asked) for each in types_named(card.name, known))


def type_key(name: str) -> str:
    """What tells names of types apart."""
    return "".join(_parts(name))


def _card_key(name: str) -> str:
    """The same of the catalogue's card where it is one, so that ``h100-80`` is ``h100``."""
    return type_key(card_called("-".join(_parts(name))) or name)


def _ends(name: str) -> set[str]:
    parts = _parts(name)
    return {"".join(each) for at in range(1, len(parts)) for each in (parts[:at], parts[at:])}


def _parts(name: str) -> list[str]:
    found = re.findall(r"[a-z0-9]+", re.sub("nvidia|geforce", "", name.lower()))
    return [re.sub(r"^(\d+)gb$", r"\1", each) for each in found]
