"""Predictions of published runs, whatever ran them."""

from __future__ import annotations

from frenzy.core.memory.megatron import MegatronRun, predict_megatron_memory
from frenzy.core.memory.torch_kernels import predict_torch_memory
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.evaluation.deepspeed_run import DeepSpeedRun, predict_deepspeed_memory
from frenzy.evaluation.published import ModelledRun


def predict(run: ModelledRun) -> MemoryPrediction:
    """Peak of tensors on the first GPU of ``run``; its required_bytes carries a margin for DeepSpeed's only."""
    if isinstance(run, DeepSpeedRun):
        return predict_deepspeed_memory(run)
    if isinstance(run, MegatronRun):
        return predict_megatron_memory(run)
    return predict_torch_memory(run)
