"""The GPUs of one Node object: what its labels and resources say of each kind of device; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.inventory.gpu_types import Described
from frenzy.adapters.k8s.inventory.machine_types import CloudMachine, machine_of
from frenzy.adapters.k8s.inventory.products import MigProfile, Product, can_be_sliced, cards_of, parse_product
from frenzy.adapters.k8s.objects import NodeFacts
from frenzy.core.values.units import GIB, MIB

GPU: Final = "nvidia.com/gpu"
SHARED_GPU: Final = "nvidia.com/gpu.shared"
# A virtual GPU that is a resource of its node, so that Kubernetes counts it as well.
VIRTUAL_GPU: Final = "frenzy.dev/gpu"
_RESOURCE: Final = re.compile(r"nvidia\.com/(gpu|mig-[1-9]\d*g\.[1-9]\d*gb[a-z.+-]*?)(\.shared)?")
_OTHER_VENDORS: Final = (
    "amd.com/",  # also its partitions, such as amd.com/cpx_nps4
    "aws.amazon.com/neuron",
    "google.com/tpu",
    "gpu.intel.com/",
    "habana.ai/",
    "huawei.com/Ascend",
    "intel.com/gpu",
)

PRODUCT: Final = "nvidia.com/gpu.product"
_PRESENT: Final = "nvidia.com/gpu.present"
_OURS: Final = "nvidia"
MISCONFIGURED: Final = "-MIG-INVALID"
_UNREAD_SLICE: Final = "-MIG-"  # what is left of a product's name whose slice is no profile
_INSTANCE_TYPES: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_GKE: Final = "cloud.google.com/gke-accelerator"
_GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
_GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
# Karpenter's, and those of EKS Auto Mode, which is Karpenter under another name.
_AMAZON: Final = ("karpenter.k8s.aws/instance-gpu-name", "eks.amazonaws.com/instance-gpu-name")
_AMAZON_MAKERS: Final = ("karpenter.k8s.aws/instance-gpu-manufacturer", "eks.amazonaws.com/instance-gpu-manufacturer")
_COREWEAVE: Final = ("gpu.nvidia.com/class", "gpu.nvidia.com/model")
_ALIBABA: Final = "aliyun.accelerator/nvidia_name"
_NAMES: Final = (_GKE, *_AMAZON, "k8s.amazonaws.com/accelerator", *_COREWEAVE, _ALIBABA)
_MEMORY: Final = (
    "karpenter.k8s.aws/instance-gpu-memory",
    "eks.amazonaws.com/instance-gpu-memory",
    "aliyun.accelerator/nvidia_mem",
)
# How many cards there are, however many devices a plugin makes of them.
_COUNTS: Final = (
    f"{GPU}.count",
    "cloud.google.com/gke-accelerator-count",
    "karpenter.k8s.aws/instance-gpu-count",
    "eks.amazonaws.com/instance-gpu-count",
    "gpu.nvidia.com/count",
    "aliyun.accelerator/nvidia_count",
)
# What is beyond is no card's memory but a slip: bytes, or gigabytes, where MiB are due.
_LEAST_MIB: Final = 256
_MOST_MIB: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """``count`` allocatable devices of one resource. missing: installed, but not allocatable.

    unclear_of: of how many cards these are parts, where nothing tells whether by MIG or in turns. The memory of a part
    is another then, and nobody knows it.
    """

    resource: str
    count: int
    missing: int
    described: Described
    unclear_of: int | None = None


def devices_of(node: NodeFacts) -> Iterator[Devices]:
    """Every kind of NVIDIA device of ``node``, whole GPUs first."""
    for resource in sorted(node.capacity):
        if _RESOURCE.fullmatch(resource) and node.capacity[resource] >= 1:
            count = int(node.allocatable.get(resource, 0))
            yield Devices(
                resource=resource,
                count=count,
                missing=int(node.capacity[resource]) - count,
                described=_described(node, resource),
                unclear_of=_unclear_parts(node, resource),
            )


def other_vendors(node: NodeFacts) -> tuple[str, ...]:
    """Resources of ``node`` that are accelerators of other vendors."""
    return tuple(name for name in sorted(node.capacity) if name.startswith(_OTHER_VENDORS) and node.capacity[name] >= 1)


def says_it_has_gpus(node: NodeFacts) -> bool:
    """Whether feature discovery or the cloud found NVIDIA GPUs on ``node``, whether or not it offers them."""
    found = node.labels
    named = any(found.get(each) for each in _NAMES) and all(found.get(each, _OURS) == _OURS for each in _AMAZON_MAKERS)
    return named or found.get(_PRESENT) == "true" or PRODUCT in found or _number(found, f"{GPU}.count") is not None


def own_resource(node: NodeFacts) -> str | None:
    """The resource that counts the GPUs of a node whose type a label of ours names; None if there is none."""
    return next((each for each in (GPU, SHARED_GPU, VIRTUAL_GPU) if node.capacity.get(each, 0) >= 1), None)


def own_count(node: NodeFacts) -> int | None:
    """How many GPUs a label of ours says there are."""
    return _number(node.labels, labels.GPU_COUNT)


def _described(node: NodeFacts, resource: str) -> Described:
    base = resource.removesuffix(".shared")
    found = node.labels
    name = found.get(f"{base}.product") or found.get(PRODUCT)
    if not name:
        return _described_by_cloud(node, resource)
    product, machine = parse_product(name), _machine(found)
    if _UNREAD_SLICE in product.name:
        return Described()
    if product.part_gb is not None:
        return _part_of_a_card(product, product.part_gb)
    mig = MigProfile.of(base) if base != GPU else product.mig
    counted = _first_number(found, (f"{base}.count",))
    is_shared = product.is_shared or _says_shared(found, resource) or _is_split(node, resource, mig)
    return Described(
        product=product,
        card=None if machine is None else machine.card,
        memory_bytes=_memory_bytes(found, f"{base}.memory"),
        compute_capability=_compute_capability(found),
        mig=mig,
        replicas=_replicas(node, resource, f"{base}.replicas", counted) if is_shared else 1,
    )


def _part_of_a_card(product: Product, part_gb: int) -> Described:
    """A virtual GPU of NVIDIA's, whose profile tells its memory: the part of the card that is not larger."""
    cards = cards_of(product)
    if not cards:
        return Described()
    return Described(product=product, replicas=math.ceil(cards[0].memory_bytes / (part_gb * GIB)))


def _described_by_cloud(node: NodeFacts, resource: str) -> Described:
    """Without the labels of GPU feature discovery: what the cloud calls the card, or its machine."""
    found = node.labels
    machine = _machine(found)
    if machine is not None and machine.parts > 1:
        return Described(card=machine.card, replicas=machine.parts * max(1, int(node.capacity[resource])))
    name = next((found[each] for each in _NAMES if found.get(each)), None)
    sizes = (_memory_bytes(found, each) for each in _MEMORY)
    partition = found.get(_GKE_PARTITION) or ("" if resource in (GPU, SHARED_GPU) else resource)
    mig = MigProfile.of(partition)
    if partition and mig is None:
        return Described()
    is_shared = (_number(found, _GKE_CLIENTS) or 1) > 1 or _is_split(node, resource, mig)
    return Described(
        product=None if name is None else parse_product(name),
        card=None if machine is None else machine.card,
        memory_bytes=next((each for each in sizes if each), None) if _GKE not in found else None,
        mig=mig,
        replicas=_replicas(node, resource, _GKE_CLIENTS, _num_cards(node)) if is_shared else 1,
    )


def _unclear_parts(node: NodeFacts, resource: str) -> int | None:
    """Of how many cards the devices of ``resource`` are parts of a size that nothing tells.

    A card that is shared in turns has its memory for all; a slice of MIG has less than its part of it.
    """
    found, machine = node.labels, _machine(node.labels)
    if found.get(PRODUCT) or found.get(_GKE_PARTITION) or _number(found, _GKE_CLIENTS) is not None:
        return None
    name = next((found[each] for each in _NAMES if found.get(each)), None)
    cards = cards_of(parse_product(name)) if name is not None else () if machine is None else (machine.card,)
    if any(can_be_sliced(each) for each in cards) and _is_split(node, resource, None):
        return _num_cards(node)
    return None


def _machine(found: Mapping[str, str]) -> CloudMachine | None:
    return machine_of(next((found[each] for each in _INSTANCE_TYPES if each in found), ""))


def _num_cards(node: NodeFacts) -> int | None:
    """How many cards there are, by a label or by the machine's type."""
    labelled, machine = _first_number(node.labels, _COUNTS), _machine(node.labels)
    return labelled if labelled is not None or machine is None else machine.num_cards


def _compute_capability(found: Mapping[str, str]) -> str | None:
    major, minor = (_number(found, f"nvidia.com/gpu.compute.{part}") for part in ("major", "minor"))
    return None if major is None else f"{major}.{minor or 0}"


def _says_shared(found: Mapping[str, str], resource: str) -> bool:
    strategy = found.get("nvidia.com/gpu.sharing-strategy", "none")
    return resource.endswith(".shared") or (strategy != "none" and resource == GPU)


def _is_split(node: NodeFacts, resource: str, mig: MigProfile | None) -> bool:
    """Whether more devices are offered than there are cards: not every plugin that shares them says so in a label."""
    cards = _num_cards(node)
    return resource == GPU and mig is None and cards is not None and node.capacity[resource] > cards


def _replicas(node: NodeFacts, resource: str, label: str, physical: int | None) -> int:
    """Shares of one device: as labelled, else devices for each physical one, else two at the least."""
    offered = int(node.capacity[resource])
    labelled = _number(node.labels, label) or 0
    if 1 < labelled <= offered:
        return labelled
    return max(2, offered // physical if physical else 0)


def _memory_bytes(found: Mapping[str, str], name: str) -> int | None:
    mib = _number(found, name)
    return mib * MIB if mib is not None and _LEAST_MIB <= mib <= _MOST_MIB else None


def _first_number(found: Mapping[str, str], names: Iterable[str]) -> int | None:
    return next((number for each in names if (number := _number(found, each)) is not None), None)


def _number(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name, "").removesuffix("MiB")
    return int(text) if text.isdecimal() and int(text) > 0 else None
