"""What a finished model's files hold: each tensor's name, form, and the engine's parameters it is made of.

Adapters are merged into the weights they adapt and 4-bit weights restored, one at a time. Names and
shapes are those of the family's published weights, which may differ from the model's own (experts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from frenzy.trainer.model import four_bit

# Gives the whole of a parameter that was gathered.
Whole = Callable[[torch.nn.Parameter], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ExportTensor:
    """A tensor of the exported model, by its name in the plain model. parameters: what it is made of."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parameters: tuple[torch.nn.Parameter, ...]
    make: Callable[[Whole], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ExportGroup:
    """Tensors that are written together; ``forms``: name in the file -> dtype, shape."""

    model: Any
    tensors: tuple[ExportTensor, ...]
    forms: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]

    @property
    def num_bytes(self) -> int:
        return sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in self.forms.values())

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [each for tensor in self.tensors for each in tensor.parameters]

    def values(self, whole: Whole) -> Iterator[torch.Tensor]:
        """The tensors in the order of ``forms``."""
        made = _published(self.model, {each.name: each.make(whole) for each in self.tensors})
        return (made[name] for name in self.forms)


def export_groups(module: Any, shapes: Mapping[str, tuple[int, ...]]) -> list[ExportGroup]:
    """All that is written of the engine's ``module``, in the model's order.

    shapes: of the parameters that tensor parallelism has cut, by their names in ``module``.
    """
    model = module.get_base_model() if hasattr(module, "peft_config") else module
    whole_shapes = {id(each): shapes[name] for name, each in module.named_parameters() if name in shapes}
    together = _grouping(model)
    groups: dict[str, list[ExportTensor]] = {}
    for each in chain(_of_parameters(model, whole_shapes), _of_buffers(model)):
        groups.setdefault(together(each.name), []).append(each)
    return [_group(model, tensors) for tensors in groups.values()]


def _group(model: Any, tensors: Sequence[ExportTensor]) -> ExportGroup:
    empty = {each.name: torch.empty(each.shape, dtype=each.dtype, device="meta") for each in tensors}
    forms = {name: (each.dtype, tuple(each.shape)) for name, each in _published(model, empty).items()}
    return ExportGroup(model, tuple(tensors), forms)


def _published(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    published: dict[str, torch.Tensor] = revert_weight_conversion(model, tensors)
    return published


def _grouping(model: Any) -> Callable[[str], str]:
    """Tensors with the same answer become one, or several, of the published ones together."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    reverse = [each.reverse_transform() for each in reversed(get_model_conversion_mapping(model, add_legacy=False))]
    converters = [each for each in reverse if isinstance(each, WeightConverter)]

    def published_name(name: str) -> str:
        """After the one converter that knows it; not every release of transformers has a function for this."""
        renamed = (each.rename_source_key(name) for each in converters)
        return next((str(new) for new, pattern in renamed if pattern is not None), name)

    return published_name


def _of_parameters(model: Any, whole_shapes: Mapping[int, tuple[int, ...]]) -> Iterator[ExportTensor]:
    seen: set[int] = set()
    adapted: set[int] = set()
    for prefix, module in model.named_modules():
        if id(module) in adapted:
            continue
        adapter: Any = module if hasattr(module, "lora_A") else None
        layer: Any = module if adapter is None else adapter.get_base_layer()
        if adapter is not None:
            adapted.update(id(each) for each in module.modules())
        for key, parameter in layer._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                name = f"{prefix}.{key}" if prefix else key
                shape = whole_shapes.get(id(parameter)) or tuple(getattr(parameter, "ds_shape", parameter.shape))
                if key == "weight" and (adapter is not None or four_bit.is_quantised(layer)):
                    yield _adapted(name, layer, shape, adapter)
                else:
                    yield _plain(name, parameter, shape)


def _plain(name: str, parameter: Any, shape: tuple[int, ...]) -> ExportTensor:
    if four_bit.is_packed(parameter):
        state = parameter.quant_state
        shape = tuple(state.shape)
        return ExportTensor(
            name, shape, state.dtype, (parameter,), lambda whole: four_bit.restored(parameter, whole(parameter))
        )
    return ExportTensor(name, shape, parameter.dtype, (parameter,), lambda whole: whole(parameter))


def _adapted(name: str, layer: Any, shape: tuple[int, ...], adapter: Any) -> ExportTensor:
    """The weight of ``layer``, restored from 4 bits if it has that, with the change of ``adapter`` if it has one."""
    weight, is_quantised = layer.weight, four_bit.is_quantised(layer)
    shape = tuple(weight.quant_state.shape) if is_quantised else shape
    dtype = weight.quant_state.dtype if is_quantised else weight.dtype
    parts = () if adapter is None else (adapter.lora_A["default"].weight, adapter.lora_B["default"].weight)
    # A 4-bit weight has outputs first until it is written.
    turned = is_quantised and four_bit.has_inputs_first(layer)

    def make(whole: Whole) -> torch.Tensor:
        values = four_bit.restored(weight, whole(weight)) if is_quantised else whole(weight)
        if adapter is not None:
            inner, outer = (whole(each).to(values.device, torch.float32) for each in parts)
            change = outer @ inner * adapter.scaling["default"]
            values = (values.float() + (change.t() if adapter.fan_in_fan_out else change)).to(dtype)
        return values.t() if turned else values

    return ExportTensor(name, shape[::-1] if turned else shape, dtype, (weight, *parts), make)


def _of_buffers(model: Any) -> Iterator[ExportTensor]:
    for prefix, module in model.named_modules():
        for key, buffer in module.named_buffers(recurse=False):
            if key not in module._non_persistent_buffers_set:
                name = f"{prefix}.{key}" if prefix else key
                yield ExportTensor(name, tuple(buffer.shape), buffer.dtype, (), _constant(buffer))


def _constant(tensor: torch.Tensor) -> Callable[[Whole], torch.Tensor]:
    return lambda whole: tensor
