"""Experts in 4 bits: what the model computes with, what it keeps for the backward pass, and what is exported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.trainer.model.test_four_bit import model_of, whole_weights
from torch.autograd.graph import saved_tensors_hooks

from frenzy.trainer.model import four_bit
from frenzy.trainer.model.four_bit_experts import quantise_experts

FAMILIES = ["mixtral", "qwen3_moe"]
TOKENS = torch.arange(32).view(2, 16)


def quantised(family: str, dtype: torch.dtype = torch.float32, *, twice: bool = False, **changes: Any) -> Any:
    model = model_of(family, **changes).to(dtype)
    model.requires_grad_(False)
    quantise_experts(model, twice=twice)
    return model


def maps(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if ".experts." in name}


def answered(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the gradient of what goes into the first layer."""
    hidden = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
    logits = model.train()(inputs_embeds=hidden).logits
    logits.float().pow(2).mean().backward()
    assert hidden.grad is not None
    return logits, hidden.grad


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_as_with_its_restored_weights_forward_and_backward(
    family: str, dtype: torch.dtype, twice: bool
) -> None:
    model, plain = quantised(family, dtype, twice=twice), model_of(family).to(dtype).requires_grad_(False)
    for name, codes in maps(model).items():
        assert codes.dtype == torch.uint8
        weight = plain.get_parameter(name)
        again = four_bit.restored(codes, codes.data)
        error = torch.linalg.norm(again.float() - weight.float()) / torch.linalg.norm(weight.float())
        assert 0.05 < error < 0.11, name
        assert (again.dtype, again.shape, four_bit.num_elements(codes)) == (dtype, weight.shape, weight.numel())
        weight.data = again
    exact = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-3}
    for found, expected in zip(answered(model), answered(plain), strict=True):
        torch.testing.assert_close(found, expected, **exact)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_has_experts_as_they_are_published(family: str) -> None:
    model = quantised(family)
    found, published = whole_weights(model), whole_weights(model_of(family))
    assert found.keys() == published.keys()
    for name, weight in found.items():
        error = torch.linalg.norm(weight - published[name]) / torch.linalg.norm(published[name])
        # Codes of a layer's experts are one tensor: the rounding of one expert is that of all, near enough.
        assert 0.04 < error < 0.12 if ".experts." in name else error == 0, name


@pytest.mark.parametrize("family", FAMILIES)
def test_no_plain_weight_is_kept_for_the_backward_pass(family: str) -> None:
    model, kept = quantised(family, vocab_size=128), []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    hidden = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train()(inputs_embeds=hidden)
    smallest = min(4 * four_bit.num_elements(each) for each in maps(model).values())
    assert max(kept) < smallest


def test_a_map_whose_rows_are_no_whole_blocks_stays_plain() -> None:
    model = quantised("mixtral", intermediate_size=96)
    assert {name.rsplit(".", 1)[-1]: four_bit.is_packed(each) for name, each in maps(model).items()} == {
        "gate_up_proj": True,
        "down_proj": False,
    }
    assert answered(model)[1].abs().max() > 0
