"""What all MARP policies share: facts about a GPU type, refusals that need no memory model, ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.memory.activation_coefficients import Attention, Loss
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import PlanGrid, PlanRow, Workload
from frenzy.core.memory.model_trace import release_numbers
from frenzy.core.memory.script_heads import with_classes
from frenzy.core.memory.whole_scores import computes_whole_scores
from frenzy.core.models.trainable import TrainedPart, trained_part
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.launchable import LaunchChoice, launch_refusal
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.step_time import Array, Link, step_times_s
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import LoraSpec, Precision, TrainingJob
from frenzy.core.values.job_environment import segments_grow
from frenzy.core.values.recipe import is_overlapped, is_pinned
from frenzy.core.values.resource_plan import Candidate, MemoryPrediction, PlanShape, ResourcePlan
from frenzy.core.values.units import counted, format_bytes, format_duration, format_shortage, round_up
from frenzy.core.values.workload import Task
from frenzy.core.values.zero_buckets import bucket_elements_for

# The last release of transformers of which it is known that it repeats key/value heads.
_REPEATS_HEADS: Final = (4, 48)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A plan that can run; its rank is its place among all of them."""

    plan: ResourcePlan


@dataclass(frozen=True, slots=True)
class Refused:
    """A plan that cannot run, and why."""

    plan: ResourcePlan
    reason: Reason


@dataclass(frozen=True)
class TypeFacts:
    """One GPU type in one planning: how many there are, how fast plans run on it.

    gpus_per_node, host_bytes_per_node: of the node that has most of each.
    """

    request: PlanRequest
    gpu: GpuType
    calibration: Calibration
    num_gpus: int
    gpus_per_node: int
    host_bytes_per_node: int

    @cached_property
    def workload(self) -> Workload:
        return workload_of(self.request, self.gpu.kind, self.gpu.compute_capability)

    @property
    def attention_note(self) -> str:
        """What a plan on this type says where it is not planned with the attention that was asked for."""
        if not self.workload.whole_scores:
            return ""
        has_half = not holds_scores(self.request, self.gpu, precision=Precision.FP16)
        return (
            f"torch has no attention kernel for {self.request.job.training.precision} on {self.gpu.name} (compute "
            f"capability {self.gpu.compute_capability}), so whole scores are counted"
            f"{'; for fp16 it has one' if has_half else ''}."
        )

    @cached_property
    def link(self) -> Link:
        return Link(
            gpus_per_node=self.gpus_per_node,
            inside_bytes_per_s=self.gpu.link_bytes_per_s,
            between_bytes_per_s=self.gpu.node_link_bytes_per_s or self.calibration.internode_bytes_per_s,
        )

    @cached_property
    def pace(self) -> float:
        """By what earlier runs on this type multiply predicted step times."""
        return self.request.residuals.pace(self.gpu.kind, self.request.residual_family, self.gpu.name)

    def step_times_s(self, grid: PlanGrid) -> Array:
        """Predicted seconds of an optimizer step for each plan of ``grid`` on this type."""
        seconds = step_times_s(self.workload, grid, self.gpu, self.link, self.calibration)
        return self.pace * self.workload.task.relative_work * seconds

    def launchable(self, grid: PlanGrid) -> NDArray[np.bool_]:
        """Plans that the trainer can run on some card of this kind."""
        launchable = grid.by_setting(
            lambda zero_stage, tp, offload: (
                self._trainer_refusal(zero_stage=zero_stage, tp=tp, offload=offload, on_type=False) is None
            )
        )
        return launchable > 0

    def allowed(self, grid: PlanGrid, launchable: NDArray[np.bool_], step_s: Array) -> NDArray[np.bool_]:
        """Plans that ``refusal`` has nothing against, but for those that failed: the same rules for all at once.

        launchable: what the method of that name says of this kind.
        """
        constraints, num_gpus = self.request.job.constraints, grid.dp * grid.tp
        run_s = step_s * self.request.total_steps
        limits = (self.num_gpus, constraints.max_gpus, self.gpu.max_gpus_per_job)
        most = min(each for each in limits if each is not None)
        allowed = launchable & (grid.tp <= self.gpus_per_node) & (num_gpus <= most)
        # what the simplest plan cannot have on this type, none can
        if self._type_refusal() is not None or self._trainer_refusal(zero_stage=1, tp=1, offload=False) is not None:
            allowed[:] = False
        if constraints.max_cost is not None:
            price = math.inf if self.gpu.price_per_hour is None else self.gpu.price_per_hour
            allowed &= num_gpus * run_s / 3600.0 * price <= constraints.max_cost
        if self.request.seconds_to_deadline is not None:
            allowed &= run_s <= self.request.seconds_to_deadline
        return allowed

    def plan(self, row: PlanRow, memory: MemoryPrediction, step_time_s: float | None = None) -> ResourcePlan:
        """The resource plan of ``row`` on this type, with its predictions."""
        if step_time_s is None:
            step_time_s = float(self.step_times_s(grid_of([row]))[0])
        run_s, num_gpus = step_time_s * self.request.total_steps, row.dp * row.tp
        price = self.gpu.price_per_hour
        return ResourcePlan(
            gpu_type=self.gpu.name,
            num_gpus=num_gpus,
            dp=row.dp,
            tp=row.tp,
            zero_stage=row.zero_stage,
            micro_batch_size=row.micro_batch,
            accumulation_steps=row.accumulation,
            activation_checkpointing=row.checkpointing,
            offload_optimizer=row.offload,
            bucket_elements=self.workload.bucket_elements,
            memory=memory,
            gpu_memory_bytes=self.gpu.memory_bytes,
            step_time_s=step_time_s,
            samples_per_s=row.dp * row.micro_batch * row.accumulation / step_time_s,
            predicted_run_s=run_s,
            predicted_cost=None if price is None else num_gpus * run_s / 3600.0 * price,
            model_step_s=None if self.pace == 1.0 else step_time_s / self.pace,
        )

    def refusal(self, plan: ResourcePlan) -> Reason | None:
        """Why ``plan`` cannot run, for any reason but memory."""
        return (
            self._type_refusal()
            or self._not_launchable(plan)
            or self._count_refusal(plan)
            or self._limit_refusal(plan)
            or self._excluded(plan.shape)
        )

    def _type_refusal(self) -> Reason | None:
        allowed = self.request.job.constraints.gpu_types
        if allowed and self.gpu.name not in allowed:
            detail = f"{self.gpu.name} is not among constraints.gpu_types ({', '.join(allowed)})."
            return Reason(
                code=ReasonCode.GPU_TYPE_NOT_ALLOWED,
                detail=detail,
                remedy=f"Add {self.gpu.name} to constraints.gpu_types.",
            )
        return None

    def _not_launchable(self, plan: ResourcePlan) -> Reason | None:
        problem = self._trainer_refusal(zero_stage=plan.zero_stage, tp=plan.tp, offload=plan.offload_optimizer)
        if problem is None and plan.tp > self.gpus_per_node:
            detail = f"Tensor parallel {plan.tp} does not fit one node of {self.gpus_per_node} {self.gpu.name}."
            problem = Reason(code=ReasonCode.PREDICTED_NOT_LAUNCHABLE, detail=detail)
        return None if problem is None else replace(problem, detail=f"{plan.plan_id}: {problem.detail}")

    def _trainer_refusal(self, *, zero_stage: int, tp: int, offload: bool, on_type: bool = True) -> Reason | None:
        """Why the trainer does not run such a plan on this type, or on no card of its kind."""
        if self.request.job.workload is not None:  # what else a script can run, it says itself
            return self._plain_experts_refusal()
        choice = LaunchChoice(
            kind=self.gpu.kind,
            zero_stage=zero_stage,
            tp=tp,
            offload_optimizer=offload,
            compute_capability=self.gpu.compute_capability if on_type else None,
        )
        return launch_refusal(self.request.job, self.request.shape, choice, self.request.trace)

    def _plain_experts_refusal(self) -> Reason | None:
        """bitsandbytes quantises linear maps alone; experts in 4 bits are the trainer's own (``four_bit_experts``)."""
        joined = any(each.is_expert and not each.is_linear for each in self.request.shape.layer)
        if self.workload.storage is WeightStorage.PLAIN or not (joined and self.calibration.joins_experts):
            return None
        detail = "In a script of transformers 5, the experts of 4-bit weights stay in 16 bits, which is not predicted."
        remedy = "Leave model out of the specification: the script's memory is then measured, and learnt."
        return Reason(code=ReasonCode.PREDICTED_NOT_LAUNCHABLE, detail=detail, remedy=remedy)

    def _count_refusal(self, plan: ResourcePlan) -> Reason | None:
        most = self.request.job.constraints.max_gpus
        together = self.gpu.max_gpus_per_job
        if together is not None and plan.num_gpus > together:
            return Reason(
                code=ReasonCode.PREDICTED_NOT_LAUNCHABLE,
                detail=f"{plan.plan_id} needs {plan.num_gpus} {self.gpu.name}; only {together} can work together.",
            )
        if plan.num_gpus > self.num_gpus:
            return Reason(
                code=ReasonCode.NOT_ENOUGH_GPUS,
                detail=f"{plan.plan_id} needs {plan.num_gpus} {self.gpu.name}; the cluster has {self.num_gpus}.",
                remedy=f"Add {plan.num_gpus - self.num_gpus} {self.gpu.name}.",
            )
        if most is not None and plan.num_gpus > most:
            return Reason(
                code=ReasonCode.GPU_TYPE_NOT_ALLOWED,
                detail=f"{plan.plan_id} needs {counted(plan.num_gpus, 'GPU')}; constraints.max_gpus is {most}.",
                remedy=f"Raise constraints.max_gpus to {plan.num_gpus}.",
            )
        return None

    def _limit_refusal(self, plan: ResourcePlan) -> Reason | None:
        most = self.request.job.constraints.max_cost
        if most is not None and plan.predicted_cost is None:
            return Reason(
                code=ReasonCode.NO_PRICE,
                detail=(
                    f"{plan.gpu_type} has no price_per_hour in the cluster file, so it is not known whether "
                    f"{plan.plan_id} keeps to constraints.max_cost, {most:g}."
                ),
                remedy=f"Give {plan.gpu_type} its price_per_hour, 0 if it is free.",
            )
        if most is not None and plan.predicted_cost is not None and plan.predicted_cost > most:
            return Reason(
                code=ReasonCode.OVER_MAX_COST,
                detail=(
                    f"{plan.plan_id} is predicted to cost {plan.predicted_cost:.3g}; constraints.max_cost is {most:g}."
                ),
                remedy=f"Raise constraints.max_cost to {round_up(plan.predicted_cost):g}.",
            )
        left_s = self.request.seconds_to_deadline
        if left_s is not None and plan.predicted_run_s > left_s:
            return Reason(
                code=ReasonCode.OVER_DEADLINE,
                detail=(
                    f"{plan.plan_id} is predicted to take {format_duration(plan.predicted_run_s)}; "
                    f"the deadline is in {format_duration(max(0.0, left_s))}."
                ),
                remedy=f"Move constraints.deadline by {format_duration(math.ceil(plan.predicted_run_s - left_s))}.",
            )
        return None

    def host_refusal(self, plan: ResourcePlan) -> Reason:
        """By how much ``plan`` exceeds the host memory of its nodes, and the term that weighs most."""
        lacking = plan.memory.host_bytes - self.host_bytes_per_node
        told = format_shortage(plan.memory.host_bytes, self.host_bytes_per_node)
        ranks = min(plan.num_gpus, max(1, self.gpus_per_node))
        tightest = max(plan.memory.host_terms, key=lambda term: term.bytes_of(ranks))
        return Reason(
            code=ReasonCode.INSUFFICIENT_HOST_MEMORY,
            detail=(
                f"{plan.plan_id} needs {told.needed} of host memory on each node for its "
                f"{counted(ranks, 'rank')}, {format_bytes(lacking)} more than a node of {plan.gpu_type} has "
                f"({told.there}); its largest part {tightest.name} ({format_bytes(tightest.bytes_of(ranks))})."
            ),
            remedy=f"Nodes with {told.enough} of host memory.",
        )

    def _excluded(self, shape: PlanShape) -> Reason | None:
        if shape not in self.request.excluded_shapes:
            return None
        return Reason(
            code=ReasonCode.EXCLUDED_AFTER_FAILURE,
            detail=f"{shape.plan_id} ran short of memory in an earlier attempt of this run.",
        )


def workload_of(request: PlanRequest, kind: DeviceKind, compute_capability: str | None = None) -> Workload:
    """What ``request`` trains, on devices of ``kind``; compute_capability: theirs (``"8.0"``), where it is known."""
    training, script = request.job.training, request.job.workload
    task = Task.LANGUAGE_MODEL if script is None else script.task
    shape = with_classes(request.shape) if task.has_classes else request.shape
    trained = trained_part(shape, training.lora)
    virtual = kind is DeviceKind.VIRTUAL
    return Workload(
        shape=shape,
        trained=trained,
        precision=_precision(request.job, trained),
        optimizer=training.optimizer,
        attention=Attention(training.attention),
        loss=Loss.TORCH if task.has_tiles or task.has_classes else Loss(training.loss),
        document_masks=request.job.data.document_masks,
        adapter_dropout=training.lora is not None and training.lora.dropout > 0,
        sequence_length=request.sequence_length,
        kind=kind,
        overlap_comm=is_overlapped(kind, 2, offload=False),
        pin_memory=is_pinned(kind),
        checkpoint_every=training.checkpoint_every_layers,
        storage=_storage(request.job.training.lora),
        largest_shard_bytes=0 if virtual and request.job.starts_random else None,
        copies_checkpoints=copies_checkpoints(request.job),
        gathers_model=script is not None and script.divides_states,
        bucket_elements=bucket_elements_for(trained.num_elements(shape.num_layers), virtual=virtual),
        task=task,
        divides_states=script is None or script.divides_states,
        # the built-in trainer's sequences are packed, hence all of one length
        lengths_vary=script is not None,
        segments_grow=virtual or segments_grow(request.job.env),
        whole_scores=Attention(training.attention) is Attention.SDPA
        and not virtual
        and computes_whole_scores(compute_capability, training.precision, shape, shares_heads=_shares_heads(request)),
    )


def holds_scores(request: PlanRequest, gpu: GpuType, **training: Any) -> bool:
    """Whether torch's own attention would hold whole scores on ``gpu``, with other choices of ``training``."""
    job = request.job
    other = replace(request, job=replace(job, training=replace(job.training, **training)))
    return workload_of(other, gpu.kind, gpu.compute_capability).whole_scores


def _shares_heads(request: PlanRequest) -> bool:
    """Whether transformers leaves it to torch to repeat key/value heads; not for a mask, nor in older releases."""
    release = request.script_release
    repeats = release is not None and release_numbers(release) <= _REPEATS_HEADS
    return not (repeats or request.job.data.document_masks)


def _precision(job: TrainingJob, trained: TrainedPart) -> Precision:
    """Of the computation. Where ZeRO keeps no master weights, those that are trained are in fp32 themselves."""
    precision, script = job.training.precision, job.workload
    if script is None or script.divides_states or not trained.is_everything or precision is Precision.FP32:
        return precision
    return Precision.AUTOCAST_BF16


def copies_checkpoints(job: TrainingJob) -> bool:
    """Whether checkpoints are written while training goes on; the last one of an attempt is waited for, uncopied."""
    checkpoint, last_step = job.checkpoint, job.training.max_steps
    only_at_end = checkpoint.every_minutes is None and last_step is not None and last_step <= checkpoint.every_steps
    return checkpoint.background and not only_at_end


def _storage(lora: LoraSpec | None) -> WeightStorage:
    """How the frozen weights are kept."""
    if lora is None or lora.quantization == "none":
        return WeightStorage.PLAIN
    return WeightStorage.NF4_DOUBLE if lora.double_quantization else WeightStorage.NF4


def gpu_facts(request: PlanRequest, cluster: Cluster, calibration: Calibration) -> tuple[TypeFacts, ...]:
    """Facts of every GPU type of ``cluster``, in its order; lost and drained nodes count (they may return)."""
    widest = dict.fromkeys((each.name for each in cluster.gpu_types), 0)
    most_host = dict(widest)
    for node in cluster.nodes:
        widest[node.gpu_type] = max(widest[node.gpu_type], node.num_gpus)
        most_host[node.gpu_type] = max(most_host[node.gpu_type], node.host_memory_bytes)
    return tuple(
        TypeFacts(
            request=request,
            gpu=gpu,
            calibration=calibration,
            num_gpus=cluster.num_gpus_by_type[gpu.name],
            gpus_per_node=widest[gpu.name],
            host_bytes_per_node=most_host[gpu.name],
        )
        for gpu in cluster.gpu_types
    )


def memory_refusal(plan: ResourcePlan, extra_bytes: int) -> Reason:
    """By how much ``plan`` exceeds its GPU, and the term that weighs most."""
    needed = plan.memory.required_bytes + extra_bytes
    told = format_shortage(needed, plan.gpu_memory_bytes)
    lacking = needed - plan.gpu_memory_bytes
    tightest = plan.memory.terms[0]
    grown = f", {format_bytes(extra_bytes)} of it seen to grow in earlier attempts" if extra_bytes else ""
    return Reason(
        code=ReasonCode.INSUFFICIENT_GPU_MEMORY,
        detail=(
            f"{plan.plan_id} needs {told.needed}{grown}, {format_bytes(lacking)} more than the "
            f"{told.there} of {plan.gpu_type}; peak at {plan.memory.at}, "
            f"its largest part {tightest.name} ({format_bytes(tightest.num_bytes)})."
        ),
        remedy=f"A GPU with {told.enough}.",
    )


def explain_paper(found: Iterable[Ranked | Refused]) -> tuple[Candidate, ...]:
    """Candidates in the order given, which is the paper's; refused ones last."""
    ordered = tuple(found)
    plans = [each.plan for each in ordered if isinstance(each, Ranked)]
    feasible = [
        Candidate(plan=plan, rank=rank, reason=_paper_reason(plan, rank, plans[0]))
        for rank, plan in enumerate(plans, start=1)
    ]
    refused = [each for each in ordered if isinstance(each, Refused)]
    return (*feasible, *refused_candidates(refused))


def _paper_reason(plan: ResourcePlan, rank: int, best: ResourcePlan) -> Reason:
    memory = f"{counted(plan.num_gpus, 'GPU')} at {format_bytes(plan.memory.peak_allocated_bytes)} each"
    if rank == 1:
        return Reason(code=ReasonCode.BEST_PLAN, detail=f"Fewest GPUs, then least memory: {memory}.")
    return Reason(
        code=ReasonCode.SLOWER_PLAN,
        detail=f"Ranked by GPUs and memory: {memory}, after {best.plan_id}.",
    )


def refused_candidates(refused: Sequence[Refused], *, every: bool = False) -> tuple[Candidate, ...]:
    """One refused plan for each GPU type, count and reason: the one that needs the least memory. Or every one."""
    if every:
        return tuple(Candidate(plan=each.plan, rank=None, reason=each.reason) for each in refused)
    kept: dict[tuple[str, int, ReasonCode], Refused] = {}
    for each in refused:
        key = (each.plan.gpu_type, each.plan.num_gpus, each.reason.code)
        known = kept.get(key)
        if known is None or each.plan.memory.required_bytes < known.plan.memory.required_bytes:
            kept[key] = each
    return tuple(Candidate(plan=each.plan, rank=None, reason=each.reason) for each in kept.values())
