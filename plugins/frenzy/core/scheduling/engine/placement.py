"""Where a plan goes: exact fit, then best fit, then the fewest nodes, near to each other if as few are."""

from __future__ import annotations

from collections.abc import Container

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
