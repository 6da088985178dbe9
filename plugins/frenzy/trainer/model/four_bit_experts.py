"""Experts in 4 bits: the maps of all experts of a layer, which transformers keeps in one tensor for each kind of map.

A map is made plain for its product, and made plain again when the product goes backward: autograd keeps the codes,
never the plain weights. The codes are the module's own parameter, which ZeRO stage 3 gathers for either pass.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from frenzy.trainer.model import four_bit

_NAME: Final = "frenzy-four-bit"
_MAPS: Final = ("gate_up_proj", "down_proj")


def expert_maps(model: Any) -> dict[int, torch.nn.Parameter]:
    """The maps of experts of ``model`` that can be quantised, by their ids; the model is told to compute with them."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    maps = [each for module in model.modules() if _is_known(module) for each in map(module.get_parameter, _MAPS)]
    found = {id(each): each for each in maps if each.shape[-1] % four_bit.BLOCK_ELEMENTS == 0}
    if found:
        ALL_EXPERTS_FUNCTIONS.register(_NAME, _forward)
        model.config._experts_implementation = _NAME
    return found


def quantise_experts(model: Any, *, twice: bool, device: torch.device = four_bit.HOST) -> None:
    """Put the maps of experts of ``model``, whole on the host, into 4 bits on ``device``, one at a time."""
    known = expert_maps(model)
    for module in model.modules():
        for key, each in module._parameters.items():
            if id(each) in known:
                module._parameters[key] = four_bit.packed(known.pop(id(each)).data, twice=twice, device=device)


def _is_known(module: Any) -> bool:
    """Whether it is of transformers' experts that have a gate, no bias, and each map's inputs last."""
    others = ("has_bias", "is_transposed", "has_post_expert_norm")
    return getattr(module, "has_gate", False) and not any(getattr(module, each, True) for each in others)


def _forward(experts: Any, hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """What ``grouped_mm_experts_forward`` of transformers computes, with maps that may be in 4 bits.

    hidden: [tokens, width]. chosen, shares: [tokens, experts a token visits].
    """
    visits = chosen.shape[-1]
    sorted_experts, order = torch.sort(chosen.reshape(-1))
    numbers = torch.arange(experts.num_experts, device=hidden.device)
    ends = torch.searchsorted(sorted_experts, numbers, right=True, out_int32=True)
    inner = experts._apply_gate(_product(hidden[order // visits], experts.gate_up_proj, ends))
    found = _product(inner, experts.down_proj, ends) * shares.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=hidden.device)
    return found[back].view(-1, visits, hidden.shape[-1]).sum(dim=1).to(hidden.dtype)


def _product(inputs: torch.Tensor, weight: torch.nn.Parameter, ends: torch.Tensor) -> torch.Tensor:
    """[visits, inputs] to [visits, outputs]; each expert's rows end where ``ends`` says."""
    if four_bit.is_packed(weight):
        packed: torch.Tensor = _PackedProduct.apply(inputs, weight, ends)  # type: ignore[no-untyped-call]
        return packed
    return _grouped(inputs, weight.transpose(-2, -1), ends)


class _PackedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, codes: torch.nn.Parameter, ends: torch.Tensor) -> torch.Tensor:
        # Not a saved tensor: stage 3 gives the memory of codes back and gathers them into the same parameter.
        ctx.codes, ctx.dtype = codes, inputs.dtype
        ctx.save_for_backward(ends)
        return _grouped(inputs, four_bit.restored(codes, codes).transpose(-2, -1), ends)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (ends,) = ctx.saved_tensors
        return _grouped(gradient.contiguous(), four_bit.restored(ctx.codes, ctx.codes), ends).to(ctx.dtype), None, None


def _grouped(inputs: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Autocast knows nothing of this product: inputs come in the weights' format."""
    from transformers.integrations.moe import _grouped_mm

    found: torch.Tensor = _grouped_mm(inputs, weights, offs=ends)
    return found
