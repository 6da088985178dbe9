"""What the inventory keeps of the nodes and pods that an API server lists; pure.

Node objects carry their images and pods their whole specification: of thousands only this is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.pod_rules import Taint, TaintEffect
from frenzy.adapters.k8s.quantity import parse_quantity

Json = Mapping[str, Any]
Amounts = Mapping[str, float]

CPU: Final = "cpu"
MEMORY: Final = "memory"
DISK: Final = "ephemeral-storage"
_HUGEPAGES: Final = "hugepages-"
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One Node object. amounts: by resource; CPU in cores, memory in bytes."""

    name: str
    labels: Mapping[str, str]
    capacity: Amounts
    allocatable: Amounts
    is_ready: bool
    is_cordoned: bool
    taints: tuple[Taint, ...] = ()

    @classmethod
    def of(cls, node: Json) -> NodeFacts:
        metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        return cls(
            name=metadata["name"],
            labels=dict(metadata.get("labels") or {}),
            capacity=_amounts(status.get("capacity")),
            allocatable=_amounts(status.get("allocatable")),
            is_ready=conditions.get("Ready") == "True",
            is_cordoned=bool(spec.get("unschedulable")) or "deletionTimestamp" in metadata,
            taints=tuple(_taint(each) for each in spec.get("taints") or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """What one pod holds of its node. placed_on: the placement's name of the node, for pods of ours."""

    name: str
    namespace: str
    node: str | None
    requests: Amounts = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    placed_on: str | None = None
    has_ended: bool = False

    @classmethod
    def of(cls, pod: Json) -> PodUse:
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        return cls(
            name=metadata["name"],
            namespace=metadata["namespace"],
            node=spec.get("nodeName"),
            requests=pod_requests(spec),
            labels={key: value for key, value in (metadata.get("labels") or {}).items() if _is_kept(key)},
            placed_on=(metadata.get("annotations") or {}).get(labels.PLACED_ON),
            has_ended=(pod.get("status") or {}).get("phase") in _ENDED,
        )

    def is_ours(self, namespace: str) -> bool:
        """Whether the ledger of the installation that works in ``namespace`` counts it."""
        return self.namespace == namespace and labels.is_ours(self.labels)


def pod_requests(spec: Json) -> dict[str, float]:
    """What the scheduler counts for a pod.

    Its containers together with its sidecars, or one of the first ones with the sidecars before it if that is more;
    what ``spec.resources`` says of the whole pod (Kubernetes 1.32 on) takes the place of that. Overhead comes on top.
    """
    sidecars: dict[str, float] = {}
    largest: dict[str, float] = {}
    for each in spec.get("initContainers") or ():
        asked = _total((sidecars, _container_requests(each)))
        if each.get("restartPolicy") == "Always":  # it stays
            sidecars = asked
        largest = _larger(largest, asked)
    containers = (_container_requests(each) for each in spec.get("containers") or ())
    largest = _larger(largest, _total((sidecars, *containers)))
    return _total(({**largest, **_of_the_whole_pod(spec, largest)}, _amounts(spec.get("overhead"))))


def _of_the_whole_pod(spec: Json, of_containers: Amounts) -> dict[str, float]:
    """Requests of the pod itself; a limit alone is one where no container requests anything."""
    resources = spec.get("resources") or {}
    limits = {name: each for name, each in _amounts(resources.get("limits")).items() if name not in of_containers}
    named = {**limits, **_amounts(resources.get("requests"))}
    return {name: each for name, each in named.items() if name in (CPU, MEMORY) or name.startswith(_HUGEPAGES)}


def _container_requests(container: Json) -> dict[str, float]:
    """Requests; a limit alone is one, too."""
    resources = container.get("resources") or {}
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}


def _larger(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {*one, *other}}


def _total(amounts: Iterable[Amounts]) -> dict[str, float]:
    total: dict[str, float] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _amounts(given: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: parse_quantity(str(amount)) for name, amount in (given or {}).items()}


def _taint(taint: Json) -> Taint:
    return Taint(key=taint["key"], effect=TaintEffect(taint["effect"]), value=taint.get("value") or "")


def _is_kept(label: str) -> bool:
    return label.startswith(labels.OWN_PREFIX) or label == labels.MANAGED_BY
