"""What the ready nodes of a cluster have for our jobs, found once for all decisions on it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from frenzy.core.capacity.free_capacity import FreeCapacity, Need, place_in
from frenzy.core.values.cluster import Cluster, NodeState, Placement
from frenzy.core.values.hardware import GpuType


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """What a cluster's ready nodes have for our jobs. speed: of a GPU of each type, relative to the fastest; effective
    GPUs are GPUs times speed. empty: what would be free if nothing ran; whole: if no node were out of service either.
    """

    cluster: Cluster
    num_gpus: dict[str, int]
    speed: dict[str, float]
    effective: float
    ready: frozenset[str]
    not_ready: frozenset[str]
    empty: FreeCapacity
    whole: FreeCapacity
    _fits: dict[Need, bool] = field(default_factory=dict)

    @staticmethod
    def of(cluster: Cluster) -> Capacity:
        """Found once for a cluster, however many decisions are made on it or its equals."""
        # A copy: other threads of the API server may append meanwhile.
        for each in tuple(_KNOWN):
            if each.cluster is cluster or each.cluster == cluster:
                return each
        _KNOWN.append(found := _capacity(cluster))
        return found

    def left_by(self, held: Iterable[tuple[Need, Placement]]) -> FreeCapacity:
        """What ``held`` leaves free; allocations on unknown nodes count nowhere."""
        return self.empty.changed(held, -1)

    def fits_empty(self, need: Need) -> bool:
        """Whether ``need`` would fit if nothing ran."""
        found = self._fits.get(need)
        if found is None:
            found = self._fits[need] = place_in(self.empty, need) is not None
        return found


_KNOWN: Final[deque[Capacity]] = deque(maxlen=8)


def _capacity(cluster: Cluster) -> Capacity:
    num_gpus: dict[str, int] = defaultdict(int)
    ready = [node for node in cluster.nodes if node.state is NodeState.READY]
    for node in ready:
        num_gpus[node.gpu_type] += node.num_usable
    speed = relative_speed(cluster.gpu_types)
    effective = sum(speed[gpu_type] * number for gpu_type, number in num_gpus.items())
    names = frozenset(node.name for node in ready)
    in_service = tuple(replace(node, state=NodeState.READY) for node in cluster.nodes)
    empty = FreeCapacity.of(cluster)
    whole = empty if len(ready) == len(cluster.nodes) else FreeCapacity.of(Cluster(cluster.gpu_types, in_service))
    return Capacity(
        cluster, dict(num_gpus), speed, effective, names, frozenset(cluster.nodes_by_name) - names, empty, whole
    )


def relative_speed(gpu_types: tuple[GpuType, ...]) -> dict[str, float]:
    """Of a GPU of each type, the fastest being 1."""
    top = max((each.flops_per_s for each in gpu_types), default=1.0)
    return {each.name: each.flops_per_s / top for each in gpu_types}
