"""What other published estimates say of the same runs, from their formulas.

Each estimates full training only; none knows adapters or quantised weights. They are asked about
the runs that they cover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from frenzy.core.memory.torch_kernels import Sharding, TorchRun
from frenzy.core.models.parameters import ModelShape
from frenzy.core.planning.paper_plans import paper_memory
from frenzy.evaluation.deepspeed_run import DeepSpeedRun
from frenzy.evaluation.published import ModelledRun
from tools.accuracy.datasets.megatron import MegatronRun


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRun:
    """What the formulas ask. dp divides states only where ``zero_stage`` says so."""

    shape: ModelShape
    micro_batch: int
    sequence_length: int
    dp: int
    tp: int
    zero_stage: int
    checkpointing: bool


def full_run(run: ModelledRun | MegatronRun) -> FullRun | None:
    """``run`` for the formulas; None for adapters and quantised weights."""
    if isinstance(run, MegatronRun):
        return FullRun(
            shape=run.shape,
            micro_batch=run.micro_batch,
            sequence_length=run.sequence_length,
            dp=run.dp,
            tp=run.tp,
            zero_stage=run.zero_stage,
            checkpointing=False,
        )
    if isinstance(run, DeepSpeedRun):
        return _full_deepspeed_run(run)
    if not run.trained.is_everything:
        return None
    return _full_torch_run(run)


def _full_deepspeed_run(run: DeepSpeedRun) -> FullRun | None:
    if not run.workload.trained.is_everything:
        return None
    return FullRun(
        shape=run.workload.shape,
        micro_batch=run.plan.micro_batch,
        sequence_length=run.workload.sequence_length,
        dp=run.plan.dp,
        tp=run.plan.tp,
        zero_stage=run.plan.zero_stage,
        checkpointing=run.plan.checkpointing,
    )


def _full_torch_run(run: TorchRun) -> FullRun:
    stages = {Sharding.NONE: 0, Sharding.GRADIENTS: 2, Sharding.FULL: 3}
    return FullRun(
        shape=run.shape,
        micro_batch=run.micro_batch,
        sequence_length=run.sequence_length,
        dp=run.num_gpus,
        tp=1,
        zero_stage=stages[run.sharding],
        checkpointing=run.coefficients.checkpointing,
    )


def frenzy_paper(run: FullRun) -> float:
    """20*W/t + s*b*h*l*(10 + 24/t + 5*a*s/(h*t)): Frenzy, arXiv 2412.14479, section 3."""
    states, activations = paper_memory(
        run.shape, sequence_length=run.sequence_length, batch_per_rank=run.micro_batch, tp=run.tp
    )
    return states + activations


def deepspeed_states(run: FullRun) -> float:
    """DeepSpeed's estimators of model states: 20*N alone; 4*N + 16*N/P in stage 2; 18*N/P and four bytes of the
    largest layer in stage 3 (deepspeed/runtime/zero, estimate_zero2/zero3_model_states_mem_needs).
    """
    parameters = run.shape.num_parameters / run.tp
    if run.zero_stage == 3:
        largest = max(sum(each.num_elements for each in run.shape.layer), run.shape.vocab_size * run.shape.hidden_size)
        return 4.0 * largest + 18.0 * parameters / run.dp
    owners = run.dp if run.zero_stage else 1
    return 4.0 * parameters + 16.0 * parameters / owners


def accelerate_estimate(run: FullRun) -> float:
    """accelerate's estimate of training with Adam: four times the weights in their format (16 bits here)."""
    return 4 * 2.0 * run.shape.num_parameters


def megatron_theoretical(run: FullRun) -> float:
    """Megatron-LM's theoretical report: 18 bytes a parameter (6 + 12/P when the optimizer is distributed),
    and s*b*h*(18 + 4*I/h) a layer, 8*s*b and 4*s*b*h*(1 + V/h) outside, all divided by t.
    """
    shape, tokens = run.shape, run.micro_batch * run.sequence_length
    bytes_per_parameter = 6 + 12 / run.dp if run.zero_stage else 18.0
    weights = bytes_per_parameter * shape.num_parameters / run.tp
    layer = tokens * shape.hidden_size * (18 + 4 * shape.intermediate_size / shape.hidden_size)
    outside = 8 * tokens + tokens * shape.hidden_size * 4 * (1 + shape.vocab_size / shape.hidden_size)
    return weights + (layer * shape.num_layers + outside) / run.tp


PEERS: Final[Mapping[str, Callable[[FullRun], float]]] = {
    "Frenzy's paper": frenzy_paper,
    "DeepSpeed's estimators": deepspeed_states,
    "accelerate's estimate": accelerate_estimate,
    "Megatron's theory": megatron_theoretical,
}
