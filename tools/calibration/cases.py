"""Which settings are traced for which family: what the trainer runs, and what published runs used."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from frenzy.core.memory.activation_coefficients import ActivationSetting, AdapterSetting, Attention, Loss
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from tools.calibration.families import FAMILIES, Family
from tools.calibration.models import is_before_release_5
from tools.calibration.solve import Case

PRECISIONS: Final = (Precision.FP32, Precision.BF16, Precision.AUTOCAST_BF16)
_SWITCH: Final = (False, True)
_EVERY_LINEAR: Final = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
_ATTENTION_ONLY: Final = ("k_proj", "o_proj", "q_proj", "v_proj")
_ADAPTER_TARGETS: Final = {
    "gpt2": (("c_attn",), ("c_attn", "c_fc", "c_proj")),
    "gpt_bigcode": (("c_attn",), ("c_attn", "c_fc", "c_proj")),
    "gpt_neox": (("query_key_value",), ("dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value")),
    "opt": (("q_proj", "v_proj"), ("fc1", "fc2", "k_proj", "out_proj", "q_proj", "v_proj")),
    "mpt": (("Wqkv",), ("Wqkv", "down_proj", "out_proj", "up_proj")),
    "phi": (("fc1", "fc2", "q_proj", "v_proj"), ("dense", "fc1", "fc2", "k_proj", "q_proj", "v_proj")),
    "phi3": (("qkv_proj",), ("down_proj", "gate_up_proj", "o_proj", "qkv_proj")),
    "mixtral": (("q_proj", "v_proj"), _ATTENTION_ONLY),
    "qwen3_moe": (("q_proj", "v_proj"), _ATTENTION_ONLY),
}
_USUAL_TARGETS: Final = (("q_proj", "v_proj"), _ATTENTION_ONLY, _EVERY_LINEAR)


def cases(families: Iterable[Family] = FAMILIES) -> list[Case]:
    """Every case of ``families``, of full training and of adapters."""
    return [case for family in families for case in (*_full(family), *_adapted(family))]


def _full(family: Family) -> Iterator[Case]:
    for kind, attention, precision, checkpointing in itertools.product(
        DeviceKind, _attentions(family), PRECISIONS, _SWITCH
    ):
        setting = ActivationSetting(precision=precision, checkpointing=checkpointing, kind=kind, attention=attention)
        if _is_traced(setting):
            yield from _with_dropouts(family, setting)
        if _shows_fused_loss(family, setting):
            yield Case(family, replace(setting, loss=Loss.FUSED))


def _attentions(family: Family) -> tuple[Attention, ...]:
    """Those the library has; on a card torch's own takes FlashAttention's kernel, in releases that call both alike.

    Before release 5 torch's own is called with keys and values repeated for each query head.
    """
    if family.model_type == "gemma2":
        return (Attention.EAGER, Attention.FLASH_2)
    if family.eager_only:
        return (Attention.EAGER,)
    return tuple(Attention) if is_before_release_5() else (Attention.SDPA, Attention.EAGER)


def _shows_fused_loss(family: Family, setting: ActivationSetting) -> bool:
    """One case for each kind and precision: how the head changes does not depend on the layers below it.

    The trainer's fused loss takes over logits that are scaled at most, in releases that let it.
    """
    usual = Attention.EAGER if family.eager_only else Attention.SDPA
    can = not (family.is_encoder or family.model_type == "gemma2" or is_before_release_5())
    return can and setting.attention is usual and not setting.checkpointing


def _is_traced(setting: ActivationSetting) -> bool:
    """Flash kernels compute in 16 bits and on cards."""
    if setting.attention is Attention.FLASH_2:
        computed = setting.adapters.frozen if setting.adapters else setting.precision
        return setting.kind is DeviceKind.CUDA and computed is not Precision.FP32
    return True


def _with_dropouts(family: Family, setting: ActivationSetting) -> Iterator[Case]:
    """Eager attention: all dropouts or none, and the former stands for some."""
    attention = _SWITCH if family.attention_dropouts and setting.attention_dropout_matters else (False,)
    hidden = _SWITCH if family.hidden_dropouts else (False,)
    together = setting.attention is Attention.EAGER and bool(family.hidden_dropouts)
    for of_attention, of_hidden in itertools.product(attention, hidden):
        if of_attention == of_hidden or not together:
            yield Case(family, setting, of_attention, of_hidden)


def _adapted(family: Family) -> Iterator[Case]:
    """Adapters, the model without dropout of its own."""
    if family.is_encoder:
        return
    attentions = [each for each in _attentions(family) if each is not Attention.EAGER or family.eager_only]
    targets = _ADAPTER_TARGETS.get(family.model_type, _USUAL_TARGETS)
    for kind, attention, adapted, dropout, checkpointing in itertools.product(
        DeviceKind, attentions, targets, _SWITCH, _SWITCH
    ):
        for precision, frozen in _adapter_formats(kind):
            setting = ActivationSetting(
                precision=precision,
                checkpointing=checkpointing,
                kind=kind,
                attention=attention,
                adapters=AdapterSetting(targets=adapted, dropout=dropout, frozen=frozen),
            )
            if _is_traced(setting):
                yield from (Case(family, each) for each in _with_four_bits(setting))


def _with_four_bits(setting: ActivationSetting) -> Iterator[ActivationSetting]:
    """``setting``, and over 4-bit maps, which published runs under autocast had with hidden states in fp32."""
    yield setting
    adapters = setting.adapters
    in_fp32 = adapters is not None and adapters.frozen is Precision.AUTOCAST_BF16
    if adapters is not None and in_fp32 and setting.kind is DeviceKind.CUDA and is_before_release_5():
        yield replace(setting, adapters=replace(adapters, answers_in_kind=True))


def _adapter_formats(kind: DeviceKind) -> tuple[tuple[Precision, Precision], ...]:
    """(of the adapters, of the frozen weights); on cards also adapters in fp32 beside 16-bit weights."""
    same = tuple((each, each) for each in PRECISIONS)
    if kind is DeviceKind.VIRTUAL:
        return same
    beside = ((Precision.FP32, Precision.BF16), (Precision.AUTOCAST_BF16, Precision.BF16))
    return (*same[1:], *beside)
