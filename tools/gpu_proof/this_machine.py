"""The machine of the proof: its GPU as MARP knows it, its host."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Final

import psutil

from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.units import GIB
from frenzy.trainer.measure.bench import CardFacts, card_facts

# A figure in a card's name that is so near its memory in GiB tells its size, which is asked apart.
_SIZE_SHARE: Final = 0.15
_VIRTUAL_BYTES: Final = 1 * GIB
# Of the order of one core: a virtual GPU that no machine reaches would say nothing about predicted times.
_VIRTUAL_FLOPS_PER_S: Final = 2e10


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """name: of the card, for the lines. driver: None where NVML does not tell."""

    name: str
    gpu: GpuType
    host_bytes: int
    num_cpus: int
    driver: str | None = None

    @property
    def is_virtual(self) -> bool:
        return self.gpu.kind is DeviceKind.VIRTUAL


def this_machine(kind: DeviceKind) -> Machine:
    """Raises PermanentError where there is no card of ``kind``, or one that the catalogue does not have."""
    host_bytes, num_cpus = psutil.virtual_memory().total, len(os.sched_getaffinity(0))
    if kind is DeviceKind.VIRTUAL:
        gpu = GpuType(name="virtual", memory_bytes=_VIRTUAL_BYTES, flops_per_s=_VIRTUAL_FLOPS_PER_S, kind=kind)
        return Machine(name=f"virtual GPU, {num_cpus} cores", gpu=gpu, host_bytes=host_bytes, num_cpus=num_cpus)
    card = card_facts()
    return Machine(name=card.name, gpu=known_gpu(card), host_bytes=host_bytes, num_cpus=num_cpus, driver=card.driver)


def known_gpu(card: CardFacts) -> GpuType:
    """The catalogue's entry for ``card``, with the memory that the card has.

    Raises PermanentError for a card that it does not have: without its rates nothing can be predicted.
    """
    words = set(re.split(r"[^a-z0-9]+", card.name.lower()))
    alike = [each.gpu for each in CATALOGUE.values() if words.issuperset(_words(each.gpu))]
    if not alike:
        detail = f"{card.name!r} is not in the GPU catalogue (docs/gpu-catalogue.md)."
        remedy = "Add its datasheet's rates to frenzy.core.values.gpu_catalogue."
        raise PermanentError(Reason(code=ReasonCode.GPU_NOT_SUPPORTED, detail=detail, remedy=remedy))
    best = min(alike, key=lambda gpu: (-len(_words(gpu)), abs(gpu.memory_bytes - card.memory_bytes)))
    return replace(best, memory_bytes=card.memory_bytes)


def _words(gpu: GpuType) -> list[str]:
    """The parts of the catalogue's name that a card's own name must have."""
    return [each for each in gpu.name.split("-") if not (each.isdecimal() and _is_size(int(each), gpu.memory_bytes))]


def _is_size(number: int, memory_bytes: int) -> bool:
    return abs(number * GIB / memory_bytes - 1) < _SIZE_SHARE
