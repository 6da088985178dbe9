"""Free capacity as an immutable index, by GPU type and idle GPUs of a node; and where in it a plan goes."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from frenzy.core.values.cluster import Cluster, Node, NodeAllocation, NodeState, Placement


class Free(NamedTuple):
    """Capacity of one node, or a change of it. Whole numbers, so that sums are exact."""

    num_gpus: int
    host_bytes: int
    millicpus: int

    def plus(self, other: Free, sign: int = 1) -> Free:
        """The sum, or with ``sign`` -1 the difference."""
        return Free(self[0] + sign * other[0], self[1] + sign * other[1], self[2] + sign * other[2])

    def lesser(self, other: Free) -> Free:
        """The smaller of each capacity."""
        return Free(min(self[0], other[0]), min(self[1], other[1]), min(self[2], other[2]))


class Need(NamedTuple):
    """What one plan asks of the nodes of its GPU type; group_size: of a tensor-parallel group, never over nodes."""

    gpu_type: str
    num_gpus: int
    group_size: int
    host_bytes_per_node: int
    host_bytes_per_gpu: int
    millicpus_per_gpu: int
    excluded_nodes: tuple[str, ...] = ()

    @property
    def of_gpus_only(self) -> Need:
        """The same without CPUs and host memory."""
        return self._replace(host_bytes_per_node=0, host_bytes_per_gpu=0, millicpus_per_gpu=0)

    def on_node(self, num_gpus: int) -> Free:
        """What ``num_gpus`` of its GPUs hold on one node."""
        host_bytes = self.host_bytes_per_node + num_gpus * self.host_bytes_per_gpu
        return Free(num_gpus, host_bytes, num_gpus * self.millicpus_per_gpu)

    def gpus_in(self, free: Free) -> int:
        """GPUs of ``free`` this need could use: whole groups, as far as CPUs and host memory go."""
        spare_bytes = free.host_bytes - self.host_bytes_per_node
        if spare_bytes < 0:
            return 0
        usable = free.num_gpus
        if self.host_bytes_per_gpu:
            usable = min(usable, spare_bytes // self.host_bytes_per_gpu)
        if self.millicpus_per_gpu:
            usable = min(usable, free.millicpus // self.millicpus_per_gpu)
        return max(0, usable - usable % self.group_size)


# Names of nodes that are near to each other, for each level of the topology, the narrowest level first.
Domains = tuple[tuple[tuple[str, ...], ...], ...]


def _full_capacity(node: Node) -> Free:
    return Free(node.num_usable, node.host_memory_bytes, round(node.num_cpus * 1000))


def _domains_of(nodes: Collection[Node]) -> Domains:
    """What several of ``nodes``, in the order of their names and of one GPU type, are part of, but not all of them."""
    levels: dict[int, dict[tuple[str, ...], list[str]]] = {}
    for node in nodes:
        for depth in range(1, len(node.topology) + 1):
            levels.setdefault(depth, {}).setdefault(node.topology[:depth], []).append(node.name)
    by_level = (
        tuple(tuple(names) for names in levels[depth].values() if 1 < len(names) < len(nodes))
        for depth in sorted(levels)[::-1]
    )
    return tuple(level for level in by_level if level)


@dataclass(frozen=True, slots=True)
class FreeOfType:
    """Free capacity of all nodes of one GPU type.

    free: of every node, ready or not; negative where more is held than the node has. by_idle[i]: names of the ready
    nodes with i idle GPUs, ascending. domains: as of ``_domains_of``.
    """

    free: Mapping[str, Free]
    not_ready: frozenset[str]
    by_idle: tuple[tuple[str, ...], ...]
    idle_gpus: int
    domains: Domains = ()

    @staticmethod
    def of(free: Mapping[str, Free], not_ready: frozenset[str], domains: Domains = ()) -> FreeOfType:
        """The index of ``free``, which is in the order of names."""
        buckets: dict[int, list[str]] = {}
        for name, (num_gpus, _, _) in free.items():
            if num_gpus > 0 and name not in not_ready:
                buckets.setdefault(num_gpus, []).append(name)
        by_idle = tuple(tuple(buckets.get(idle, ())) for idle in range(max(buckets, default=0) + 1))
        idle_gpus = sum(idle * len(names) for idle, names in enumerate(by_idle))
        return FreeOfType(free, not_ready, by_idle, idle_gpus, domains)

    def part(self, names: Iterable[str]) -> FreeOfType:
        """What is free on the nodes called ``names`` alone."""
        return FreeOfType.of({name: self.free[name] for name in names}, self.not_ready)

    def with_free(self, changed: Mapping[str, Free]) -> FreeOfType:
        """The same room with the nodes in ``changed`` set to new values."""
        return FreeOfType.of({**self.free, **changed}, self.not_ready, self.domains)


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """Free capacity of a cluster, by GPU type."""

    by_type: Mapping[str, FreeOfType]
    type_of_node: Mapping[str, str]

    @staticmethod
    def of(cluster: Cluster) -> FreeCapacity:
        """All of ``cluster``; ``Capacity.of`` finds it once."""
        names: dict[str, list[Node]] = {gpu_type.name: [] for gpu_type in cluster.gpu_types}
        for node in sorted(cluster.nodes, key=lambda each: each.name):
            names.setdefault(node.gpu_type, []).append(node)
        return FreeCapacity(
            {
                gpu_type: FreeOfType.of(
                    {node.name: _full_capacity(node) for node in nodes},
                    frozenset(node.name for node in nodes if node.state is not NodeState.READY),
                    _domains_of(nodes),
                )
                for gpu_type, nodes in names.items()
            },
            {node.name: node.gpu_type for node in cluster.nodes},
        )

    def hold(self, need: Need, placement: Placement) -> FreeCapacity:
        """What is free once ``placement`` is held for ``need``."""
        return self.changed([(need, placement)], -1)

    def release(self, need: Need, placement: Placement) -> FreeCapacity:
        """What is free once ``placement`` no longer is held for ``need``."""
        return self.changed([(need, placement)], 1)

    def idle_gpus(self, gpu_type: str) -> int:
        """Idle GPUs of ``gpu_type`` on ready nodes; 0 for a type the cluster does not have."""
        room = self.by_type.get(gpu_type)
        return room.idle_gpus if room else 0

    def types_of(self, placement: Placement) -> list[str]:
        """GPU types ``placement`` takes GPUs of, each once; unknown nodes have none."""
        types = (self.type_of_node.get(each.node) for each in placement.allocations)
        return list(dict.fromkeys(each for each in types if each is not None))

    def changed(self, held: Iterable[tuple[Need, Placement]], sign: int) -> FreeCapacity:
        """What is free once each need holds its placement (-1), or holds it no more (1)."""
        changed: dict[str, dict[str, Free]] = {}
        for need, placement in held:
            for each in placement.allocations:
                gpu_type = self.type_of_node.get(each.node)
                if gpu_type is not None:
                    on_type = changed.setdefault(gpu_type, {})
                    before = on_type.get(each.node) or self.by_type[gpu_type].free[each.node]
                    on_type[each.node] = before.plus(need.on_node(each.num_gpus), sign)
        by_type = {gpu_type: self.by_type[gpu_type].with_free(free) for gpu_type, free in changed.items()}
        return FreeCapacity({**self.by_type, **by_type}, self.type_of_node)


def place(room: FreeOfType, need: Need) -> Placement | None:
    """The placement of ``need`` in ``room``; None only where there is none of whole tensor-parallel groups.

    On one node if possible, that with the fewest idle GPUs that suffice. Else on as few as possible, within the
    narrowest domain of the topology that has so few, the one with the fewest idle GPUs. Ties go to the first name.
    """
    if need.num_gpus > room.idle_gpus:
        return None
    alone = _best_fit(room, need, need.num_gpus, ())
    if alone is not None:
        return Placement(allocations=(NodeAllocation(node=alone, num_gpus=need.num_gpus),))
    return _near_each_other(room, need)


def place_in(room: FreeCapacity, need: Need) -> Placement | None:
    """The same among the nodes of ``need``'s GPU type; None, too, where the cluster does not have that type."""
    on_type = room.by_type.get(need.gpu_type)
    return None if on_type is None else place(on_type, need)


def usable_gpus(room: FreeOfType, need: Need) -> dict[str, int]:
    """GPUs ``need`` could use on each ready node where that is more than none."""
    usable: dict[str, int] = {}
    for names in reversed(room.by_idle):
        for name in names:
            num_gpus = need.gpus_in(room.free[name])
            if num_gpus > 0 and name not in need.excluded_nodes:
                usable[name] = num_gpus
    return usable


def _near_each_other(room: FreeOfType, need: Need) -> Placement | None:
    anywhere = _on_fewest_nodes(room, need)
    if anywhere is None:
        return None
    for level in room.domains:
        for part in sorted(map(room.part, level), key=lambda part: part.idle_gpus):
            placement = _on_fewest_nodes(part, need)
            if placement is not None and len(placement.allocations) == len(anywhere.allocations):
                return placement
    return anywhere


def _on_fewest_nodes(room: FreeOfType, need: Need) -> Placement | None:
    """The nodes of which most GPUs can be used, whole; the last one as full as it gets."""
    taken: dict[str, int] = {}
    missing = need.num_gpus
    for name, usable in sorted(usable_gpus(room, need).items(), key=lambda each: (-each[1], each[0])):
        if usable >= missing:
            taken[_best_fit(room, need, missing, taken) or name] = missing
            return Placement(allocations=tuple(NodeAllocation(node=at, num_gpus=num) for at, num in taken.items()))
        taken[name] = usable
        missing -= usable
    return None


def _best_fit(room: FreeOfType, need: Need, num_gpus: int, taken: Container[str]) -> str | None:
    """The node with the fewest idle GPUs on which ``num_gpus`` can be used, of those that are not ``taken``."""
    for names in room.by_idle[num_gpus:]:
        for name in names:
            if need.gpus_in(room.free[name]) >= num_gpus and name not in taken and name not in need.excluded_nodes:
                return name
    return None
