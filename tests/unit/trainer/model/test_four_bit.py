"""Linear maps in 4 bits: which are replaced, how exact they are, and how they become whole again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.trainer.families import config_of
from transformers import AutoConfig, AutoModelForCausalLM

from frenzy.trainer.model import four_bit
from frenzy.trainer.model.export_tensors import export_groups
from frenzy.trainer.outcome import BadInputError


def model_of(family: str, **changes: Any) -> Any:
    given = {**config_of(family), **changes}
    config = AutoConfig.for_model(given.pop("model_type"), **given, bos_token_id=0, eos_token_id=0)  # type: ignore[no-untyped-call]
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config)


def whole_weights(model: Any) -> dict[str, torch.Tensor]:
    """As an export writes them, and what is tied under each of its names."""
    found: dict[str, torch.Tensor] = {}
    for group in export_groups(model, {}):
        found.update(zip(group.forms, group.values(lambda parameter: parameter.data), strict=True))
    return found | {"lm_head.weight": model.lm_head.weight.data}


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_whole_weights_come_back_within_the_formats_rounding(family: str, dtype: torch.dtype, twice: bool) -> None:
    model = model_of(family)
    first = {name: each.detach().clone() for name, each in model.state_dict().items()}
    four_bit.quantise_linear_maps(model, dtype, twice=twice)
    quantised = {name for name, each in model.named_parameters() if next(four_bit.scales(each), None)}
    assert len(quantised) == (8 if family == "gpt2" else 14)
    whole = whole_weights(model)
    assert whole.keys() == first.keys()
    for name, weight in whole.items():
        if name in quantised:
            assert weight.dtype == dtype
            error = torch.linalg.norm(weight.float() - first[name]) / torch.linalg.norm(first[name])
            assert 0.05 < error < 0.11, name
        else:
            assert torch.equal(weight, first[name]), name


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_model_computes_with_just_those_weights(family: str) -> None:
    model, plain = model_of(family), model_of(family)
    four_bit.quantise_linear_maps(model, torch.float32, twice=False)
    plain.load_state_dict(whole_weights(model))
    tokens = torch.arange(32).view(2, 16)
    model.train()
    torch.testing.assert_close(model(tokens).logits, plain.train()(tokens).logits, rtol=1e-4, atol=1e-5)


def test_a_weight_is_half_a_byte_and_its_scales_a_sixteenth_or_less() -> None:
    for twice, bytes_per_weight in ((False, 0.5 + 4 / 64), (True, 0.5 + 1 / 64 + 4 / (64 * 256))):
        model = model_of("llama", hidden_size=256, intermediate_size=512, head_dim=64)
        four_bit.quantise_linear_maps(model, torch.bfloat16, twice=twice)
        weight = model.model.layers[0].mlp.up_proj.weight
        held = weight.numel() + sum(each.numel() * each.element_size() for _, each in four_bit.scales(weight))
        assert four_bit.num_elements(weight) == 256 * 512
        assert held == pytest.approx(bytes_per_weight * 256 * 512, abs=4)


def test_only_maps_whose_rows_are_whole_blocks_are_replaced() -> None:
    model = model_of("llama", intermediate_size=96)
    four_bit.quantise_linear_maps(model, torch.float32, twice=False)
    layer = model.model.layers[0].mlp
    assert next(four_bit.scales(layer.up_proj.weight), None)
    assert not next(four_bit.scales(layer.down_proj.weight), None)
    assert not next(four_bit.scales(model.lm_head.weight), None)
    narrow = model_of("gpt2", n_embd=48, n_inner=96)
    with pytest.raises(BadInputError, match="multiple of 64 inputs"):
        four_bit.quantise_linear_maps(narrow, torch.float32, twice=False)
