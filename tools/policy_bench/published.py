"""Frenzy's algorithm as published (arXiv 2412.14479), which may mix GPU types in a job, as no launcher can.

FIFO; a job that does not fit is passed over. Only GPUs are counted. Phase 1 takes the first plan, by GPUs and then
memory, for which enough idle GPUs of its class or larger exist. Phase 2 fills that class (best
fit, else the most idle node whole, again), then the next larger class. A class is a memory size.
A job on several types runs as fast as on the slowest of them.
``frenzy-paper`` is the same as it can be launched, one GPU type in a job: a policy of the product.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from frenzy.core.capacity.free_capacity import FreeCapacity
from frenzy.core.scheduling import PaperPolicy, Policy, SchedulingState
from frenzy.core.scheduling.engine.job_plans import plan_order
from frenzy.core.values.cluster import Cluster, NodeAllocation, Placement
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, Start

Plans = tuple[ResourcePlan, ...]


@dataclass
class PublishedScheduler:
    """It remembers the order of each tuple of plans, which jobs of a class share."""

    rules: Policy = PaperPolicy()
    _ordered: dict[int, tuple[Plans, Plans]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.rules.name}-published"

    @property
    def round_s(self) -> float | None:
        return None

    def decide(self, state: SchedulingState, now_s: float) -> tuple[Start, ...]:
        """Starts, in order of submission, of every job one of whose plans fits."""
        room, starts, full = state.room, list[Start](), set[tuple[object, ...]]()
        for entry in state.waiting:
            job = entry.queued
            plans = self._in_order(job, state.cluster)
            asked = (job.excluded_nodes, *((plan.num_gpus, plan.memory.required_bytes) for plan in plans))
            if entry.run_key in state.running or asked in full:
                continue
            found = _first_that_fits(state.cluster, room, plans, job.excluded_nodes)
            if found is None:
                full.add(asked)
                continue
            plan, placement = found
            room = room.hold(state.policy.need(plan), placement)
            runs_as = plan_as_placed(plan, job.plans, room.types_of(placement))
            starts.append(Start(run_key=job.run_key, plan=runs_as, placement=placement))
        return tuple(starts)

    def _in_order(self, job: QueuedJob, cluster: Cluster) -> Plans:
        known = self._ordered.get(id(job.plans))
        if known is None or known[0] is not job.plans:
            sizes = {each.name: each.memory_bytes for each in cluster.gpu_types}
            fitting = [plan for plan in job.plans if plan.memory.required_bytes <= sizes.get(plan.gpu_type, math.inf)]
            known = self._ordered[id(job.plans)] = (job.plans, tuple(plan_order(fitting)))
        return known[1]


def plan_as_placed(plan: ResourcePlan, plans: Plans, gpu_types: Collection[str]) -> ResourcePlan:
    """``plan`` as it runs on GPUs of ``gpu_types``: of the job's plans for each type the one that is slowest.

    For a type that is the plan of the same settings, else the slowest of the same count, else none.
    """
    if set(gpu_types) == {plan.gpu_type}:
        return plan
    on_types = [_on_type(plan, plans, gpu_type) for gpu_type in gpu_types]
    return max((each for each in on_types if each is not None), key=lambda each: each.predicted_run_s, default=plan)


def _on_type(plan: ResourcePlan, plans: Plans, gpu_type: str) -> ResourcePlan | None:
    same_count = [each for each in plans if each.num_gpus == plan.num_gpus and each.gpu_type == gpu_type]
    same = [each for each in same_count if replace(each.shape, gpu_type=plan.gpu_type) == plan.shape]
    return max(same or same_count, key=lambda each: each.predicted_run_s, default=None)


def _first_that_fits(
    cluster: Cluster, room: FreeCapacity, plans: Plans, excluded_nodes: Sequence[str]
) -> tuple[ResourcePlan, Placement] | None:
    sizes, classes = _memory_classes(cluster)
    for plan in plans:
        large_enough = classes[bisect_left(sizes, plan.memory.required_bytes) :]
        placement = _place_by_class(cluster, room, large_enough, plan.num_gpus, excluded_nodes)
        if placement is not None:
            return plan, placement
    return None


def _memory_classes(cluster: Cluster) -> tuple[list[int], list[list[str]]]:
    """Memory sizes of the GPU types, ascending, and for each the names of the types that have it."""
    names: dict[int, list[str]] = {}
    for each in sorted(cluster.gpu_types, key=lambda each: each.memory_bytes):
        names.setdefault(each.memory_bytes, []).append(each.name)
    return list(names), list(names.values())


def _place_by_class(
    cluster: Cluster, room: FreeCapacity, classes: Sequence[Sequence[str]], num_gpus: int, excluded_nodes: Sequence[str]
) -> Placement | None:
    """Phase 2 over ``classes`` of GPU types, smallest first; None when too few GPUs are idle."""
    if num_gpus > sum(room.idle_gpus(gpu_type) for gpu_types in classes for gpu_type in gpu_types):
        return None
    taken: list[NodeAllocation] = []
    missing = num_gpus
    for gpu_types in classes:
        nodes = _by_idle_then_speed(cluster, room, gpu_types, excluded_nodes)
        for node, count in _fill(nodes, missing):
            taken.append(NodeAllocation(node=node, num_gpus=count))
            missing -= count
        if missing == 0:
            return Placement(allocations=tuple(taken))
    return None


def _fill(nodes: list[tuple[int, float, str]], missing: int) -> Iterator[tuple[str, int]]:
    """Nodes of one class with the GPUs taken on each, until nothing is missing or left."""
    while missing and nodes:
        covering = next((node for node in nodes if node[0] >= missing), None)
        chosen = covering or max(nodes, key=lambda node: (node[0], -node[1]))
        nodes.remove(chosen)
        num_gpus = min(chosen[0], missing)
        missing -= num_gpus
        yield chosen[2], num_gpus


def _by_idle_then_speed(
    cluster: Cluster, room: FreeCapacity, gpu_types: Sequence[str], excluded_nodes: Sequence[str]
) -> list[tuple[int, float, str]]:
    """(idle GPUs, negated speed, node), ascending: idle first, faster first, then the name."""
    types = cluster.types_by_name
    return sorted(
        (idle, -types[gpu_type].flops_per_s, node)
        for gpu_type in gpu_types
        for idle, nodes in enumerate(room.by_type[gpu_type].by_idle)
        for node in nodes
        if node not in excluded_nodes
    )
