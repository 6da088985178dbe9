"""Bytes held by tensors while a small model goes forward and backward, operation by operation.

Parameters, buffers and inputs do not count, and each gradient is dropped as soon as it is
complete: what remains are activations and temporaries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from frenzy.core.job import Precision
from frenzy.trainer.trace_storages import StorageLog


@dataclass(frozen=True, slots=True)
class ActivationTrace:
    """Live bytes after each operation, and where the parts of the step begin.

    layer_ends: operations done when each layer's forward pass ends. forward_end: when the loss
    is there; kept_bytes: held then. head_end: operations done when the backward pass has
    reached the layers.
    """

    live_bytes: tuple[int, ...]
    layer_ends: tuple[int, ...]
    forward_end: int
    head_end: int
    kept_bytes: int


def trace_activations(
    model: Any, inputs: torch.Tensor, precision: Precision, *, checkpointing: bool
) -> ActivationTrace:
    """One forward and backward pass of ``model`` (a Hugging Face causal model) on token ``inputs``."""
    model.train()
    if precision in (Precision.BF16, Precision.FP16):
        model.to(torch.bfloat16)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(_drop_gradient)
    held = [*model.parameters(), *model.buffers(), inputs]
    storages = StorageLog()
    storages.ignore(held)
    marks: dict[str, int] = {}
    stack, layers = _stack_of_layers(model)
    for index, layer in enumerate(layers):
        layer.register_forward_hook(_marking(marks, storages, f"layer {index}"))
    stack.register_forward_hook(_head_marking(marks, storages))
    with storages:
        with _autocast(precision):
            loss = model(input_ids=inputs, labels=inputs, use_cache=False).loss
        forward_end, kept = len(storages.operation_ends), storages.live_bytes
        loss.backward()
    return ActivationTrace(
        live_bytes=storages.series(),
        layer_ends=tuple(marks[f"layer {index}"] for index in range(len(layers))),
        forward_end=forward_end,
        head_end=marks["head"],
        kept_bytes=kept,
    )


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _stack_of_layers(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.ModuleList]:
    """The module that runs the layers one after the other, and the layers."""
    for module in model.modules():
        for child in module.children():
            if isinstance(child, torch.nn.ModuleList):
                return module, child
    raise ValueError("the model has no list of layers")


def _marking(marks: dict[str, int], storages: StorageLog, name: str) -> Callable[..., None]:
    def mark(*_: Any) -> None:
        marks.setdefault(name, len(storages.operation_ends))

    return mark


def _head_marking(marks: dict[str, int], storages: StorageLog) -> Callable[..., None]:
    """Mark when the gradient of the last hidden states is there."""

    def attach(_module: Any, _inputs: Any, output: Any) -> None:
        output[0].register_hook(_marking(marks, storages, "head"))

    return attach


def _autocast(precision: Precision) -> Any:
    if precision is Precision.AUTOCAST_BF16:
        return torch.autocast("cpu", torch.bfloat16)
    return contextlib.nullcontext()
