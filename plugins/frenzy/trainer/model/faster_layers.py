"""How a model's layers are computed: again in the backward pass, compiled, or with the kernels of liger-kernel."""

from __future__ import annotations

from typing import Any

from frenzy.trainer.outcome import BadInputError


def layers_of(model: Any) -> list[Any]:
    """The layers that a model is stacked of, first to last."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]


def recompute_layers(model: Any, **how: Any) -> None:
    """Keep only each layer's input, under the name that this release of transformers has for it.

    how: arguments of torch's checkpointing.
    """
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


def compile_layers(model: Any) -> None:
    """Compile each layer in place, when it is first called; all share the code of the first.

    Names of parameters stay, so checkpoints and exports do, too.
    """
    for layer in layers_of(model):
        layer.compile(dynamic=False)


def use_liger(model: Any) -> None:
    """Norms, RoPE and SwiGLU by liger-kernel. The loss stays: ``training.loss`` says how it is computed.

    Raises BadInputError for another activation, which liger-kernel would take for SiLU.
    """
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    activation = model.config.hidden_act
    if activation not in ("silu", "swish"):
        raise BadInputError("training.kernels", "liger", f"the model's activation is {activation}, not silu; use torch")
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
