"""From a placement to what the workers are told: the launch spec and the DeepSpeed config.

The run directory is the only thing the workers and Airflow share; ``RunPaths`` names its places.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final

from annotated_types import Ge, Le, Lt

from frenzy.core.values.cluster import Node, Placement
from frenzy.core.values.codec import OMITTED_IF_EMPTY
from frenzy.core.values.errors import Reason, ReasonCode
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


class ExitCode(IntEnum):
    """What the trainer's exit code says. A failure has the name of its reason."""

    DONE = 0
    DATA_NOT_PREPARED = 82
    NODE_LIMITS_TOO_LOW = 83
    KERNEL_TOO_LARGE = 84
    DISK_FULL = 85
    DEVICE_ASSERT = 86
    ILLEGAL_ACCESS = 87
    GPU_NOT_SUPPORTED = 88
    DRIVER_TOO_OLD = 89
    GPU_UNAVAILABLE = 90
    GPU_FAULT = 91
    COLLECTIVE_FAILED = 92
    COLLECTIVE_TIMEOUT = 93
    SHARED_MEMORY_FULL = 94
    HOST_OUT_OF_MEMORY = 95
    BUDGET_EXCEEDED = 96
    CUDA_OUT_OF_MEMORY = 97
    CHECKPOINTED = 98
    BAD_CONFIG_OR_DATA = 99


REASON_BY_EXIT: Final[Mapping[int, ReasonCode]] = MappingProxyType(
    {int(each): ReasonCode[each.name] for each in ExitCode if each not in (ExitCode.DONE, ExitCode.CHECKPOINTED)}
)
EXIT_BY_REASON: Final[Mapping[ReasonCode, int]] = MappingProxyType({code: n for n, code in REASON_BY_EXIT.items()})


def how_ended(exit_code: int) -> str:
    """``was killed by SIGKILL`` for 128 + the signal's number, else ``ended with 3``."""
    if exit_code <= 128:
        return f"ended with {exit_code}"
    try:
        return f"was killed by {signal.Signals(exit_code - 128).name}"
    except ValueError:
        return f"was killed by signal {exit_code - 128}"


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
    total_steps is where it ended.
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


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The places of a run directory, as strings joined with ``/`` (fsspec paths)."""

    run_dir: str

    def attempt_dir(self, attempt: int) -> str:
        return f"{self.run_dir}/attempt-{attempt}"

    def spec(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/spec.json"

    def ds_config(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/ds_config.json"

    def control(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/control.json"

    def result(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/result.json"

    def rendezvous(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/rendezvous.json"

    def telemetry_dir(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/telemetry"

    def telemetry_chunk(self, attempt: int, node_rank: int, chunk: int) -> str:
        """A part of the history of a node's ranks."""
        return f"{self.telemetry_dir(attempt)}/{node_rank:05d}-{chunk:06d}.jsonl"

    def latest_dir(self, attempt: int) -> str:
        return f"{self.telemetry_dir(attempt)}/latest"

    def latest(self, attempt: int, node_rank: int) -> str:
        """The newest records of a node's ranks; overwritten."""
        return f"{self.latest_dir(attempt)}/{node_rank:05d}.jsonl"

    def heartbeat(self, attempt: int, node_rank: int) -> str:
        return f"{self.telemetry_dir(attempt)}/node-{node_rank:05d}.json"

    def logs_dir(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/logs"

    def rank_log(self, attempt: int, rank: int) -> str:
        return f"{self.logs_dir(attempt)}/rank-{rank}.log"

    @property
    def checkpoints_dir(self) -> str:
        return f"{self.run_dir}/checkpoints"

    def checkpoint_manifest(self, step: int) -> str:
        """The file whose presence makes the checkpoint of ``step`` exist."""
        return f"{self.checkpoints_dir}/step-{step}/manifest.json"

    @property
    def model_dir(self) -> str:
        """The finished model: safetensors, config, tokenizer."""
        return f"{self.run_dir}/model"

    @property
    def tracking_dir(self) -> str:
        """What trackers write here: a folder each, and what is known of each beside it."""
        return f"{self.run_dir}/tracking"

    def tracked(self, kind: str) -> str:
        """What is known of one tracker's run; overwritten."""
        return f"{self.tracking_dir}/{kind}.json"

    @property
    def data_dir(self) -> str:
        """The prepared tokens."""
        return f"{self.run_dir}/data"

    @property
    def tokenizer_dir(self) -> str:
        return f"{self.run_dir}/tokenizer"


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
