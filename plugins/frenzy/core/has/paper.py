"""The policy ``frenzy-paper``: the published algorithm (arXiv 2412.14479).

FIFO; a job that does not fit is passed over. Phase 1 takes the first plan, by GPUs and then
memory, for which enough idle GPUs of its class or larger exist. Phase 2 fills that class (best fit,
else the most idle node whole, again), then the next larger class. A class is a memory size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frenzy.core.cluster import NodeAllocation, Placement
from frenzy.core.has.board import Board
from frenzy.core.has.placement import usable_gpus
from frenzy.core.has.policy import PaperPolicy
from frenzy.core.has.room import Need
from frenzy.core.plan import ResourcePlan


def run_pass(board: Board, policy: PaperPolicy) -> None:
    """Start, in order of submission, every job one of whose plans fits."""
    for job in board.state.waiting:
        if job.run_key in board.state.running:
            continue
        for plan in plan_order(job.plans):
            need = board.state.rules.need(plan, job.excluded_nodes)
            placement = place_by_class(_classes(board, plan, policy), board, need)
            if placement is not None:
                board.start(job, plan, need, placement)
                break


def plan_order(plans: Sequence[ResourcePlan]) -> list[ResourcePlan]:
    """Plans by (GPUs, memory per GPU), both ascending; throughput plays no part.

    The published plans name no GPU type: plans that differ only in it count as one, with the
    least memory any of them asks for, and go by the smaller class first.
    """
    least_bytes: dict[tuple[int | bool, ...], int] = {}
    for plan in plans:
        key = _settings(plan)
        least_bytes[key] = min(plan.memory.required_bytes, least_bytes.get(key, plan.memory.required_bytes))

    def order(plan: ResourcePlan) -> tuple[object, ...]:
        settings = _settings(plan)
        return (plan.num_gpus, least_bytes[settings], settings, plan.gpu_memory_bytes, plan.gpu_type)

    return sorted(plans, key=order)


def place_by_class(classes: Sequence[Sequence[str]], board: Board, need: Need) -> Placement | None:
    """Phase 2 over ``classes`` of GPU types, smallest first; None when they have too few idle GPUs."""
    if sum(board.room.idle_gpus(gpu_type) for gpu_types in classes for gpu_type in gpu_types) < need.num_gpus:
        return None
    taken: list[NodeAllocation] = []
    missing = need.num_gpus
    for gpu_types in classes:
        for node, num_gpus in _fill(board, gpu_types, need, missing):
            taken.append(NodeAllocation(node=node, num_gpus=num_gpus))
            missing -= num_gpus
        if missing == 0:
            return Placement(allocations=tuple(taken))
    return None


def _fill(board: Board, gpu_types: Sequence[str], need: Need, missing: int) -> Iterator[tuple[str, int]]:
    """Nodes of one class with the GPUs taken on each: best fit if one node covers the rest, else the most idle."""
    speed = {each.name: each.flops_per_s for each in board.state.cluster.gpu_types}
    idle = {
        node: (num_gpus, -speed[gpu_type], node)
        for gpu_type in gpu_types
        for node, num_gpus in usable_gpus(board.room.by_type[gpu_type], need).items()
    }
    by_idle_then_speed = sorted(idle.values())
    while missing and by_idle_then_speed:
        covering = next((node for node in by_idle_then_speed if node[0] >= missing), None)
        most_idle = max(by_idle_then_speed, key=lambda node: (node[0], -node[1]))
        num_gpus, _, name = chosen = covering or most_idle
        by_idle_then_speed.remove(chosen)
        yield name, min(num_gpus, missing)
        missing -= min(num_gpus, missing)


def _classes(board: Board, plan: ResourcePlan, policy: PaperPolicy) -> list[list[str]]:
    """GPU types that may take ``plan``, by memory size ascending."""
    if policy.launchable_only:
        return [[plan.gpu_type]] if plan.gpu_type in board.room.by_type else []
    by_size: dict[int, list[str]] = {}
    for gpu_type in board.state.cluster.gpu_types:
        if gpu_type.memory_bytes >= plan.memory.required_bytes:
            by_size.setdefault(gpu_type.memory_bytes, []).append(gpu_type.name)
    return [by_size[size] for size in sorted(by_size)]


def _settings(plan: ResourcePlan) -> tuple[int | bool, ...]:
    return (
        plan.num_gpus,
        plan.tp,
        plan.zero_stage,
        plan.micro_batch_size,
        plan.activation_checkpointing,
        plan.offload_optimizer,
    )
