"""Where a plan goes: exact fit, then best fit, then the fewest nodes."""

from __future__ import annotations

from frenzy.core.cluster import NodeAllocation, Placement
from frenzy.core.has.room import Need, TypeRoom


def place(room: TypeRoom, need: Need) -> Placement | None:
    """The placement of ``need`` in ``room``, or None when there is none.

    One node is preferred, and of those the one with the fewest idle GPUs that suffice, so that
    odd single GPUs go first and whole nodes stay whole. Over several nodes: as few as possible.
    Ties go to the first name. Tensor-parallel groups are never split. Whenever some placement
    of whole groups exists, one is found.
    """
    if need.num_gpus > room.idle_gpus:
        return None
    return _on_one_node(room, need) or _on_fewest_nodes(room, need)


def usable_gpus(room: TypeRoom, need: Need) -> dict[str, int]:
    """GPUs ``need`` could use on each ready node where that is more than none."""
    usable: dict[str, int] = {}
    for names in reversed(room.by_idle):
        for name in names:
            num_gpus = need.gpus_in(room.free[name])
            if num_gpus > 0 and name not in need.excluded_nodes:
                usable[name] = num_gpus
    return usable


def _on_one_node(room: TypeRoom, need: Need) -> Placement | None:
    for names in room.by_idle[need.num_gpus :]:
        for name in names:
            if need.gpus_in(room.free[name]) >= need.num_gpus and name not in need.excluded_nodes:
                return Placement(allocations=(NodeAllocation(node=name, num_gpus=need.num_gpus),))
    return None


def _on_fewest_nodes(room: TypeRoom, need: Need) -> Placement | None:
    usable = usable_gpus(room, need)
    if sum(usable.values()) < need.num_gpus:
        return None
    largest_first = sorted(usable, key=lambda name: (-usable[name], name))
    taken: list[NodeAllocation] = []
    missing = need.num_gpus
    for at, name in enumerate(largest_first):
        if usable[name] >= missing:
            last = min(largest_first[at:], key=lambda each: _best_fit(usable[each], missing, each))
            taken.append(NodeAllocation(node=last, num_gpus=missing))
            break
        taken.append(NodeAllocation(node=name, num_gpus=usable[name]))
        missing -= usable[name]
    return Placement(allocations=tuple(taken))


def _best_fit(usable: int, missing: int, name: str) -> tuple[bool, int, str]:
    return usable < missing, usable, name


def shortfall(room: TypeRoom, need: Need, empty: TypeRoom) -> int:
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
