"""Bytes held by tensors while a small model goes forward and backward, operation by operation.

Parameters, buffers and inputs do not count, and each gradient is dropped as soon as it is
complete: what remains are activations and temporaries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from frenzy.core.memory.activation_coefficients import ActivationSetting, Loss
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.trainer.model.faster_layers import recompute_layers
from frenzy.trainer.trace.cuda import cuda_choices
from frenzy.trainer.trace.kernels import bytes_on_cuda
from frenzy.trainer.trace.storages import Operation, StorageLog, run_operation


@dataclass(frozen=True, slots=True)
class ActivationTrace:
    """Live bytes after each operation, and where the parts of the step begin.

    layer_ends: operations done when each layer's forward pass ends. kept_bytes: held when the loss is there.
    head_end: operations done when the backward pass has reached the layers.
    """

    live_bytes: tuple[int, ...]
    layer_ends: tuple[int, ...]
    head_end: int
    kept_bytes: int

    def condensed(self, num_layers: int) -> ActivationTrace:
        """Only what is held after each layer, and the most from the last ``num_layers`` to the head and beyond it.

        Comparable with a trace at another length: layers that go through a sequence in pieces have more operations
        the longer it is.
        """
        ends, live = self.layer_ends, self.live_bytes
        most = (max(live[ends[-1 - num_layers] : self.head_end]), max(live[self.head_end :]))
        after_layers = tuple(live[each - 1] for each in ends)
        return ActivationTrace(
            live_bytes=after_layers + most,
            layer_ends=tuple(range(1, len(ends) + 1)),
            head_end=len(ends) + 1,
            kept_bytes=self.kept_bytes,
        )


def trace_activations(
    model: Any,
    inputs: torch.Tensor,
    setting: ActivationSetting,
    *,
    stack: str | None = None,
    call: Operation = run_operation,
) -> ActivationTrace:
    """One forward and backward pass of ``model`` (a Hugging Face language model) on token ``inputs``.

    Weights are in the format of ``setting.precision`` already, adapters are in place. A setting of
    kind CUDA takes the kernels that CUDA takes. stack: name of the list of layers, else the first one is
    taken. call: what runs an operation, where tensors have no data.
    """
    model.train()
    _prepare(model, setting)
    on_cuda = setting.kind is DeviceKind.CUDA
    log = StorageLog(call=call, size_of=bytes_on_cuda if on_cuda else None)
    log.ignore([*model.parameters(), *model.buffers(), inputs])
    marks: dict[str, int] = {}
    num_layers = _mark_layers(stack_of_layers(model, stack), log, marks)
    with cuda_choices() if on_cuda else contextlib.nullcontext(), log:
        with _autocast(setting.precision):
            loss = model(input_ids=inputs, labels=inputs).loss
        kept = log.live_bytes
        loss.backward()
    return ActivationTrace(
        live_bytes=log.series(),
        layer_ends=tuple(marks[f"layer {index}"] for index in range(num_layers)),
        head_end=marks["head"],
        kept_bytes=kept,
    )


def _prepare(model: Any, setting: ActivationSetting) -> None:
    model.config.use_cache = False
    if setting.loss is Loss.FUSED:
        from frenzy.trainer.model.fused_loss import fuse_loss

        fuse_loss(model)
    if setting.checkpointing:
        recompute_layers(model, use_reentrant=False)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_drop_gradient)


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


Stack = tuple[torch.nn.Module, torch.nn.ModuleList]


def _mark_layers(found: Stack, log: StorageLog, marks: dict[str, int]) -> int:
    """Have each layer's end and the head's backward pass noted; the number of layers."""
    stack, layers = found
    for index, layer in enumerate(layers):
        layer.register_forward_hook(_marking(marks, log, f"layer {index}"))
    stack.register_forward_hook(_head_marking(marks, log))
    return len(layers)


def stack_of_layers(model: torch.nn.Module, name: str | None = None) -> Stack:
    """The module that runs the layers one after the other, and the layers: the list of this name, or the first."""
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and name in (None, path):
            return model.get_submodule(path.rpartition(".")[0]), module
    raise ValueError("the model has no list of layers")


def _marking(marks: dict[str, int], log: StorageLog, name: str) -> Callable[..., None]:
    def mark(*_: Any) -> None:
        marks.setdefault(name, len(log.operation_ends))

    return mark


def _head_marking(marks: dict[str, int], log: StorageLog) -> Callable[..., None]:
    """Mark when the gradient of the last hidden states is there."""

    def attach(_module: Any, _inputs: Any, output: Any) -> None:
        output[0].register_hook(_marking(marks, log, "head"))

    return attach


@contextlib.contextmanager
def _autocast(precision: Precision) -> Iterator[None]:
    if precision is not Precision.AUTOCAST_BF16:
        yield
        return
    with torch.autocast("cpu", torch.bfloat16):
        yield
