"""The config of a job's model, and what is checked of it before its weights are there."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import Any

import torch

from frenzy.core.models.flops import FlopsShape
from frenzy.core.planning.launchable import TRAINED_FAMILIES
from frenzy.core.values.job import ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.trainer.model import four_bit
from frenzy.trainer.model.library_configs import config_of
from frenzy.trainer.model.making import model_without_weights
from frenzy.trainer.outcome import BadInputError, one_line


def load_config(model: ModelSpec, *, eos_token_id: int | None = None) -> Any:
    """The Hugging Face config of ``model``. Raises BadInputError."""
    if model.config is not None:
        try:
            config = config_of(model.config)
        except Exception as error:
            raise BadInputError("model.config", dict(model.config), one_line(error)) from error
    else:
        config = _config_at(model)
    if eos_token_id is not None and model.config is not None:
        config.bos_token_id = config.eos_token_id = config.pad_token_id = eos_token_id
    config.use_cache = False
    return config


def _config_at(model: ModelSpec) -> Any:
    from transformers import AutoConfig

    field, place = ("model.path", model.path) if model.path is not None else ("model.hub_id", model.hub_id)
    try:
        return AutoConfig.from_pretrained(str(place), revision=model.revision or "main", trust_remote_code=False)
    except Exception as error:
        raise BadInputError(field, place, f"no model config can be read there ({one_line(error)})") from error


def check_fit(config: Any, job: TrainingJob, *, largest_token_id: int) -> None:
    """Refuse what could only fail in mid-training. Raises BadInputError."""
    text = config.get_text_config()
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else type(quantised).__name__
        allowed = "give the unquantised weights, and training.lora.quantization: nf4 to train them in 4 bits"
        raise BadInputError("model.config.quantization_config", method, allowed)
    vocab_size = getattr(text, "vocab_size", None)
    if vocab_size is not None and largest_token_id >= vocab_size:
        allowed = f"the tokenizer has ids up to {largest_token_id}; give at least {largest_token_id + 1}"
        raise BadInputError("model.config.vocab_size", vocab_size, allowed)
    positions = getattr(text, "max_position_embeddings", None)
    if isinstance(positions, int) and job.data.sequence_length > positions:
        allowed = f"the model has {positions} positions; shorten the sequences or raise max_position_embeddings"
        raise BadInputError("data.sequence_length", job.data.sequence_length, allowed)
    family = TRAINED_FAMILIES.get(config.model_type)
    if job.data.document_masks and (family is None or not family.document_masks):
        allowed = f"{config.model_type} does not tell documents apart by their position ids; use false"
        raise BadInputError("data.document_masks", True, allowed)


def check_plan(config: Any, job: TrainingJob, plan: ResourcePlan) -> None:
    """Refuse a plan that does not fit the job or the model. Raises BadInputError."""
    if plan.global_batch_size != job.training.global_batch_size:
        allowed = f"dp x micro-batch x accumulation must give the job's {job.training.global_batch_size}"
        raise BadInputError("plan.global_batch_size", plan.global_batch_size, allowed)
    if plan.dp * plan.tp != plan.num_gpus:
        raise BadInputError("plan.num_gpus", plan.num_gpus, f"dp x tp is {plan.dp * plan.tp}")
    if plan.zero_stage not in (1, 2, 3):
        raise BadInputError("plan.zero_stage", plan.zero_stage, "a run that may move needs stage 1, 2 or 3")
    heads = getattr(config.get_text_config(), "num_attention_heads", None)
    if plan.tp > 1 and isinstance(heads, int) and heads % plan.tp:
        raise BadInputError("plan.tp", plan.tp, f"it must divide the model's {heads} attention heads")


def check_builds(config: Any, attention: str) -> None:
    """Build the model without memory, on torch's meta device. Raises BadInputError if it cannot be."""
    problem = _build_problem(config, attention)
    if problem is None:
        return
    if attention != "eager" and _build_problem(config, "eager") is None:
        allowed = f"{config.model_type} has no {attention} attention; use eager"
        raise BadInputError("training.attention", attention, allowed) from problem
    allowed = f"no causal language model can be made of it ({one_line(problem)})"
    raise BadInputError("model.config", config.to_diff_dict(), allowed) from problem


def _build_problem(config: Any, attention: str) -> Exception | None:
    try:
        with torch.device("meta"):
            model_without_weights(config, attention, torch.float32)
    except Exception as error:  # a config can be wrong in as many ways as there are families
        return error
    return None


def check_precision(precision: Precision) -> None:
    """Refuse a number format this device's kernels lack. Raises BadInputError."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    lacks_fp16 = precision is Precision.FP16 and not accelerator.is_fp16_supported()
    lacks_bf16 = precision in (Precision.BF16, Precision.AUTOCAST_BF16) and not accelerator.is_bf16_supported()
    if lacks_fp16 or lacks_bf16:
        other = "bf16 or fp32" if lacks_fp16 else "fp16 or fp32"
        raise BadInputError("training.precision", precision.value, f"this device cannot compute in it; use {other}")


def check_attention(attention: str) -> None:
    """Refuse an attention whose kernels are not installed. Raises BadInputError."""
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    packages = {
        "flash_attention_2": ("flash-attn", is_flash_attn_2_available),
        "flash_attention_3": ("flash-attn-3", is_flash_attn_3_available),
    }
    package, is_there = packages.get(attention, ("", bool))
    if package and not is_there():
        raise BadInputError("training.attention", attention, f"{package} and a GPU for it are not there; use sdpa")


def check_kernels(training: TrainingSpec) -> None:
    """Refuse kernels and compilers that are not on this node. Raises BadInputError."""
    if training.kernels == "liger" and not (find_spec("liger_kernel") and torch.cuda.is_available()):
        raise BadInputError("training.kernels", "liger", "liger-kernel and a GPU for it are not there; use torch")
    compiler = "gcc" if torch.cuda.is_available() else "g++"
    if training.compile and shutil.which(compiler) is None:
        allowed = f"torch.compile needs {compiler}, which is not on this node; install it or use false"
        raise BadInputError("training.compile", True, allowed)


def flops_shape(model: torch.nn.Module, config: Any) -> FlopsShape:
    """Sizes of ``model`` for counting operations, whole ones where a rank holds slices."""
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", 1)
    head_width = getattr(text, "head_dim", None) or text.hidden_size // heads
    parameters = list(model.parameters())
    return FlopsShape(
        num_parameters=sum(four_bit.num_elements(each) for each in parameters),
        num_trainable=sum(four_bit.num_elements(each) for each in parameters if each.requires_grad),
        num_inactive=_inactive_parameters(model, text),
        num_layers=text.num_hidden_layers,
        attention_width=heads * head_width,
    )


def _inactive_parameters(model: torch.nn.Module, text: Any) -> int:
    """Parameters of the experts that a token does not visit."""
    number = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None) or 0
    visited = getattr(text, "num_experts_per_tok", None) or number
    experts = sum(four_bit.num_elements(each) for name, each in model.named_parameters() if ".experts." in name)
    return int(experts * (number - visited) // number) if number else 0
