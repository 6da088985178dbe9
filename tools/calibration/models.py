"""Small models for tracing, built alike with every release of transformers that is calibrated."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from frenzy.core.memory.activation_coefficients import ActivationSetting, AdapterSetting, Attention
from frenzy.core.values.job import Precision
from frenzy.trainer.trace.kernels import flash_attention
from tools.calibration.families import NUM_EXPERTS, Family

ADAPTER_RANKS = (2, 4, 8)
# Visits an expert gets at least: one token's tensors have views where others have copies.
_FEW = 4
_DROPOUT = 0.1
# Where a release keeps the one function that every flash attention goes through.
_FLASH_MODULES = ("transformers.integrations.flash_attention",)
_SIXTEEN_BITS = (Precision.BF16, Precision.FP16)


def full_config(given: Mapping[str, Any]) -> Any:
    """The Hugging Face config of ``given`` fields; a head width only where this release's class has one."""
    from transformers import AutoConfig

    usual = AutoConfig.for_model(str(given["model_type"]))
    kept = {name: value for name, value in given.items() if name != "head_dim" or hasattr(usual, name)}
    return AutoConfig.for_model(**kept)


@contextlib.contextmanager
def built(family: Family, config: Any, setting: ActivationSetting, *, adapter_rank: int = 0) -> Iterator[Any]:
    """The model, with weights in their formats; attention stays replaced while the context lasts."""
    model = _bare(family, config, setting.attention)
    formats = setting.adapters.frozen if setting.adapters else setting.precision
    if formats in _SIXTEEN_BITS:
        model.to(torch.bfloat16)
    if setting.adapters is not None:
        model = _with_adapters(model, setting, setting.adapters, adapter_rank)
    with _flash_replaced(model) if setting.attention is Attention.FLASH_2 else contextlib.nullcontext():
        yield model


def _bare(family: Family, config: Any, attention: Attention) -> Any:
    import transformers

    kind = transformers.AutoModelForMaskedLM if family.is_encoder else transformers.AutoModelForCausalLM
    asked = Attention.EAGER if family.eager_only else Attention.SDPA
    if attention is Attention.EAGER:
        asked = Attention.EAGER
    allowed = _flash_allowed() if attention is Attention.FLASH_2 else contextlib.nullcontext()
    with allowed, _without_random_weights():
        older = attention is Attention.FLASH_2 and chooses_attention_when_built()
        model = kind.from_config(config, attn_implementation="flash_attention_2" if older else asked.value)  # type: ignore[no-untyped-call]
    model.config._attn_implementation = attention.value
    return model


@contextlib.contextmanager
def _without_random_weights() -> Iterator[None]:
    """Weights stay zero: drawing them takes longer than the trace, and no size depends on them."""
    # Imported before anything is replaced: it keeps the functions that it finds, from release 5 on in a table.
    import transformers.modeling_utils

    names = ("normal_", "uniform_", "trunc_normal_")
    kept = getattr(getattr(transformers, "initialization", None), "TORCH_INIT_FUNCTIONS", {})
    before = {name: getattr(torch.nn.init, name) for name in names}
    method, table = torch.Tensor.normal_, dict(kept)

    def zeros(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        with torch.no_grad():
            return tensor.zero_()

    for name in names:
        setattr(torch.nn.init, name, zeros)
    kept.update(dict.fromkeys(table.keys() & set(names), zeros))
    torch.Tensor.normal_ = zeros  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.normal_ = method  # type: ignore[method-assign]
        kept.update(table)
        for name, function in before.items():
            setattr(torch.nn.init, name, function)


def is_before_release_5() -> bool:
    """Whether the installed transformers is one that published runs used, not one that the product plans with."""
    import transformers

    return int(transformers.__version__.partition(".")[0]) < 5


def chooses_attention_when_built() -> bool:
    """Releases before 4.48 have a class for each attention; later ones look it up at each call."""
    import transformers.modeling_utils

    return not hasattr(transformers.modeling_utils, "ALL_ATTENTION_FUNCTIONS")


@contextlib.contextmanager
def _flash_allowed() -> Iterator[None]:
    """Let a release build flash attention although its kernels are not installed."""
    from transformers import PreTrainedModel

    name = "_check_and_enable_flash_attn_2"
    if not hasattr(PreTrainedModel, name):
        yield
        return
    before = PreTrainedModel.__dict__[name]

    def allow(cls: Any, config: Any, *_: Any, **__: Any) -> Any:
        config._attn_implementation = "flash_attention_2"
        return config

    setattr(PreTrainedModel, name, classmethod(allow))
    try:
        yield
    finally:
        setattr(PreTrainedModel, name, before)


@contextlib.contextmanager
def _flash_replaced(model: Any) -> Iterator[None]:
    """Have flash attention allocate what its kernel does, wherever this release calls it from."""
    own = type(model.get_base_model() if hasattr(model, "get_base_model") else model).__module__
    names = [own] if chooses_attention_when_built() else _FLASH_MODULES
    modules = [sys.modules.get(name) or importlib.import_module(name) for name in names]
    # Releases before 4.43 have a method of each class in its place, which calls the kernel's own function.
    stand_ins = {"_flash_attention_forward": _flash, "flash_attn_func": flash_attention}
    before = [{name: getattr(module, name, None) for name in stand_ins} for module in modules]
    for module in modules:
        vars(module).update(stand_ins)
    try:
        yield
    finally:
        for module, functions in zip(modules, before, strict=True):
            vars(module).update(functions)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, target_dtype: Any = None, **__: Any
) -> torch.Tensor:
    if query.dtype == torch.float32 and target_dtype is not None:
        query, key, value = (each.to(target_dtype) for each in (query, key, value))
    return flash_attention(query, key, value)


def _with_adapters(model: Any, setting: ActivationSetting, adapters: AdapterSetting, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=rank,
        target_modules=list(adapters.targets),
        lora_dropout=_DROPOUT if adapters.dropout else 0.0,
        fan_in_fan_out=model.config.model_type == "gpt2",
        task_type="CAUSAL_LM",
    )
    in_fp32 = setting.precision not in _SIXTEEN_BITS
    adapted = get_peft_model(model, settings, autocast_adapter_dtype=in_fp32)
    if adapters.answers_in_kind:
        _answer_in_kind(adapted)
    if not in_fp32:
        adapted.to(torch.bfloat16)
    return adapted


def _answer_in_kind(model: Any) -> None:
    """Have the frozen linear maps of the layers answer in the format of their input, as 4-bit ones do."""
    head = model.get_output_embeddings()
    for module in model.modules():
        frozen = isinstance(module, torch.nn.Linear) and not module.weight.requires_grad
        if frozen and module is not head:
            module.register_forward_hook(lambda _, inputs, output: output.to(inputs[0].dtype))


def loops_over_experts() -> bool:
    """Whether this release computes one expert after the other; later ones group all in one product."""
    import importlib.util

    return importlib.util.find_spec("transformers.integrations.moe") is None


@contextlib.contextmanager
def given_routing(counts: Sequence[int], per_token: int) -> Iterator[None]:
    """Send tokens to experts by ``counts``: how many visits each expert gets from all tokens."""
    chosen, before = _visits(counts, per_token), torch.topk

    def topk(*args: Any, **kwargs: Any) -> Any:
        values, indices = before(*args, **kwargs)
        return values, chosen if indices.shape == chosen.shape else indices

    torch.topk = topk
    try:
        yield
    finally:
        torch.topk = before


def _visits(counts: Sequence[int], per_token: int) -> torch.Tensor:
    """[tokens, per_token] experts, none twice for a token; ``counts`` add up to all visits.

    Experts laid out one after the other are cut into ``per_token`` columns: an expert with at most
    as many visits as there are tokens cannot come twice in a row.
    """
    laid = torch.tensor([expert for expert, count in enumerate(counts) for _ in range(count)])
    return laid.reshape(per_token, -1).t().contiguous()


def random_counts(tokens: int, per_token: int, generator: random.Random) -> list[int]:
    """Visits of each expert: at least a few and at most ``tokens`` each, ``tokens * per_token`` in all."""
    left, counts = tokens * per_token, []
    for expert in range(NUM_EXPERTS):
        others = NUM_EXPERTS - expert - 1
        low, high = max(_FEW, left - others * tokens), min(tokens, left - _FEW * others)
        counts.append(generator.randint(low, high))
        left -= counts[-1]
    return counts
