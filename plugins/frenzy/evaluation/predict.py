"""Predictions of published runs, whatever ran them."""

from __future__ import annotations

from functools import singledispatch

from frenzy.core.memory.torch_kernels import TorchRun, predict_torch_memory
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.evaluation.deepspeed_run import DeepSpeedRun, predict_deepspeed_memory


@singledispatch
def predict(run: object) -> MemoryPrediction:
    """Peak of tensors on the first GPU of ``run``; its required_bytes carries a margin for DeepSpeed's only."""
    raise TypeError(f"nothing predicts a {type(run).__name__}")


predict.register(TorchRun, predict_torch_memory)
predict.register(DeepSpeedRun, predict_deepspeed_memory)
