"""One case of a measurement: a job and a plan, small enough to be run here and now."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import Workload, predict_memory
from frenzy.core.memory.model_trace import MODEL_TRACE, ModelTrace, calibrated, trace_in
from frenzy.core.models.module_tree import MODULE_TREE
from frenzy.core.models.shape import SUPPORTED_FAMILIES, ModelShape, model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.launchable import LaunchChoice, launch_refusal
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import CheckpointSpec, DataSpec, LoraSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan
from frenzy.trainer.model.library_configs import config_of

NUM_STEPS: Final = 3
Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3"]
# The trainer reads no prediction: a case that cannot be predicted is measured with this one.
_UNPREDICTED: Final = MemoryPrediction(peak_allocated_bytes=0, required_bytes=0, host_bytes=0, at="")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureCase:
    """One job and one plan of it. config: of the model, as Hugging Face writes it."""

    config: dict[str, Any]
    sequence_length: int
    precision: Precision
    dp: int
    zero_stage: int
    micro_batch: int
    accumulation: int
    checkpointing: bool
    tp: int = 1
    lora_rank: int | None = None
    quantization: Literal["none", "nf4"] = "none"
    double_quantization: bool = False
    optimizer: Literal["adamw", "adamw-8bit", "sgd"] = "adamw"
    attention: Attention = "sdpa"
    loss: Literal["torch", "fused"] = "torch"
    offload_optimizer: bool = False
    document_masks: bool = False
    checkpoint_every: int = 1

    @property
    def num_ranks(self) -> int:
        return self.dp * self.tp

    @property
    def family(self) -> str:
        return str(self.config["model_type"])

    @property
    def shape(self) -> ModelShape:
        return _model(json.dumps(self.config), self.precision, self.attention)[0]

    @property
    def trace(self) -> ModelTrace | None:
        """Of a model whose family has no closed form."""
        return _model(json.dumps(self.config), self.precision, self.attention)[1]

    @property
    def num_parameters(self) -> int:
        return self.shape.num_parameters

    @property
    def key(self) -> str:
        """The same text for the same case, whichever release wrote it down."""
        return json.dumps(codec.encode(self), sort_keys=True)

    @property
    def label(self) -> str:
        parts = [self.family, str(self.precision), f"z{self.zero_stage}", f"dp{self.dp}"]
        parts += [f"tp{self.tp}"] if self.tp > 1 else []
        parts += [f"mb{self.micro_batch}", f"acc{self.accumulation}", f"s{self.sequence_length}"]
        return "-".join(parts + self._switches())

    def _switches(self) -> list[str]:
        adapters = f"{'qlora' if self.quantization == 'nf4' else 'lora'}{self.lora_rank}"
        named = {
            f"ckpt{self.checkpoint_every if self.checkpoint_every > 1 else ''}": self.checkpointing,
            f"{adapters}{'-dq' if self.double_quantization else ''}": self.lora_rank is not None,
            self.optimizer.replace("adamw-", ""): self.optimizer != "adamw",
            self.attention.removesuffix("_attention_2").replace("_attention_", "-"): self.attention != "sdpa",
            f"{self.loss}-loss": self.loss != "torch",
            "offload": self.offload_optimizer,
            "docs": self.document_masks,
        }
        return [name for name, is_on in named.items() if is_on]


@lru_cache(maxsize=1024)
def _model(config: str, precision: Precision, attention: Attention) -> tuple[ModelShape, ModelTrace | None]:
    """The shape of the config with the library's defaults. Raises PermanentError for one that is not supported."""
    full = _full_config(json.loads(config), precision, attention)
    return model_shape(full), trace_in(full)


def _full_config(config: dict[str, Any], precision: Precision, attention: Attention) -> dict[str, Any]:
    full: dict[str, Any] = config_of(config).to_dict()
    return full if full["model_type"] in SUPPORTED_FAMILIES else {**full, **_traced(full, precision, attention)}


def _traced(full: dict[str, Any], precision: Precision, attention: Attention) -> dict[str, Any]:
    """The parameters and the trace of a model whose family has no closed form, as the planner has them made."""
    from frenzy.trainer.model.list_modules import module_tree

    tree = module_tree(config_of(full))
    asked = {"config": full, MODULE_TREE: tree, "precision": precision, "attentions": [attention]}
    command = [sys.executable, "-W", "ignore", "-m", "frenzy.trainer.trace.one_model"]
    ended = subprocess.run(command, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True)
    return {MODULE_TREE: tree, MODEL_TRACE: json.loads(ended.stdout.splitlines()[-1])}


def job_of(case: MeasureCase, text: Path) -> TrainingJob:
    """A short job with the case's model and batch."""
    return TrainingJob(
        name="measure",
        model=ModelSpec(config=case.config),
        data=_data(case, text),
        training=TrainingSpec(
            global_batch_size=case.dp * case.micro_batch * case.accumulation,
            max_steps=NUM_STEPS,
            precision=case.precision,
            checkpoint_every_layers=case.checkpoint_every,
            optimizer=case.optimizer,
            attention=case.attention,
            loss=case.loss,
            lora=_adapters(case),
        ),
        checkpoint=CheckpointSpec(every_steps=1_000_000, resume="never"),
    )


def _data(case: MeasureCase, text: Path) -> DataSpec:
    """The text: one document, or as many as a jsonl file has lines."""
    return DataSpec(
        path=str(text),
        format="jsonl" if text.suffix == ".jsonl" else "text",
        sequence_length=case.sequence_length,
        document_masks=case.document_masks,
    )


def _adapters(case: MeasureCase) -> LoraSpec | None:
    if case.lora_rank is None:
        return None
    return LoraSpec(rank=case.lora_rank, quantization=case.quantization, double_quantization=case.double_quantization)


def refusal_of(case: MeasureCase, kind: DeviceKind) -> Reason | None:
    """Why the trainer does not run ``case`` on a device of ``kind``; None when it does."""
    if case.zero_stage == 0:
        detail = "ZeRO stage 0 is not offered: a run in it could not move to another number of GPUs."
        return Reason(code=ReasonCode.PREDICTED_NOT_LAUNCHABLE, detail=detail, remedy="Use stage 1, 2 or 3.")
    choice = LaunchChoice(kind=kind, zero_stage=case.zero_stage, tp=case.tp, offload_optimizer=case.offload_optimizer)
    return launch_refusal(job_of(case, Path()), case.shape, choice, case.trace)


def prediction_of(
    case: MeasureCase, calibration: Calibration, kind: DeviceKind, compute_capability: str | None = None
) -> MemoryPrediction | None:
    """What the closed form says of ``case`` on a card of that capability; None outside its support."""
    row = (case.dp, case.tp, case.zero_stage, case.micro_batch, case.accumulation, case.checkpointing)
    grid = grid_of([row])
    if case.offload_optimizer:
        grid = replace(grid, offload=~grid.offload)
    workload = _workload(case, kind, compute_capability)
    memory = predict_memory(workload, grid, calibrated(calibration, case.trace))
    return None if memory is None else memory.on_card(compute_capability).prediction(0)


def _workload(case: MeasureCase, kind: DeviceKind, compute_capability: str | None) -> Workload:
    request = PlanRequest(job=job_of(case, Path()), shape=case.shape, total_steps=NUM_STEPS)
    return workload_of(request, kind, compute_capability)


def plan_of(case: MeasureCase, kind: DeviceKind, budget_bytes: int, memory: MemoryPrediction | None) -> ResourcePlan:
    """The case's plan on GPUs of ``budget_bytes``, with ZeRO buckets of the size the planner gives them."""
    return ResourcePlan(
        gpu_type=str(kind),
        num_gpus=case.num_ranks,
        dp=case.dp,
        tp=case.tp,
        zero_stage=case.zero_stage,
        micro_batch_size=case.micro_batch,
        accumulation_steps=case.accumulation,
        activation_checkpointing=case.checkpointing,
        offload_optimizer=case.offload_optimizer,
        bucket_elements=_workload(case, kind, None).bucket_elements,
        memory=memory or _UNPREDICTED,
        gpu_memory_bytes=budget_bytes,
        step_time_s=1.0,
        samples_per_s=1.0,
        predicted_run_s=1.0,
    )
