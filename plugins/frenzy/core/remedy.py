"""When no plan fits: the smallest change that makes one fit, found by trying it.

Changes are tried in the order of how little they take from the user; the first that works wins:
let the plan checkpoint, raise the user's own limits, shorten the sequences, add GPUs of a type
that is there, then a GPU with more memory (which always works).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from frenzy.core.cluster import Cluster
from frenzy.core.errors import Reason, ReasonCode
from frenzy.core.job import Checkpointing, ConstraintsSpec, TrainingJob
from frenzy.core.plan import Candidate
from frenzy.core.plan_request import PlanRequest
from frenzy.core.units import MIB, format_bytes

Solve = Callable[[PlanRequest, Cluster], tuple[Candidate, ...]]

_LENGTH_STEP: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change: ``field`` from ``before`` to ``after``; the request and cluster it leads to."""

    field: str
    before: str
    after: str
    request: PlanRequest
    cluster: Cluster

    @property
    def sentence(self) -> str:
        return f"{self.field}: {self.before} -> {self.after} would fit."


def first_remedy(request: PlanRequest, cluster: Cluster, solve: Solve) -> Remedy | None:
    """The smallest change after which ``solve`` finds a feasible plan."""
    for remedy in _changes(request, cluster, solve):
        if _feasible(solve(remedy.request, remedy.cluster)):
            return remedy
    return None


def refusal_of(candidates: Sequence[Candidate], cluster: Cluster, remedy: Remedy | None) -> Reason:
    """One reason for all refused ``candidates``: that of the plan that came nearest to running."""
    if not candidates:
        return Reason(code=ReasonCode.NEVER_FITS, detail="The cluster has no GPU at all.", remedy="Add a GPU type.")
    nearest = min(candidates, key=_distance)
    sentence = remedy.sentence if remedy is not None else nearest.reason.remedy
    detail = f"No plan fits the cluster; the nearest: {nearest.reason.sentence}"
    return Reason(code=nearest.reason.code, detail=detail, remedy=sentence)


def _distance(candidate: Candidate) -> tuple[int, float, str]:
    """Plans refused by a limit are nearer than those that lack memory, by the share they lack."""
    plan = candidate.plan
    lacking = max(0.0, plan.memory.required_bytes / max(1, plan.gpu_memory_bytes) - 1.0)
    return (int(candidate.reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE), lacking, plan.plan_id)


def _feasible(candidates: Sequence[Candidate]) -> bool:
    return any(each.feasible for each in candidates)


def _changes(request: PlanRequest, cluster: Cluster, solve: Solve) -> Iterator[Remedy]:
    yield from _checkpoint(request, cluster)
    yield from _raised_limits(request, cluster)
    yield from _shorter_sequences(request, cluster, solve)
    yield from _more_gpus(request, cluster)
    yield from _larger_gpu(request, cluster, solve)


def _checkpoint(request: PlanRequest, cluster: Cluster) -> Iterator[Remedy]:
    training = request.job.training
    if training.gradient_checkpointing is Checkpointing.OFF:
        job = replace(request.job, training=replace(training, gradient_checkpointing=Checkpointing.AUTO))
        yield _change("training.gradient_checkpointing", "off", "auto", replace(request, job=job), cluster)


def _raised_limits(request: PlanRequest, cluster: Cluster) -> Iterator[Remedy]:
    """Each limit alone, count before type; then what both together would need is for the GPU to solve."""
    limits = request.job.constraints
    if limits.max_gpus is not None:
        for most in range(limits.max_gpus + 1, max(cluster.num_gpus_by_type.values(), default=0) + 1):
            changed = _limited(request, replace(limits, max_gpus=most))
            yield _change("constraints.max_gpus", str(limits.max_gpus), str(most), changed, cluster)
    if limits.gpu_types:
        before = ", ".join(limits.gpu_types)
        for gpu in sorted(cluster.gpu_types, key=lambda each: (each.memory_bytes, each.name)):
            if gpu.name not in limits.gpu_types:
                changed = _limited(request, replace(limits, gpu_types=(*limits.gpu_types, gpu.name)))
                yield _change("constraints.gpu_types", before, f"{before}, {gpu.name}", changed, cluster)
    if limits.max_cost is not None:
        changed = _limited(request, replace(limits, max_cost=None))
        yield _change("constraints.max_cost", f"{limits.max_cost:g}", "none", changed, cluster)
    if request.seconds_to_deadline is not None:
        changed = replace(_limited(request, replace(limits, deadline=None)), seconds_to_deadline=None)
        yield _change("constraints.deadline", str(limits.deadline), "none", changed, cluster)


def _limited(request: PlanRequest, constraints: ConstraintsSpec) -> PlanRequest:
    return replace(request, job=replace(request.job, constraints=constraints))


def _shorter_sequences(request: PlanRequest, cluster: Cluster, solve: Solve) -> Iterator[Remedy]:
    """The longest sequence length that fits, by bisection over multiples of 8 (memory is monotone)."""
    before = request.sequence_length

    def fits(steps: int) -> bool:
        return _feasible(solve(_with_length(request, steps * _LENGTH_STEP), cluster))

    low, high = 0, (before - 1) // _LENGTH_STEP
    if high < 1 or not fits(1):
        return
    low = 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    length = low * _LENGTH_STEP
    yield _change("data.sequence_length", str(before), str(length), _with_length(request, length), cluster)


def _with_length(request: PlanRequest, length: int) -> PlanRequest:
    job: TrainingJob = request.job
    return replace(request, job=replace(job, data=replace(job.data, sequence_length=length)))


def _more_gpus(request: PlanRequest, cluster: Cluster) -> Iterator[Remedy]:
    """One more node of a type that is there, smallest type first."""
    if request.job.constraints.max_gpus is not None:
        return
    for gpu in sorted(cluster.gpu_types, key=lambda each: (each.memory_bytes, each.name)):
        template = next((node for node in cluster.nodes if node.gpu_type == gpu.name), None)
        if template is None:
            continue
        before = cluster.num_gpus_by_type[gpu.name]
        for added in range(1, before + 1):
            node = replace(template, name=f"{template.name}-added", num_gpus=added)
            wider = Cluster(cluster.gpu_types, (*cluster.nodes, node))
            yield _change(f"{gpu.name} in the cluster", str(before), str(before + added), request, wider)


def _larger_gpu(request: PlanRequest, cluster: Cluster, solve: Solve) -> Iterator[Remedy]:
    """The least memory with which an existing type would do."""
    candidates = [each for each in solve(request, cluster) if each.reason.code is ReasonCode.INSUFFICIENT_GPU_MEMORY]
    if not candidates:
        return
    nearest = min(candidates, key=_distance)
    needed = -(-(nearest.plan.memory.required_bytes + request.extra_bytes_per_gpu) // MIB) * MIB
    types = tuple(
        replace(gpu, memory_bytes=needed) if gpu.name == nearest.plan.gpu_type else gpu for gpu in cluster.gpu_types
    )
    yield _change(
        f"memory of a {nearest.plan.gpu_type}",
        format_bytes(nearest.plan.gpu_memory_bytes),
        format_bytes(needed),
        request,
        Cluster(types, cluster.nodes),
    )


def _change(field: str, before: str, after: str, request: PlanRequest, cluster: Cluster) -> Remedy:
    return Remedy(field=field, before=before, after=after, request=request, cluster=cluster)
