"""Changes beyond the job's choices and limits: shorter sequences, more GPUs, more host or GPU memory.

Each takes a situation and answers the one it leads to, or None when it does not help there. The
order is that of how little they take from the user; the last helps a plan that could run on some card that is sold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from frenzy.core.planning.job_remedies import Effect
from frenzy.core.planning.remedy_changes import Change, Situation, Solve, card_then_count, feasible_plans, nearest
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.resource_plan import Candidate, ResourcePlan
from frenzy.core.values.units import MIB, format_shortage

ResourceChange = Callable[[Situation, Solve], Situation | None]

_LENGTH_STEP: Final = 8
# Nobody adds more for one job; and a cluster of very many nodes takes long to plan for.
MOST_GPUS: Final = 16_384
# Nor is there a larger card to take instead.
_LARGEST_CARD_BYTES: Final = max(each.gpu.memory_bytes for each in CATALOGUE.values())


def shorter_sequences(now: Situation, solve: Solve) -> Situation | None:
    """The longest sequences that fit, by bisection over multiples of 8 (memory is monotone)."""
    before = now.request.sequence_length

    def fits(steps: int) -> bool:
        return bool(feasible_plans(solve(with_length(now.request, steps * _LENGTH_STEP), now.cluster)))

    low, high = 1, (before - 1) // _LENGTH_STEP
    if high < 1 or not fits(1):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    length = low * _LENGTH_STEP
    return now.asking(with_length(now.request, length), Change("data.sequence_length", str(before), str(length)))


def with_length(request: PlanRequest, length: int) -> PlanRequest:
    """The same request with sequences of ``length`` tokens."""
    job = request.job
    return replace(request, job=replace(job, data=replace(job.data, sequence_length=length)))


def more_gpus(now: Situation, solve: Solve) -> Situation | None:
    """As many more GPUs of a type that is there as the narrowest plan needs that would fit."""
    for candidate in sorted(_refused(now, solve, ReasonCode.NOT_ENOUGH_GPUS), key=card_then_count):
        wanted = candidate.plan
        if wanted.num_gpus > MOST_GPUS:
            continue
        before = now.cluster.num_gpus_by_type[wanted.gpu_type]
        wider = with_gpus(now.cluster, wanted.gpu_type, wanted.num_gpus)
        after = now.on(wider, Change(f"{wanted.gpu_type} in the cluster", str(before), str(wanted.num_gpus)))
        if _fits(after, solve):
            return after
    return None


def with_gpus(cluster: Cluster, gpu_type: str, wanted: int) -> Cluster:
    """``cluster`` with ``wanted`` GPUs of a type that it has fewer of.

    Nodes are added like the widest there is, the last one perhaps narrower.
    """
    like = max((node for node in cluster.nodes if node.gpu_type == gpu_type), key=lambda node: node.num_gpus)
    missing, nodes = wanted - cluster.num_gpus_by_type[gpu_type], list[Node]()
    while missing > 0:
        width = min(missing, like.num_gpus)
        nodes.append(replace(like, name=f"{like.name}-added-{len(nodes) + 1}", num_gpus=width))
        missing -= width
    return Cluster(cluster.gpu_types, (*cluster.nodes, *nodes))


def more_host_memory(now: Situation, solve: Solve) -> Situation | None:
    """The least host memory of a node with which a plan would do."""
    short = _refused(now, solve, ReasonCode.INSUFFICIENT_HOST_MEMORY)
    if not short:
        return None
    wanted = min((each.plan for each in short), key=lambda plan: (plan.memory.host_bytes, plan.plan_id))
    needed = _whole_mebibytes(wanted.memory.host_bytes)
    nodes = tuple(
        replace(node, host_memory_bytes=max(needed, node.host_memory_bytes))
        if node.gpu_type == wanted.gpu_type
        else node
        for node in now.cluster.nodes
    )
    before = max(node.host_memory_bytes for node in now.cluster.nodes if node.gpu_type == wanted.gpu_type)
    shown = format_shortage(needed, before)
    told = Change(f"host memory of a node of {wanted.gpu_type}", shown.there, shown.enough)
    after = now.on(Cluster(now.cluster.gpu_types, nodes), told)
    return after if _fits(after, solve) else None


def larger_gpu(now: Situation, solve: Solve) -> Situation | None:
    """The least memory with which an existing type would do, with more host memory where its nodes lack that too.

    None beyond the largest card of the catalogue.
    """

    def needed_by(plan: ResourcePlan) -> int:
        return _whole_mebibytes(plan.memory.required_bytes + now.request.extra_bytes_per_gpu)

    refused = _refused(now, solve, ReasonCode.INSUFFICIENT_GPU_MEMORY)
    short = [each for each in refused if needed_by(each.plan) <= _LARGEST_CARD_BYTES]
    if not short:
        return None
    wanted = nearest(short).plan
    needed = needed_by(wanted)
    types = tuple(
        replace(gpu, memory_bytes=needed) if gpu.name == wanted.gpu_type else gpu for gpu in now.cluster.gpu_types
    )
    shown = format_shortage(needed, wanted.gpu_memory_bytes)
    told = Change(f"memory of each {wanted.gpu_type}", shown.there, shown.enough)
    after = now.on(Cluster(types, now.cluster.nodes), told)
    return after if _fits(after, solve) else more_host_memory(after, solve)


RESOURCE_CHANGES: Final[Mapping[ResourceChange, Effect]] = {
    more_gpus: Effect.HARDWARE,
    more_host_memory: Effect.HARDWARE,
    shorter_sequences: Effect.LESS_CONTEXT,
    larger_gpu: Effect.OTHER_HARDWARE,
}


def _refused(now: Situation, solve: Solve, code: ReasonCode) -> list[Candidate]:
    return [each for each in solve(now.request, now.cluster) if each.reason.code is code]


def _fits(after: Situation, solve: Solve) -> bool:
    return bool(feasible_plans(solve(after.request, after.cluster)))


def _whole_mebibytes(num_bytes: int) -> int:
    return -(-num_bytes // MIB) * MIB
