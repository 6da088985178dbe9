"""Frozen weights in 4 bits (NF4, Dettmers et al. 2023, arXiv 2305.14314), through bitsandbytes.

Every linear map but the output head keeps its weight as two 4-bit codes in a byte and one scale
for each block of 64 elements: fp32, or with double quantisation 8 bits and one fp32 scale for 256
of those. Embeddings, norms, biases and the head stay in the job's precision, and so does a map
whose inputs are no multiple of 64: bitsandbytes 0.50 mixes up its blocks on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from frenzy.trainer.outcome import BadInputError

# Layers whose weight is stored with inputs first (GPT-2's).
_INPUTS_FIRST: Final = "Conv1D"
BLOCK_ELEMENTS: Final = 64
# On each replaced layer: whether it was one of those.
_MARK: Final = "replaced_inputs_first"
HOST: Final = torch.device("cpu")


def quantise_linear_maps(model: Any, compute_dtype: torch.dtype, *, twice: bool, device: torch.device = HOST) -> None:
    """Replace the linear maps of ``model``, whole on the host, by 4-bit ones, as ``quantised`` does for one."""
    for linear, (parent, name) in linear_maps(model).items():
        setattr(parent, name, quantised(linear, compute_dtype, twice=twice, device=device))


def linear_maps(model: Any) -> dict[Any, tuple[Any, str]]:
    """The linear maps of ``model`` that can be quantised, each with its parent and name there.

    ``model`` is marked for the adapters' library. Raises BadInputError when there are none.
    """
    head = model.get_output_embeddings()
    found = {
        child: (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if child is not head and _can_be_quantised(child)
    }
    if not found:
        allowed = f"no linear map of this model has a multiple of {BLOCK_ELEMENTS} inputs; use none"
        raise BadInputError("training.lora.quantization", "nf4", allowed)
    # Tells the adapters' library which of its layers to use.
    model.is_loaded_in_4bit = True
    return found


def _can_be_quantised(module: Any) -> bool:
    if type(module) is torch.nn.Linear:
        return int(module.weight.shape[1]) % BLOCK_ELEMENTS == 0
    return type(module).__name__ == _INPUTS_FIRST and int(module.weight.shape[0]) % BLOCK_ELEMENTS == 0


def quantised(linear: Any, compute_dtype: torch.dtype, *, twice: bool, device: torch.device = HOST) -> Any:
    """A frozen 4-bit layer in the place of ``linear``, a linear map on the host that loses its weight and bias.

    compute_dtype: in which a weight is multiplied. twice: quantise the scales as well. device: where it is
    quantised and stays.
    """
    from bitsandbytes.nn import Linear4bit

    inputs_first = type(linear).__name__ == _INPUTS_FIRST
    weight = linear.weight.data.t() if inputs_first else linear.weight.data
    outputs, inputs = weight.shape
    made: Any = Linear4bit(
        inputs,
        outputs,
        bias=linear.bias is not None,
        compute_dtype=compute_dtype,
        compress_statistics=twice,
        quant_type="nf4",
        device="meta",
    )
    made.weight = packed(weight.to(compute_dtype), twice=twice, device=device, module=made)
    if linear.bias is not None:
        made.bias = torch.nn.Parameter(linear.bias.data, requires_grad=False)
    setattr(made, _MARK, inputs_first)
    # Whoever lists the model's modules still holds it: its weight would stay until all are replaced.
    linear._parameters.update(weight=None, bias=None)
    return made


def packed(weight: torch.Tensor, *, twice: bool, device: torch.device, module: Any = None) -> torch.nn.Parameter:
    """A frozen 4-bit parameter on ``device`` that stands for ``weight``, whose format it is computed in."""
    from bitsandbytes.nn import Params4bit

    codes: Any = Params4bit(weight, requires_grad=False, compress_statistics=twice, quant_type="nf4", module=module)
    made: torch.nn.Parameter = codes.to(device)
    return made


def is_packed(parameter: torch.Tensor) -> bool:
    """Whether ``parameter`` is one that ``packed`` made."""
    return getattr(parameter, "quant_state", None) is not None


def scales(parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that, beside its codes, make up a 4-bit parameter, by name; nothing for others."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return
    yield "scales", state.absmax
    if state.nested:
        yield "scales_of_scales", state.state2.absmax
        yield "offset", state.offset


def num_elements(parameter: torch.Tensor) -> int:
    """Weights that ``parameter`` stands for, on all ranks together."""
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        return int(state.shape.numel())
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def is_quantised(module: torch.nn.Module) -> bool:
    """Whether ``module`` is one that ``quantised`` made."""
    return hasattr(module, _MARK)


def has_inputs_first(module: torch.nn.Module) -> bool:
    """Whether the weight of the layer that ``module`` replaced is stored with inputs first."""
    return bool(getattr(module, _MARK))


def restored(parameter: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The weight that a 4-bit ``parameter`` stands for, whose whole codes are given: in its compute format."""
    from bitsandbytes.functional import dequantize_4bit

    state: Any = parameter.quant_state  # type: ignore[attr-defined]
    weight: torch.Tensor = dequantize_4bit(codes.to(state.absmax.device), state)
    return weight
