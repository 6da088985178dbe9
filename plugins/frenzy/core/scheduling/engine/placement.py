"""Where a plan goes: exact fit, then best fit, then the fewest nodes, near to each other if as few are."""

from __future__ import annotations

from collections.abc import Container, Iterator
from heapq import merge

from frenzy.core.scheduling.engine.room import FreeCapacity, FreeOfType, Need
from frenzy.core.values.cluster import NodeAllocation, Placement


def place(room: FreeOfType, need: Need) -> Placement | None:
    """The placement of ``need`` in ``room``, or None when there is none.

    One node is preferred, and of those the one with the fewest idle GPUs that suffice, so that
    odd single GPUs go first and whole nodes stay whole. Over several nodes: as few as possible, and of those
    within the narrowest domain of the topology that has so few, of such domains in the one with the fewest idle GPUs.
    Ties go to the first name. Tensor-parallel groups are never split. Whenever some placement
    of whole groups exists, one is found.
    """
    if need.num_gpus > room.idle_gpus:
        return None
    return _on_one_node(room, need) or _near_each_other(room, need)


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


def _on_one_node(room: FreeOfType, need: Need) -> Placement | None:
    for names in room.by_idle[need.num_gpus :]:
        for name in names:
            if need.gpus_in(room.free[name]) >= need.num_gpus and name not in need.excluded_nodes:
                return Placement(allocations=(NodeAllocation(node=name, num_gpus=need.num_gpus),))
    return None


def _near_each_other(room: FreeOfType, need: Need) -> Placement | None:
    anywhere = _on_fewest_nodes(room, need)
    if anywhere is None:
        return None
    for level in room.domains:
        idle = {names: room.idle_on(names) for names in level}
        large_enough = sorted((each for each in level if idle[each] >= need.num_gpus), key=idle.__getitem__)
        for names in large_enough:
            placement = _on_fewest_nodes(room.part(names), need)
            if placement is not None and len(placement.allocations) == len(anywhere.allocations):
                return placement
    return anywhere


def _on_fewest_nodes(room: FreeOfType, need: Need) -> Placement | None:
    """The nodes of which most GPUs can be used, whole; the last one as full as it gets."""
    taken: dict[str, int] = {}
    missing = need.num_gpus
    for name, usable in _most_usable_first(room, need):
        if usable >= missing:
            taken[_best_fit(room, need, missing, taken) or name] = missing
            return Placement(allocations=tuple(NodeAllocation(node=at, num_gpus=num) for at, num in taken.items()))
        taken[name] = usable
        missing -= usable
    return None


def _most_usable_first(room: FreeOfType, need: Need) -> Iterator[tuple[str, int]]:
    """Ready nodes with the GPUs that ``need`` could use of them, most first, then by name; looks no further than asked.

    Nodes whose CPUs or host memory leave GPUs unused are held back until it is their turn.
    """
    held_back: dict[int, list[str]] = {}
    for idle in range(len(room.by_idle) - 1, 0, -1):
        unhindered = (name for name in room.by_idle[idle] if _uses_all(room, need, name, idle, held_back))
        for name in merge(sorted(held_back.pop(idle, ())), unhindered):
            yield name, idle


def _uses_all(room: FreeOfType, need: Need, name: str, idle: int, held_back: dict[int, list[str]]) -> bool:
    """Whether ``need`` could use all ``idle`` GPUs of node ``name``; if fewer, the node is put into ``held_back``."""
    usable = 0 if name in need.excluded_nodes else need.gpus_in(room.free[name])
    if 0 < usable < idle:
        held_back.setdefault(usable, []).append(name)
    return usable == idle


def _best_fit(room: FreeOfType, need: Need, num_gpus: int, taken: Container[str]) -> str | None:
    """The node with the fewest idle GPUs on which ``num_gpus`` can be used, of those that are not ``taken``."""
    for names in room.by_idle[num_gpus:]:
        for name in names:
            if name not in taken and name not in need.excluded_nodes and need.gpus_in(room.free[name]) >= num_gpus:
                return name
    return None


def shortfall(room: FreeOfType, need: Need, empty: FreeOfType) -> int:
    """Fewest GPUs that would have to become idle for ``need`` to fit ``room``; 0 if it fits.

    Host resources are left aside. Idle GPUs that make up no whole tensor-parallel group on their
    node count only if the node is large enough (``empty``) to be filled up to one.
    """
    size = need.group_size
    idle = {
        name: num_gpus
        for num_gpus, names in enumerate(room.by_idle)
        for name in names
        if name not in need.excluded_nodes
    }
    groups = need.num_gpus // size - sum(num_gpus // size for num_gpus in idle.values())
    to_fill = sorted(
        size - num_gpus % size
        for name, num_gpus in idle.items()
        if num_gpus % size and empty.free[name].num_gpus >= num_gpus + size - num_gpus % size
    )
    filled = to_fill[: max(0, groups)]
    return sum(filled) + max(0, groups - len(filled)) * size
