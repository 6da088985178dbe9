"""The published algorithm (arXiv 2412.14479) where a job may mix GPU types, as only the simulator can.

FIFO; a job that does not fit is passed over. Phase 1 takes the first plan, by GPUs and then
memory, for which enough idle GPUs of its class or larger exist. Phase 2 fills that class (best
fit, else the most idle node whole, again), then the next larger class. A class is a memory size.
``frenzy-paper`` as it can be launched, one GPU type in a job, is the engine's sweep in plain order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.placement import usable_gpus
from frenzy.core.scheduling.engine.plan_tables import Ask, RankedPlan
from frenzy.core.scheduling.engine.room import FreeCapacity, Need
from frenzy.core.scheduling.engine.state import SchedulingState, restarted
from frenzy.core.values.cluster import Cluster, NodeAllocation, Placement
from frenzy.core.values.scheduling_facts import RunningJob, Start


def decide(state: SchedulingState, now_s: float) -> tuple[tuple[Start, ...], SchedulingState]:
    """Starts, in order of submission, of every job one of whose plans fits; and the state once they are done."""
    room, started, full = state.room, list[RunningJob](), set[Ask]()
    for entry in state.waiting:
        if entry.run_key in state.running or entry.others.ask in full:
            continue
        found = _first_that_fits(state.cluster, room, entry)
        if found is None:
            full.add(entry.others.ask)
            continue
        ranked, placement = found
        room = room.hold(ranked.need, placement)
        started.append(restarted(entry.queued, ranked.plan, placement, now_s=now_s))
    starts = tuple(Start(run_key=job.run_key, plan=job.plan, placement=job.placement) for job in started)
    return starts, state.start(started) if started else state


def _first_that_fits(cluster: Cluster, room: FreeCapacity, entry: Entry) -> tuple[RankedPlan, Placement] | None:
    sizes, classes = cluster.memory_classes
    for ranked in entry.others.listed:
        large_enough = classes[bisect_left(sizes, ranked.plan.memory.required_bytes) :]
        placement = place_by_class(cluster, room, large_enough, ranked.need)
        if placement is not None:
            return ranked, placement
    return None


def place_by_class(
    cluster: Cluster, room: FreeCapacity, classes: Sequence[Sequence[str]], need: Need
) -> Placement | None:
    """Phase 2 over ``classes`` of GPU types, smallest first; None when too few GPUs are idle."""
    if not _enough_idle(room, classes, need.num_gpus):
        return None
    taken: list[NodeAllocation] = []
    missing = need.num_gpus
    for gpu_types in classes:
        for node, num_gpus in _fill(cluster, room, gpu_types, need, missing):
            taken.append(NodeAllocation(node=node, num_gpus=num_gpus))
            missing -= num_gpus
        if missing == 0:
            return Placement(allocations=tuple(taken))
    return None


def _enough_idle(room: FreeCapacity, classes: Sequence[Sequence[str]], num_gpus: int) -> bool:
    """Whether so many GPUs of ``classes`` are idle, on whatever nodes."""
    by_type = room.by_type
    for gpu_types in reversed(classes):
        for gpu_type in gpu_types:
            num_gpus -= by_type[gpu_type].idle_gpus
        if num_gpus <= 0:
            return True
    return False


def _fill(
    cluster: Cluster, room: FreeCapacity, gpu_types: Sequence[str], need: Need, missing: int
) -> Iterator[tuple[str, int]]:
    """Nodes of one class with the GPUs taken on each, until nothing is missing or left."""
    nodes = _by_idle_then_speed(cluster, room, gpu_types, need)
    while missing and nodes:
        covering = next((node for node in nodes if node[0] >= missing), None)
        chosen = covering or max(nodes, key=lambda node: (node[0], -node[1]))
        nodes.remove(chosen)
        num_gpus = min(chosen[0], missing)
        missing -= num_gpus
        yield chosen[2], num_gpus


def _by_idle_then_speed(
    cluster: Cluster, room: FreeCapacity, gpu_types: Sequence[str], need: Need
) -> list[tuple[int, float, str]]:
    """(idle GPUs, negated speed, node), ascending: idle first, faster first, then the name."""
    types = cluster.types_by_name
    return sorted(
        (num_gpus, -types[gpu_type].flops_per_s, node)
        for gpu_type in gpu_types
        for node, num_gpus in usable_gpus(room.by_type[gpu_type], need).items()
    )
