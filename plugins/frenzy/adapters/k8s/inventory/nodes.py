"""From the Node objects and pods of a Kubernetes cluster to the cluster that jobs are placed on; pure.

What cannot be used is never dropped in silence: each such node has a notice with its remedy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.inventory.devices import PRODUCT
from frenzy.adapters.k8s.inventory.image_fitness import why_unfit
from frenzy.adapters.k8s.inventory.kinds import ESTIMATED_FROM, Kind, Notice, kinds_of
from frenzy.adapters.k8s.objects import CPU, DISK, MEMORY, NodeFacts, PodUse
from frenzy.adapters.k8s.pod_rules import PodRules, Taint, TaintEffect
from frenzy.core.values.cluster import Cluster, Node, NodeGroup, NodeState
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.units import counted, format_bytes

_KEPT_LABELS: Final = (
    labels.HOSTNAME,
    PRODUCT,
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "node.kubernetes.io/instance-type",
)
# What numbers that cannot be lead to. Any other error is ours, and is not to take every node out of the cluster.
_ODD: Final = (ArithmeticError, ValueError)
# Taints by which a node says that it is going, or ill, and not that it is for others.
_GONE: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
_GOING: Final = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupt",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the cluster file adds: GPU types with their prices and figures, groups of nodes that may be at zero."""

    gpu_types: Mapping[str, GpuType] = field(default_factory=dict)
    groups: tuple[NodeGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    cluster: Cluster
    notices: tuple[Notice, ...]


def nodes_as_declared(cluster: Cluster, rules: PodRules) -> Found:
    """The cluster of a cluster file, where Node objects may not be read: what the pod rules add is set aside."""
    types = cluster.types_by_name
    listed = Notice(
        node="all nodes",
        detail=(
            "Nodes may not be listed: those of the cluster file are used as if they were there, ready, and free of "
            "others' pods."
        ),
        remedy="Bind the ClusterRole frenzy-nodes, or keep the file true: names are those of kubernetes.io/hostname.",
    )
    told = [listed]
    able = [
        each for each in cluster.nodes if _runs_the_image(each.name, each.labels, types[each.gpu_type], rules, told)
    ]
    nodes = tuple(_set_aside(each, types[each.gpu_type], rules) for each in able)
    return Found(cluster=replace(cluster, nodes=nodes), notices=tuple(told))


def _set_aside(node: Node, gpu: GpuType, rules: PodRules) -> Node:
    """A described node with what is left of its host memory for what plans predict, where its labels say it is."""
    set_aside = node.num_gpus * rules.host_bytes_per_gpu(gpu)
    topology = node.topology or _topology(node.labels, rules)
    return replace(node, host_memory_bytes=max(0, node.host_memory_bytes - set_aside), topology=topology)


def _topology(found: Mapping[str, str], rules: PodRules) -> tuple[str, ...]:
    return tuple(f"{name}={found[name]}" for name in rules.topology if found.get(name))


def nodes_from(nodes: Iterable[NodeFacts], pods: Iterable[PodUse], rules: PodRules, declared: Declared) -> Found:
    """The cluster in the order of the nodes' names, groups last, and the notices.

    A node's capacity is what is allocatable; CPUs, host memory and GPUs that pods of others hold are
    counted off. A machine with devices of several kinds becomes one node for each kind, named
    ``machine/resource`` but for whole GPUs.
    """
    on_node = _by_node(pods, rules.namespace)
    told: list[Notice] = []
    found: list[tuple[Node, GpuType]] = []
    machines = sorted(nodes, key=lambda each: each.name)
    for machine in machines:
        try:
            found += list(_nodes_of(machine, on_node.foreign.get(machine.name, ()), rules, declared, told))
        except _ODD as error:  # one odd node is not to hide all others
            told.append(_not_understood(machine, error))
    found += _group_nodes(machines, on_node, rules, declared, told)
    cluster = _cluster(found)
    return Found(cluster=cluster, notices=tuple(told))


def _cluster(found: list[tuple[Node, GpuType]]) -> Cluster:
    """Nodes with their types; figures of one type that differ between drivers become the least of them."""
    types: dict[str, GpuType] = {}
    for _, gpu in found:
        known = types.setdefault(gpu.name, gpu)
        if gpu.memory_bytes < known.memory_bytes:
            types[gpu.name] = gpu
    return Cluster(tuple(types[name] for name in sorted(types)), tuple(node for node, _ in found))


def _not_understood(machine: NodeFacts, error: Exception) -> Notice:
    return Notice(
        node=machine.name,
        detail=f"What it says of its GPUs makes no sense ({type(error).__name__}: {error}): it is left out.",
        remedy=f"Correct its labels, or add {labels.GPU_TYPE}=<a type of the cluster file or the catalogue>.",
    )


# pods


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uses:
    """foreign: by node, what the ledger does not count there. placed: names that placements have for nodes of
    live pods of ours, to whether the pod has its node already."""

    foreign: Mapping[str, Sequence[PodUse]]
    placed: Mapping[str, bool]


def _by_node(pods: Iterable[PodUse], namespace: str) -> _Uses:
    foreign: dict[str, list[PodUse]] = {}
    placed: dict[str, bool] = {}
    for pod in pods:
        if pod.has_ended:
            continue
        ours = pod.is_ours(namespace)
        if ours and pod.placed_on is not None:
            placed[pod.placed_on] = pod.node is not None
        # a pod of ours on a node of an autoscaled group: the ledger counts it on the group's name
        if pod.node is not None and not (ours and _machine_of(pod.placed_on or pod.node) == pod.node):
            foreign.setdefault(pod.node, []).append(pod)
    return _Uses(foreign=foreign, placed=placed)


def _machine_of(name: str) -> str:
    """The machine of a node's name, which may be ``machine/resource``."""
    return name.partition("/")[0]


def _held(pods: Iterable[PodUse], resource: str | None) -> float:
    return 0.0 if resource is None else sum(each.requests.get(resource, 0.0) for each in pods)


# one machine


def _nodes_of(
    machine: NodeFacts, others: Sequence[PodUse], rules: PodRules, declared: Declared, told: list[Notice]
) -> Iterator[tuple[Node, GpuType]]:
    if any(machine.labels.get(name) != value for name, value in rules.node_selector.items()):
        return
    known = [each for each in kinds_of(machine, declared.gpu_types, told) if each.count > 0]
    kinds = [each for each in known if _runs_the_image(machine.name, machine.labels, each.gpu, rules, told)]
    refusing = [each for each in machine.taints if not rules.tolerates(each) and not _says_going(each)]
    if kinds and refusing:
        told.append(_kept_away(machine, refusing[0]))
        return
    weights = [each.count * each.gpu.memory_bytes for each in kinds]
    for kind, weight in zip(kinds, weights, strict=True):
        host = _HostShare.of(machine, others, weight / sum(weights))
        yield _node(machine, kind, host, rules, _held(others, kind.resource), told), kind.gpu


def _runs_the_image(name: str, found: Mapping[str, str], gpu: GpuType, rules: PodRules, told: list[Notice]) -> bool:
    unfit = why_unfit(name, found, gpu, rules)
    if unfit is not None:
        told.append(unfit)
    return unfit is None


def _kept_away(machine: NodeFacts, taint: Taint) -> Notice:
    written = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
    return Notice(
        node=machine.name,
        detail=f"Its taint {written} keeps our pods away.",
        remedy="Add a toleration to the pod rules if its GPUs are meant for training.",
    )


# the node that jobs are placed on


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostShare:
    """CPUs, host memory and disk that go with one kind of a machine's GPUs; ``free``: but for others' pods.

    The disk is what pods may request as ephemeral storage; infinite where the kubelet does not tell.
    """

    memory_bytes: float
    free_memory_bytes: float
    free_cpus: float
    disk_bytes: float
    free_disk_bytes: float

    @classmethod
    def of(cls, machine: NodeFacts, others: Sequence[PodUse], share: float) -> _HostShare:
        memory, cpus = machine.allocatable.get(MEMORY, 0.0), machine.allocatable.get(CPU, 0.0)
        disk = machine.allocatable.get(DISK, math.inf)
        return cls(
            memory_bytes=share * memory,
            free_memory_bytes=share * max(0.0, memory - _held(others, MEMORY)),
            free_cpus=share * max(0.0, cpus - _held(others, CPU)),
            disk_bytes=share * disk,
            free_disk_bytes=share * max(0.0, disk - _held(others, DISK)),
        )

    def pods_on_disk(self, rules: PodRules, num_gpus: int) -> tuple[int, int]:
        """How many pods' requests the disk has room for, and how many of them now; ``num_gpus`` at most."""
        rooms = (each / rules.requested_disk_bytes for each in (self.disk_bytes, self.free_disk_bytes))
        whole, now = (int(min(each, num_gpus)) for each in rooms)
        return whole, now


def _node(
    machine: NodeFacts, kind: Kind, host: _HostShare, rules: PodRules, num_held: float, told: list[Notice]
) -> Node:
    """What the pod rules add to each rank is set aside; what is left is for what plans predict.

    Each GPU may come to have a pod of its own, for which there has to be room on the disk.
    """
    each_bytes = rules.host_bytes_per_gpu(kind.gpu)
    room = int(host.memory_bytes // each_bytes)
    if room < kind.count:
        told.append(_short_of_memory(machine, kind, room, each_bytes))
    pods, pods_now = host.pods_on_disk(rules, kind.count)
    if pods_now < kind.count:
        told.append(_short_of_disk(machine, kind, pods_now, rules))
    num_gpus = min(kind.count, room, pods)
    free = min(kind.count - int(num_held), int(host.free_memory_bytes // each_bytes), pods_now)
    usable = max(0, min(num_gpus, free))
    return Node(
        name=kind.node_name(machine.name),
        gpu_type=kind.gpu.name,
        num_gpus=num_gpus,
        num_taken=num_gpus - usable,
        host_memory_bytes=max(0, int(host.free_memory_bytes) - usable * each_bytes),
        num_cpus=round(host.free_cpus, 3),
        state=NodeState.LOST if kind.is_lost else _state(machine, rules),
        labels=_labels(machine, kind),
        topology=_topology(machine.labels, rules),
    )


def _short_of_memory(machine: NodeFacts, kind: Kind, room: int, each_bytes: int) -> Notice:
    return Notice(
        node=machine.name,
        detail=(
            f"Its host memory is enough for what is set aside for {room} of its {counted(kind.count, 'GPU')}, "
            f"at {format_bytes(each_bytes)} each."
        ),
        remedy="Lower extra_host_memory_per_gpu or shm_per_gpu in the pod rules.",
    )


def _short_of_disk(machine: NodeFacts, kind: Kind, room: int, rules: PodRules) -> Notice:
    return Notice(
        node=machine.name,
        detail=(
            f"What others leave of its disk is enough for pods on {room} of its {counted(kind.count, 'GPU')}, "
            f"at {format_bytes(rules.requested_disk_bytes)} of ephemeral storage each."
        ),
        remedy="Lower ephemeral_storage_request in the pod rules, or give the node a larger disk.",
    )


def _labels(machine: NodeFacts, kind: Kind) -> dict[str, str]:
    kept = {name: machine.labels[name] for name in _KEPT_LABELS if name in machine.labels}
    kept |= {} if kind.resource is None else {labels.GPU_RESOURCE: kind.resource}
    return kept | ({} if kind.estimated_from is None else {ESTIMATED_FROM: kind.estimated_from})


def _state(machine: NodeFacts, rules: PodRules) -> NodeState:
    keys = {each.key for each in machine.taints if not rules.tolerates(each)}
    if not machine.is_ready or keys & _GONE:
        return NodeState.LOST
    return NodeState.DRAINING if machine.is_cordoned or keys else NodeState.READY


def _says_going(taint: Taint) -> bool:
    return taint.effect is not TaintEffect.PREFER_NO_SCHEDULE and taint.key.startswith(_GOING)


# autoscaled groups


def _group_nodes(
    machines: list[NodeFacts], uses: _Uses, rules: PodRules, declared: Declared, told: list[Notice]
) -> Iterator[tuple[Node, GpuType]]:
    """Nodes that a group may still add, and those that live pods of ours were placed on by the group's names.

    A pod that has come to run on a machine of the group is counted off there, and its name stays.
    """
    for group in declared.groups:
        wanted = {key: value for key, value in group.template.labels.items() if not key.startswith(labels.OWN_PREFIX)}
        existing = sum(all(each.labels.get(key) == value for key, value in wanted.items()) for each in machines)
        waiting = sum(not uses.placed.get(each.name, True) for each in group.nodes)
        to_come = max(0, group.max_nodes - existing - waiting)
        fresh = {each.name for each in [each for each in group.nodes if each.name not in uses.placed][:to_come]}
        gpu = declared.gpu_types[group.template.gpu_type]
        if not _runs_the_image(group.template.name, group.template.labels, gpu, rules, told):
            continue
        for node in group.nodes:
            if node.name in uses.placed or node.name in fresh:
                yield _set_aside(node, gpu, rules), gpu
