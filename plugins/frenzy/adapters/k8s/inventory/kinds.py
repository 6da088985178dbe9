"""Which GPUs a machine has, kind by kind, and what people should know of those that cannot be used; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.inventory.devices import (
    GPU,
    MISCONFIGURED,
    PRODUCT,
    VIRTUAL_GPU,
    Devices,
    devices_of,
    other_vendors,
    own_count,
    own_resource,
    says_it_has_gpus,
)
from frenzy.adapters.k8s.inventory.gpu_types import Derived, derive_type
from frenzy.adapters.k8s.objects import NodeFacts
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.units import counted, format_bytes

ESTIMATED_FROM: Final = "frenzy.dev/rates-estimated-from"
_LABEL_IT: Final = (
    "Install NVIDIA's GPU feature discovery (part of the GPU operator), or label the node: "
    f"{labels.GPU_TYPE}=<a type of the cluster file or the catalogue>."
)
_OFFER_THEM: Final = (
    "Look at NVIDIA's device plugin on that node; of dynamic resource allocation, whole GPUs that are alike are used "
    "where a DeviceClass has extendedResourceName: nvidia.com/gpu."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something about ``node`` that a person should know, and what to do."""

    node: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """GPUs of one type on one node, before others' pods are counted off. is_lost: none of them answers now."""

    gpu: GpuType
    count: int
    resource: str | None
    estimated_from: str | None = None
    is_lost: bool = False

    def node_name(self, machine: str) -> str:
        """Never another one while other kinds come and go: leases are held by it."""
        if self.resource in (None, GPU, VIRTUAL_GPU):
            return machine
        return f"{machine}/{(self.resource or '').rpartition('/')[2]}"


def kinds_of(machine: NodeFacts, declared: Mapping[str, GpuType], told: list[Notice]) -> Iterator[Kind]:
    """Each kind of ``machine``'s GPUs, what is odd to ``told``. declared: types of the cluster file by name."""
    named = machine.labels.get(labels.GPU_TYPE)
    if named is not None:
        yield from _named_kind(machine, named, declared, told)
        return
    if MISCONFIGURED in machine.labels.get(PRODUCT, ""):
        detail = "Its MIG slices do not agree with the strategy of the device plugin."
        told.append(Notice(node=machine.name, detail=detail, remedy="Give all its GPUs one profile, or use mixed."))
        return
    others = other_vendors(machine)
    if others:
        detail = f"Its {', '.join(others)} is no NVIDIA GPU; workers run on CUDA only."
        told.append(Notice(node=machine.name, detail=detail, remedy="Nothing to do: that is left out."))
    found = tuple(devices_of(machine))
    if not found and says_it_has_gpus(machine):
        told.append(Notice(node=machine.name, detail="It has GPUs, and offers none as a resource.", remedy=_OFFER_THEM))
    for devices in found:
        yield from _discovered_kind(machine, devices, declared, told)


def _named_kind(machine: NodeFacts, name: str, declared: Mapping[str, GpuType], told: list[Notice]) -> Iterator[Kind]:
    """A node whose type a label of ours names: what an administrator says comes before what is discovered."""
    gpu = declared.get(name) or (CATALOGUE[name].gpu if name in CATALOGUE else None)
    resource = own_resource(machine)
    count = int(machine.allocatable.get(resource, 0)) if resource is not None else own_count(machine)
    if gpu is None:
        remedy = "Name a type of the cluster file or the catalogue, or describe it in the cluster file."
        told.append(
            Notice(node=machine.name, detail=f"{labels.GPU_TYPE} names {name!r}, which is none.", remedy=remedy)
        )
    elif count is None:
        remedy = f"Label it: {labels.GPU_COUNT}=<number>."
        told.append(Notice(node=machine.name, detail="It does not say how many GPUs it has.", remedy=remedy))
    else:
        yield Kind(gpu=gpu, count=count, resource=resource)


def _discovered_kind(
    machine: NodeFacts, devices: Devices, declared: Mapping[str, GpuType], told: list[Notice]
) -> Iterator[Kind]:
    derived = derive_type(devices.described)
    if devices.unclear_of is not None:
        total = devices.count + devices.missing
        detail = (
            f"It has {total} {devices.resource} and {counted(devices.unclear_of, 'card')}; nothing says whether these "
            "are slices of MIG or turns on whole cards."
        )
        told.append(Notice(node=machine.name, detail=detail, remedy=_LABEL_IT))
        return
    if derived is None:
        product = devices.described.product
        what = "nothing says which" if product is None else f"nothing says how much memory a {product.name} has"
        detail = f"It has {devices.count + devices.missing} {devices.resource}, and {what}."
        told.append(Notice(node=machine.name, detail=detail, remedy=_LABEL_IT))
        return
    if devices.missing > 0:
        total = devices.count + devices.missing
        detail = f"{devices.missing} of its {total} {devices.resource} cannot be allocated."
        told.append(Notice(node=machine.name, detail=detail, remedy="Look at the device plugin's log on that node."))
    gpu = declared.get(derived.gpu.name)
    if gpu is None and derived.estimated_from is not None:
        told.append(_estimated(machine, derived))
    estimated = derived.estimated_from if gpu is None else None
    yield Kind(
        gpu=gpu or derived.gpu,
        count=devices.count or devices.missing,
        resource=devices.resource,
        estimated_from=estimated,
        is_lost=devices.count == 0,
    )


def _estimated(machine: NodeFacts, derived: Derived) -> Notice:
    gpu = derived.gpu
    return Notice(
        node=machine.name,
        detail=(
            f"Its GPUs are not in the catalogue: kept as {gpu.name} with {format_bytes(gpu.memory_bytes)} each; "
            f"rates are estimated from {derived.estimated_from}."
        ),
        remedy=f"Describe {gpu.name} under gpu_types in the cluster file.",
    )
