"""The GPU type that a node's labels describe: a whole card, a MIG slice, a share, or a card nobody listed; pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from frenzy.adapters.k8s.inventory.products import MigProfile, Product, card_of, cards_of
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.resource_plan import short_hash
from frenzy.core.values.units import GIB

# Of the memory that a driver reports, what CUDA leaves to programs at least: 0.9707 (T4) is the least over the
# catalogue's cards.
_USABLE_SHARE: Final = 0.97
# Of the gigabytes in a MIG profile's name: 4.75 GiB of 1g.5gb on an A100, the least of NVIDIA's table.
_USABLE_OF_PROFILE: Final = 0.95
_COMPUTE_SLICES: Final = 7
_COMPUTE_SLICES_OF: Final = {"a30": 4, "rtx-pro-6000": 4}
_SLOWEST_KNOWN: Final = "t4"
_MAX_NAME: Final = 55


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What the labels say of a node's devices of one kind.

    product: None where only ``card`` is known. memory_bytes: of one device as the driver reports it:
    of the slice for MIG, of the whole card for a share. replicas: shares of one device.
    """

    product: Product | None = None
    card: GpuType | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    mig: MigProfile | None = None
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """estimated_from: the card whose rates stand in for a product that the catalogue does not have."""

    gpu: GpuType
    estimated_from: str | None = None


@lru_cache(maxsize=1024)
def derive_type(described: Described) -> Derived | None:
    """The GPU type of ``described``; None when neither the card nor its memory is known."""
    whole = _whole_card(described)
    if whole is None:
        return None
    sliced = whole.gpu if described.mig is None else _slice(whole.gpu, described.mig, described.memory_bytes)
    gpu = sliced if described.replicas < 2 else _share(sliced, described.replicas)
    return replace(whole, gpu=gpu)


def _whole_card(described: Described) -> Derived | None:
    product, card = described.product, described.card
    # a slice's memory says nothing of its card
    memory_bytes = described.memory_bytes if described.mig is None else None
    if product is not None:
        card = card_of(product, memory_bytes, described.compute_capability) or card
    if card is not None:
        return Derived(gpu=card)
    if product is None:
        return None
    return _unlisted(product, memory_bytes, described.compute_capability)


def _unlisted(product: Product, memory_bytes: int | None, compute_capability: str | None) -> Derived | None:
    """A type of its own for a product that the catalogue does not have: its memory, another card's rates.

    The rates of a card of the same name, else the slowest of the same compute capability, are on the
    safe side; HAS measures nothing.
    """
    if memory_bytes is None and product.written_size_gb is None:
        return None
    memory = memory_bytes if memory_bytes is not None else (product.written_size_gb or 0) * GIB
    stand_in = _stand_in(product, compute_capability)
    gpu = replace(
        stand_in,
        name=_type_name(f"{product.name}-{round(memory / GIB)}g"),
        memory_bytes=round(memory * _USABLE_SHARE),
        compute_capability=compute_capability or stand_in.compute_capability,
        power_w=None,
    )
    return Derived(gpu=gpu, estimated_from=stand_in.name)


def _stand_in(product: Product, compute_capability: str | None) -> GpuType:
    same_name = cards_of(product)
    if same_name:
        return min(same_name, key=_speed)
    major = (compute_capability or "").partition(".")[0]
    same_chip = _cards(lambda card: card.compute_capability == compute_capability)
    alike = same_chip or _cards(lambda card: (card.compute_capability or "").partition(".")[0] == major)
    return min(alike, key=_speed) if alike else CATALOGUE[_SLOWEST_KNOWN].gpu


def _cards(matches: Callable[[GpuType], bool]) -> list[GpuType]:
    return [entry.gpu for entry in CATALOGUE.values() if matches(entry.gpu)]


def _speed(card: GpuType) -> tuple[float, str]:
    return card.flops_per_s, card.name


def _slice(card: GpuType, mig: MigProfile, memory_bytes: int | None) -> GpuType:
    """A MIG slice: its share of the compute units, and of the bandwidth as of the memory.

    Slices cannot form one process group (NCCL takes one per card), so a job has one.
    """
    slices = _COMPUTE_SLICES_OF.get(card.name, _COMPUTE_SLICES)
    memory = round(memory_bytes * _USABLE_SHARE) if memory_bytes else round(mig.memory_gb * _USABLE_OF_PROFILE * GIB)
    memory = min(memory, card.memory_bytes)
    return _part(
        card,
        name=f"{card.name}-mig-{mig.name}",
        compute=min(1.0, mig.compute / slices),
        bandwidth=memory / card.memory_bytes,
        memory_bytes=memory,
    )


def _share(gpu: GpuType, replicas: int) -> GpuType:
    """One of ``replicas`` shares: nothing keeps the others out of its memory or time, so each counts on its part."""
    part = 1.0 / replicas
    name = f"{gpu.name}-shared-{replicas}"
    return _part(gpu, name=name, compute=part, bandwidth=part, memory_bytes=gpu.memory_bytes // replicas)


def _part(gpu: GpuType, *, name: str, compute: float, bandwidth: float, memory_bytes: int) -> GpuType:
    def part_of(rate: float | None) -> float | None:
        return None if rate is None else rate * compute

    return replace(
        gpu,
        name=_type_name(name),
        memory_bytes=memory_bytes,
        flops_per_s=gpu.flops_per_s * compute,
        bf16_flops_per_s=part_of(gpu.bf16_flops_per_s),
        tf32_flops_per_s=part_of(gpu.tf32_flops_per_s),
        fp32_flops_per_s=part_of(gpu.fp32_flops_per_s),
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * bandwidth,
        power_w=part_of(gpu.power_w),
        price_per_hour=part_of(gpu.price_per_hour),
        max_gpus_per_job=1,
    )


def _type_name(text: str) -> str:
    """``text`` as a type is called: a cluster file, a pool and a label can all name it."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower().removeprefix("nvidia-")).strip("-.")
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 9].rstrip('-.')}-{short_hash(name, length=8)}"
