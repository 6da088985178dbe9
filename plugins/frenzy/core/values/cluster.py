"""The cluster as a set of facts: GPU types, nodes and the slots that are held.

GPUs are counted per node, not numbered: Kubernetes hands out the devices. The local launcher
alone gives slots a physical index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Final

from frenzy.core.values.hardware import GpuType


class NodeState(StrEnum):
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with ``num_gpus`` GPUs of one type.

    num_taken: GPUs that work which is none of ours holds, for as long as it likes. host_memory_bytes,
    num_cpus: what we may use. topology: what the node is part of, from the widest on, such as zone, rack and
    NVLink domain.
    """

    name: str
    gpu_type: str
    num_gpus: int
    host_memory_bytes: int
    num_cpus: float
    state: NodeState = NodeState.READY
    labels: Mapping[str, str] = field(default_factory=dict)
    num_taken: int = 0
    topology: tuple[str, ...] = ()

    @property
    def num_usable(self) -> int:
        """GPUs that our jobs can have between them."""
        return max(0, self.num_gpus - self.num_taken)


# The label of a node that an autoscaler has yet to add: its group's name.
NODE_GROUP: Final = "frenzy.dev/node-group"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Equal nodes that an autoscaler adds when work waits for them: at most ``max_nodes``, now perhaps none.

    template: one such node; its name is the group's, its labels are what all of them have.
    """

    template: Node
    max_nodes: int

    @property
    def name(self) -> str:
        return self.template.name

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the group may come to have, by their names in the inventory: ``name/1`` ..."""
        marked = replace(self.template, labels={**self.template.labels, NODE_GROUP: self.name})
        return tuple(replace(marked, name=f"{self.name}/{index}") for index in range(1, self.max_nodes + 1))


@dataclass(frozen=True)
class Cluster:
    """GPU types and nodes; names are unique, every node's type is known."""

    gpu_types: tuple[GpuType, ...]
    nodes: tuple[Node, ...]

    @cached_property
    def types_by_name(self) -> Mapping[str, GpuType]:
        return {each.name: each for each in self.gpu_types}

    @cached_property
    def nodes_by_name(self) -> Mapping[str, Node]:
        return {each.name: each for each in self.nodes}

    @cached_property
    def num_gpus_by_type(self) -> Mapping[str, int]:
        """All GPUs of each type, also on nodes that are drained or lost."""
        return self._by_type(attrgetter("num_gpus"))

    @cached_property
    def num_usable_by_type(self) -> Mapping[str, int]:
        """Of these, those that our jobs can have between them."""
        return self._by_type(attrgetter("num_usable"))

    def _by_type(self, count: Callable[[Node], int]) -> Mapping[str, int]:
        totals = dict.fromkeys((each.name for each in self.gpu_types), 0)
        for node in self.nodes:
            totals[node.gpu_type] += count(node)
        return totals

    def nodes_of(self, placement: Placement) -> tuple[Node, ...]:
        """The nodes of ``placement`` in its order; none when one of them has left the cluster."""
        nodes = tuple(self.nodes_by_name.get(each.node) for each in placement.allocations)
        return tuple(each for each in nodes if each is not None) if None not in nodes else ()

    def with_node_state(self, name: str, state: NodeState) -> Cluster:
        """The cluster with the node called ``name`` in ``state``."""
        return self.with_node(replace(self.nodes_by_name[name], state=state))

    def with_node(self, node: Node) -> Cluster:
        """The cluster with ``node`` in place of the one of that name, or with one more."""
        nodes = tuple(node if each.name == node.name else each for each in self.nodes)
        return Cluster(self.gpu_types, nodes if node.name in self.nodes_by_name else (*nodes, node))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAllocation:
    """``num_gpus`` slots held on one node."""

    node: str
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a plan runs: slots on nodes, in the order of the node ranks."""

    allocations: tuple[NodeAllocation, ...]

    @property
    def num_gpus(self) -> int:
        return sum(each.num_gpus for each in self.allocations)


def held_by_node(placements: Iterable[Placement]) -> dict[str, int]:
    """Slots held on each node by ``placements``."""
    held: dict[str, int] = {}
    for placement in placements:
        for each in placement.allocations:
            held[each.node] = held.get(each.node, 0) + each.num_gpus
    return held
