"""GPUs that dynamic resource allocation hands out (``resource.k8s.io/v1``, Kubernetes 1.34 on); pure.

Two things of it matter. A pod may hold a GPU by a ResourceClaim, which no node's ``allocatable`` shows. And where a
DeviceClass names ``nvidia.com/gpu`` as its extended resource, pods that ask for that resource get GPUs of nodes without
a device plugin. Both are put as the rest of the inventory knows them: as a pod's requests, and as a node's resources
and labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from frenzy.adapters.k8s.inventory.devices import GPU, PRODUCT
from frenzy.adapters.k8s.objects import NodeFacts, PodUse
from frenzy.adapters.k8s.quantity import parse_quantity
from frenzy.core.values.units import MIB

Json = Mapping[str, Any]

_DRIVER: Final = "gpu.nvidia.com"
_WHOLE: Final = "gpu"  # a slice of MIG is of another type
# Of a claim that the scheduler made for a pod that asks for the resource: the pod's requests say the same.
_FOR_A_REQUEST: Final = "resource.kubernetes.io/extended-resource-name"
_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device of a slice. is_whole: the card, and no slice of MIG. is_usable: no taint keeps pods away."""

    name: str
    is_whole: bool
    is_usable: bool
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFacts:
    """One ResourceSlice: GPUs of a pool, on one node. None of another driver, nor where the pool is of many nodes."""

    pool: str
    generation: int
    node: str | None
    gpus: tuple[Gpu, ...]

    @classmethod
    def of(cls, found: Json) -> SliceFacts:
        spec = found["spec"]
        ours = spec["driver"] == _DRIVER
        return cls(
            pool=spec["pool"]["name"],
            generation=int(spec["pool"].get("generation", 0)),
            node=spec.get("nodeName"),
            gpus=tuple(_gpu(each) for each in spec.get("devices") or ()) if ours else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUse:
    """The GPUs that one ResourceClaim holds, as pool and device; none where a pod's requests count them already."""

    name: str
    namespace: str
    held: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, found: Json) -> ClaimUse:
        metadata = found["metadata"]
        counted = _FOR_A_REQUEST in (metadata.get("annotations") or {})
        return cls(
            name=metadata["name"],
            namespace=metadata["namespace"],
            held=frozenset() if counted else frozenset(_held(found.get("status") or {})),
        )


def class_resource(found: Json) -> str | None:
    """The resource by whose name pods get the devices of a DeviceClass, too; None where it has none."""
    return (found.get("spec") or {}).get("extendedResourceName")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What an API server lists of dynamic resource allocation; nothing where it has none.

    resources: of device classes that have one.
    """

    slices: tuple[SliceFacts, ...] = ()
    claims: tuple[ClaimUse, ...] = ()
    resources: tuple[str, ...] = ()


def _gpu(device: Json) -> Gpu:
    found = device.get("attributes") or {}
    taints = {each.get("effect") for each in device.get("taints") or ()}
    return Gpu(
        name=device["name"],
        is_whole=_value(found, "type") == _WHOLE,
        is_usable=not taints & _KEEPS_AWAY,
        labels=tuple(_labels(found, device.get("capacity") or {})),
    )


def _labels(found: Json, capacity: Json) -> Iterator[tuple[str, str]]:
    """What feature discovery would say of it."""
    product = _value(found, "productName")
    if product:
        yield PRODUCT, product.replace(" ", "-")
    memory = capacity.get("memory", capacity.get(f"{_DRIVER}/memory"))
    if memory:
        yield f"{GPU}.memory", str(int(parse_quantity(str(memory["value"])) // MIB))
    capability = _value(found, "cudaComputeCapability").split(".")
    if len(capability) > 1:
        yield f"{GPU}.compute.major", capability[0]
        yield f"{GPU}.compute.minor", capability[1]
    driver = _value(found, "driverVersion")
    if driver:
        yield "nvidia.com/cuda.driver-version.full", driver


def _value(found: Json, name: str) -> str:
    """Of an attribute of the driver's, whose name may have its domain before it; empty where there is none."""
    attribute = found.get(name) or found.get(f"{_DRIVER}/{name}") or {}
    return str(attribute.get("string") or attribute.get("version") or "")


def _held(status: Json) -> Iterator[tuple[str, str]]:
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    for each in results:
        if each["driver"] == _DRIVER and not each.get("adminAccess"):  # which watches a device, and holds none
            yield each["pool"], each["device"]


def with_allocation(
    nodes: Iterable[NodeFacts], pods: Iterable[PodUse], allocation: Allocation
) -> tuple[list[NodeFacts], list[PodUse]]:
    """Nodes with the GPUs that they offer by dynamic resource allocation alone, pods with what claims hold."""
    if not allocation.slices:
        return list(nodes), list(pods)
    slices = _newest(allocation.slices)
    by_name = {node: gpus for node, gpus in _by_node(slices).items() if gpus}
    offers = GPU in allocation.resources
    offered = [_offering(each, by_name.get(each.name, ())) if offers else each for each in nodes]
    return offered, [*pods, *_claimed(slices, allocation.claims)]


def _newest(slices: Iterable[SliceFacts]) -> list[SliceFacts]:
    """Slices of each pool's newest generation: the others are about to go."""
    every = list(slices)
    newest: dict[str, int] = {}
    for each in every:
        newest[each.pool] = max(each.generation, newest.get(each.pool, each.generation))
    return [each for each in every if each.generation == newest[each.pool]]


def _by_node(slices: Iterable[SliceFacts]) -> dict[str, tuple[Gpu, ...]]:
    found: dict[str, tuple[Gpu, ...]] = {}
    for each in slices:
        if each.node is not None:
            found[each.node] = (*found.get(each.node, ()), *each.gpus)
    return found


def _offering(node: NodeFacts, gpus: tuple[Gpu, ...]) -> NodeFacts:
    """``node`` with its whole GPUs as a resource, where it has none and they are all alike."""
    whole = [each for each in gpus if each.is_whole]
    if not whole or node.capacity.get(GPU, 0) >= 1 or len({each.labels for each in whole}) > 1:
        return node
    usable = sum(each.is_usable for each in whole)
    return replace(
        node,
        labels={**dict(whole[0].labels), **node.labels},
        capacity={**node.capacity, GPU: float(len(whole))},
        allocatable={**node.allocatable, GPU: float(usable)},
    )


def _claimed(slices: Iterable[SliceFacts], claims: Iterable[ClaimUse]) -> Iterator[PodUse]:
    """What each claim holds of each node: nobody else can have a card of which it holds a slice."""
    node_of = {(each.pool, gpu.name): each.node for each in slices for gpu in each.gpus}
    for claim in claims:
        on_nodes = Counter(node for each in claim.held if (node := node_of.get(each)) is not None)
        for node, count in on_nodes.items():
            yield PodUse(name=f"claim {claim.name}", namespace=claim.namespace, node=node, requests={GPU: float(count)})
