"""The job's own model class without weights, set up as a run sets it up.

Everything here works with the old and the new releases of transformers: up to 4.47 attention is a
class that is chosen by name, from 4.48 on it is a function that is looked up by name.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.trainer.model.faster_layers import recompute_layers
from frenzy.trainer.model.library_configs import config_of
from frenzy.trainer.model.making import weights_dtype
from frenzy.trainer.outcome import one_line
from frenzy.trainer.trace.kernels import flash_attention

ATTENTION: Final = ("eager", "sdpa", "flash_attention_2")
_FLASH: Final = "flash_attention_2"
_STAND_IN: Final = "frenzy_stand_in"


def traced_model(config: Mapping[str, Any], precision: Precision, attention: str) -> Any:
    """The Hugging Face model of ``config`` in ``precision``, in training mode, made under a fake tensor mode.

    Raises PermanentError naming what the library refused.
    """
    family = str(config.get("model_type", ""))
    try:
        return _from_config(config, weights_dtype(precision), attention).train()
    except PermanentError:
        raise
    except Exception as error:  # a config can be wrong in as many ways as there are families
        detail = f"model.config: transformers makes no language model of family {family!r} of it ({one_line(error)})."
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail)) from error


def _from_config(given: Mapping[str, Any], dtype: torch.dtype, attention: str) -> Any:
    config = config_of(given)
    config.use_cache = given.get("use_cache", False)  # the library's default is on, the trainer turns it off
    kind = _auto_class(config)
    name = _attention_name(kind, config, attention)
    try:
        return kind.from_config(config, attn_implementation=name, dtype=dtype)
    except TypeError:  # before 4.56 the argument has its longer name
        return kind.from_config(config, attn_implementation=name, torch_dtype=dtype)


def _auto_class(config: Any) -> Any:
    """Decoders are traced with their causal loss, encoders with that of masked words."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, AutoModelForMaskedLM

    is_encoder = config.model_type in {"bert", "roberta", "distilbert", "electra", "deberta-v2", "albert", "modernbert"}
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not is_encoder:
        return AutoModelForCausalLM
    return AutoModelForMaskedLM


def _attention_name(kind: Any, config: Any, attention: str) -> str:
    """The name under which the library finds ``attention``; FlashAttention's stand-in is registered first."""
    if attention != _FLASH:
        return attention
    module = sys.modules[kind._model_mapping[type(config)].__module__]
    if not hasattr(module, "ALL_ATTENTION_FUNCTIONS"):
        _stand_in_class(module)
        return _FLASH
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import flash_attention_mask
    except ImportError:
        _stand_in_class(module)
        return _FLASH
    AttentionInterface.register(_STAND_IN, _flash_attention_forward)
    AttentionMaskInterface.register(_STAND_IN, flash_attention_mask)
    return _STAND_IN


def _flash_attention_forward(*args: Any, **kwargs: Any) -> Any:
    """The library's own way to FlashAttention, with the kernel's stand-in at its end."""
    library: Any = import_module("transformers.integrations.flash_attention")
    theirs = library._flash_attention_forward
    library._flash_attention_forward = flash_attention
    try:
        return library.flash_attention_forward(*args, **kwargs)
    finally:
        library._flash_attention_forward = theirs


def _stand_in_class(module: Any) -> None:
    """In older releases: let the family's ``module`` find the kernel as if its package were installed."""
    import transformers

    modeling_utils: Any = import_module("transformers.modeling_utils")
    places = [module]
    shared = getattr(transformers, "modeling_flash_attention_utils", None)
    if shared is not None:
        module.__dict__.setdefault("_flash_attention_forward", shared._flash_attention_forward)
        places.append(shared)
    for place in places:
        place.__dict__["flash_attn_func"] = flash_attention
        place.__dict__["_flash_supports_window_size"] = True
        place.__dict__["is_flash_attn_greater_or_equal"] = _yes
        place.__dict__["is_flash_attn_greater_or_equal_2_10"] = _yes
    modeling_utils.PreTrainedModel._check_and_enable_flash_attn_2 = classmethod(_flash_is_there)


def _flash_is_there(_class: Any, config: Any, *_: Any, **__: Any) -> Any:
    config._attn_implementation = _FLASH
    return config


def _yes(*_: Any) -> bool:
    return True


@contextmanager
def without_data() -> Iterator[None]:
    """Tensors of shapes alone, and backward passes in this thread, where the modes that watch are in force."""
    in_this_thread = torch.autograd.set_multithreading_enabled(False)
    with in_this_thread, _masks_as_with_data(), FakeTensorMode(allow_non_fake_inputs=True):
        yield


@contextmanager
def _masks_as_with_data() -> Iterator[None]:
    """Let the library skip a causal mask as it does for real tensors: where it sees a fake one it makes it."""
    import_utils: Any = import_module("transformers.utils.import_utils")
    theirs = getattr(import_utils, "is_fake_tensor", None)
    import_utils.is_fake_tensor = _no
    try:
        yield
    finally:
        if theirs is None:
            del import_utils.is_fake_tensor
        else:
            import_utils.is_fake_tensor = theirs


def _no(*_: Any) -> bool:
    return False


def with_adapters(model: Any, lora: LoraSpec) -> Any:
    """``model`` with low-rank adapters in fp32, as the trainer makes them. Raises PermanentError."""
    # On a CPU the 4-bit library that peft imports looks for optional kernels and says that it found none.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # any number will do
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules) or None,
        task_type="CAUSAL_LM",
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    try:
        with replaced_parameters(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # between the two libraries
            return get_peft_model(model, settings)
    except ValueError as error:
        detail = f"training.lora.target_modules: {list(lora.target_modules)} is refused; {one_line(error)}."
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail)) from error


@contextmanager
def replaced_parameters() -> Iterator[None]:
    """Let ``Module.to`` put new parameters in the place of the old: tensors without data cannot be written into."""
    theirs = torch.nn.Module._apply
    torch.nn.Module._apply = _apply_replacing  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module._apply = theirs  # type: ignore[method-assign]


def _apply_replacing(module: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor], *_: Any) -> Any:
    with torch.no_grad():
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is None:
                    continue
                changed = change(parameter)
                if changed is not parameter:
                    part._parameters[name] = torch.nn.Parameter(changed, parameter.requires_grad)
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else change(buffer)
    return module


def checkpoint_activations(model: Any, *, reentrant: bool) -> None:
    """Keep only each layer's input; its forward pass is repeated in the backward pass."""
    recompute_layers(model, use_reentrant=reentrant, preserve_rng_state=False)
    if hasattr(model, "peft_config"):
        model.enable_input_require_grads()
