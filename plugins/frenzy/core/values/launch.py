"""From a placement to what the workers are told: the launch spec and the DeepSpeed config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

from annotated_types import Ge, Le, Lt

from frenzy.core.values.cluster import Node, Placement
from frenzy.core.values.codec import OMITTED_IF_EMPTY
from frenzy.core.values.errors import Reason
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import MAX_STEPS, Precision, TrainingJob
from frenzy.core.values.prepared_data import PreparedData, PreparedPaths
from frenzy.core.values.recipe import is_fused, is_overlapped, is_pinned, is_summed_in_fp32
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.zero_buckets import zero_buckets

# Numbers of a step, in what workers and tasks report.
Step = Annotated[int, Ge(0), Le(MAX_STEPS)]

# An optimizer DeepSpeed does not know by name: the trainer makes it and hands it over.
ADAMW_8BIT: Final = "AdamW8bit"

# Among an attempt's logs: what the container of node 0 wrote, where its ranks could not keep their own.
FIRST_POD_LOG: Final = "pod-0.log"


class ControlAction(StrEnum):
    """What ``control.json`` may ask of the trainer."""

    RUN = "run"
    CHECKPOINT_AND_STOP = "checkpoint_and_stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The content of ``control.json``; the trainer polls it once a step."""

    action: ControlAction
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """An attempt that only measures: it ends after its last step and saves nothing; a real GPU's
    allocator takes no more than the GPU type's memory.

    alone: only rank 0 runs, and imagines its exchanges with the plan's other ranks. Its memory is
    that of a whole run, its numbers are meaningless.
    """

    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """All that one attempt's workers need; written to ``spec.json`` in the attempt's folder.

    run_dir: fsspec URL or path of ``<root>/<run_key>``. num_nodes launchers are started, node
    rank i with ``gpus_per_node[i]`` ranks. gpu carries budget and speed for a virtual GPU.
    rehearsal: for an attempt that only measures. nodes: what the inventory knows of the placement's
    nodes, in their order; empty where it knows none of them any more, or needs none. masked, prepared: as in
    RunRecord.
    """

    run_key: str
    attempt: int
    job: TrainingJob
    plan: ResourcePlan
    gpu: GpuType
    placement: Placement
    run_dir: str
    rehearsal: Rehearsal | None = None
    nodes: tuple[Node, ...] = ()
    masked: tuple[str, ...] = ()
    prepared: PreparedData | None = field(default=None, metadata=OMITTED_IF_EMPTY)

    @property
    def data(self) -> PreparedPaths:
        """Where prepared data of its team lie."""
        return PreparedPaths.beside(self.run_dir, self.job.team)

    @property
    def gpus_per_node(self) -> tuple[int, ...]:
        return tuple(each.num_gpus for each in self.placement.allocations)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """The content of ``result.json``, written once by the node-0 launcher when all ranks ended.

    exit_code as in ExitCode, 128+n for a signal n, else the first failing rank's code.
    resumed_from_step: None for a fresh start. checkpoint_step: newest complete checkpoint.
    detail: one sentence (exception message, signal name). stopped_early: done before the steps that were planned;
    total_steps is where it ended. releases: of the script's libraries, as its agent reported them.
    """

    exit_code: Annotated[int, Ge(-(2**31)), Lt(2**31)]
    last_step: Step
    total_steps: Step
    resumed_from_step: Step | None = None
    checkpoint_step: Step | None = None
    final_loss: float | None = None
    first_failing_rank: Annotated[int | None, Ge(0), Lt(2**31)] = None
    detail: str = ""
    stopped_early: bool = field(default=False, metadata=OMITTED_IF_EMPTY)
    releases: Mapping[str, str] = field(default_factory=dict, metadata=OMITTED_IF_EMPTY)


def deepspeed_config(job: TrainingJob, plan: ResourcePlan, kind: DeviceKind) -> dict[str, Any]:
    """The DeepSpeed config that runs ``plan`` on devices of ``kind``; pure, so that a plan prints what it would run.

    Learning-rate schedules are the trainer's own (functions of the step), hence not in here.
    """
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.accumulation_steps,
        "train_batch_size": plan.global_batch_size,
        "gradient_clipping": job.training.gradient_clipping,
        "optimizer": _optimizer(job, kind),
        "zero_optimization": _zero(plan, kind),
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
    }
    if job.workload is not None and plan.zero_stage == 3:
        # Else what saves a Trainer's model writes a second checkpoint in its place, and no model.
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    config.update(_precision(job.training.precision))
    config.update(_sums(job.training.precision, plan))
    if plan.offload_optimizer:
        # torch's AdamW on the host: DeepSpeed's own is compiled on first use, which needs a compiler.
        config["zero_force_ds_cpu_optimizer"] = False
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
        # DeepSpeed's check of the product takes every rank for a data-parallel one.
        del config["train_batch_size"]
    return config


def _optimizer(job: TrainingJob, kind: DeviceKind) -> dict[str, Any]:
    training = job.training
    if training.optimizer == "sgd":
        return {
            "type": "SGD",
            "params": {"lr": training.learning_rate, "momentum": training.beta1, "weight_decay": training.weight_decay},
        }
    parameters = {
        "lr": training.learning_rate,
        "betas": [training.beta1, training.beta2],
        "weight_decay": training.weight_decay,
    }
    if training.optimizer == "adamw-8bit":
        return {"type": ADAMW_8BIT, "params": parameters}
    fused = {"fused": True} if is_fused(training.optimizer, kind) else {}
    return {"type": "AdamW", "params": {**parameters, "torch_adam": True, **fused}}


def _zero(plan: ResourcePlan, kind: DeviceKind) -> dict[str, Any]:
    buckets = zero_buckets(plan.bucket_elements)
    zero: dict[str, Any] = {
        "stage": plan.zero_stage,
        "reduce_bucket_size": buckets.reduce,
        "allgather_bucket_size": buckets.reduce,
    }
    if plan.zero_stage < 3 and is_overlapped(kind, plan.dp, offload=plan.offload_optimizer):
        zero["overlap_comm"] = True
    if plan.zero_stage == 3:
        zero["stage3_prefetch_bucket_size"] = buckets.prefetch
        zero["stage3_max_live_parameters"] = buckets.live
        zero["stage3_max_reuse_distance"] = buckets.reuse
        zero["stage3_param_persistence_threshold"] = buckets.persistent
        zero["sub_group_size"] = buckets.sub_group
    if plan.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": is_pinned(kind)}
    return zero


def _sums(precision: Precision, plan: ResourcePlan) -> dict[str, Any]:
    """How gradients of micro-batches are added up.

    Stage 1 sums whole gradients and reduces the sums, in their own format; each gradient leaves when it was added.
    """
    if not is_summed_in_fp32(precision, plan.accumulation_steps, offload=plan.offload_optimizer):
        return {}
    sums: dict[str, Any] = {"data_types": {"grad_accum_dtype": "fp32"}}
    if plan.zero_stage == 1:
        sums["communication_data_type"] = "fp32"
        if precision is Precision.BF16:
            sums["bf16"] = {"enabled": True, "immediate_grad_update": True}
    return sums


def _precision(precision: Precision) -> dict[str, Any]:
    if precision is Precision.BF16:
        return {"bf16": {"enabled": True}}
    if precision is Precision.FP16:
        return {"fp16": {"enabled": True}}
    if precision is Precision.AUTOCAST_BF16:
        return {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    return {}
