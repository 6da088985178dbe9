"""Coefficients from traces: what a layer keeps is known by hand for some, and is found for all."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.marp_values import gpt2_config, llama_config

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.memory.activation_coefficients import (
    ActivationCoefficients,
    ActivationSetting,
    Attention,
    Loss,
    TokenBytes,
    find_coefficients,
)
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.whole_scores import with_whole_scores
from frenzy.core.models.shape import model_shape
from frenzy.core.values import codec
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.trainer.trace import cuda
from tools.calibration.__main__ import _update, _write
from tools.calibration.cases import cases
from tools.calibration.families import FAMILIES, NUM_EXPERTS, Family
from tools.calibration.models import given_routing, random_counts
from tools.calibration.solve import Case, solve

BY_NAME = {each.model_type: each for each in FAMILIES}
ON_CARD = ActivationSetting(precision=Precision.BF16, checkpointing=False, kind=DeviceKind.CUDA)


def test_a_llama_layer_on_a_card_keeps_what_its_equation_says() -> None:
    # Two norms (fp32 input, normed, output), q, k, v and the output of attention, log-sum-exp,
    # gate, its activation, up and their product: MARP's 8u + (2+2r)u + 4(I/h)u in bf16.
    found = solve(Case(BY_NAME["llama"], ON_CARD))
    assert found.layer == TokenBytes(hidden=16, query=4, key_value=4, intermediate=8, heads=4, constant=8)
    assert found.outside == TokenBytes(hidden=8, vocab=4, constant=12)
    assert TokenBytes(vocab=8, constant=-8) in found.in_loss


def test_a_checkpointed_layer_keeps_its_input() -> None:
    found = solve(Case(BY_NAME["gpt2"], replace(ON_CARD, checkpointing=True)))
    assert found.layer == TokenBytes(hidden=2)


def test_eager_attention_keeps_its_scores() -> None:
    found = solve(Case(BY_NAME["gpt_neox"], replace(ON_CARD, attention=Attention.EAGER)))
    assert found.layer.scores > 0
    assert found.layer.heads == 0


@pytest.mark.parametrize(("family", "checkpointing"), [("llama", True), ("gpt2", False)])
def test_whole_scores_are_never_fewer_than_torchs_formula_makes_and_little_more(
    family: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Ampere, where torch has no kernel; at 1024 positions, as heads of 64 and layers of the usual widths."""

    def formula(*args: Any, dropout_p: float = 0.0, is_causal: bool = False, **other: Any) -> torch.Tensor:
        asked = (*args, *[None] * (4 - len(args)), dropout_p, is_causal, None)
        return torch.ops.aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
            *asked, scale=other.get("scale"), enable_gqa=other.get("enable_gqa", False)
        )[0]

    setting = replace(ON_CARD, checkpointing=checkpointing)
    document = llama_config(1024, 16, 16, 50_000) if family == "llama" else gpt2_config(1024, 16, 16, 50_000)
    shape = model_shape(document)
    usual = default_calibration().activation(shape, setting)
    assert usual is not None
    found = with_whole_scores(usual, shape)
    stand_ins = [(owner, name, formula if "attention" in name else each) for owner, name, each in cuda._STAND_INS]
    monkeypatch.setattr(cuda, "_STAND_INS", tuple(stand_ins))
    traced = solve(Case(BY_NAME[family], setting))

    def peak(of: ActivationCoefficients) -> float:
        rows = [max(each.per_token(shape, 1024) for each in kind) for kind in (of.in_loss, of.in_backward)]
        return 16 * of.layer.per_token(shape, 1024) + of.outside.per_token(shape, 1024) + max(rows)

    assert peak(traced) <= peak(found) <= 1.06 * peak(traced)


def test_grouped_experts_keep_their_tokens_once_for_each_visit() -> None:
    found = solve(Case(BY_NAME["mixtral"], ON_CARD))
    assert found.layer.expert_intermediate == 8
    assert found.layer.expert_hidden > 0
    assert found.layer.intermediate == found.layer.busiest_hidden == 0


def test_a_fused_loss_put_together_is_the_one_that_is_traced() -> None:
    family, fused = BY_NAME["llama"], replace(ON_CARD, loss=Loss.FUSED)
    checkpointed = replace(fused, checkpointing=True)
    known = [solve(Case(family, each)) for each in (ON_CARD, fused, replace(checkpointed, loss=Loss.TORCH))]
    traced = solve(Case(family, checkpointed))
    shape = model_shape(llama_config(4096, 32, 32, 128256, num_key_value_heads=8, intermediate_size=14336))
    found = find_coefficients(known, shape, checkpointed)
    assert found is not None
    assert (found.layer, found.outside, found.head_copies) == (traced.layer, traced.outside, traced.head_copies)
    for mine, theirs in ((found.in_loss, traced.in_loss), (found.in_backward, traced.in_backward)):
        highest = [max(each.per_token(shape, 4096) for each in rows) for rows in (mine, theirs)]
        assert highest[0] == pytest.approx(highest[1], rel=1e-3)


def test_the_same_seed_gives_the_same_coefficients() -> None:
    case = Case(BY_NAME["opt"], ActivationSetting(precision=Precision.FP32, checkpointing=False))
    assert solve(case) == solve(case)


def test_a_family_from_a_template_is_traced_by_its_module(tmp_path: Path) -> None:
    family = codec.loads(Family, '{"model_type": "stablelm", "grouped": true, "attention_dropouts": []}')
    found = solve(Case(family, ActivationSetting(precision=Precision.BF16, checkpointing=True)))
    assert (found.family, found.layer) == ("stablelm", TokenBytes(hidden=2))


def test_a_written_calibration_is_read_back_the_same(tmp_path: Path) -> None:
    found = solve(Case(BY_NAME["opt"], ActivationSetting(precision=Precision.FP32, checkpointing=True)))
    file = tmp_path / "calibration.json"
    _write(file, Calibration(measured_on="today"))
    _update(file, [found])
    _update(file, [found])
    assert codec.loads(Calibration, file.read_text()).activations == (found,)


def test_a_process_that_has_traced_still_draws_weights() -> None:
    """In a process of its own: what the trace is the first to import must not keep its zeros."""
    code = (
        "from tools.calibration.models import _without_random_weights\n"
        "with _without_random_weights():\n"
        "    import transformers.models.opt.modeling_opt\n"
        "from transformers import AutoModelForCausalLM, OPTConfig\n"
        "small = OPTConfig(hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)\n"
        "model = AutoModelForCausalLM.from_config(small)\n"
        "print(min(float(each.abs().max()) for name, each in model.named_parameters() if 'proj.weight' in name))"
    )
    drawn = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert float(drawn.stdout) > 0


def test_every_family_is_traced_in_every_precision_on_both_kinds_of_device() -> None:
    traced = {(case.family.model_type, case.setting.precision, case.setting.kind) for case in cases()}
    wanted = {
        (family.model_type, precision, kind)
        for family in FAMILIES
        for precision in (Precision.FP32, Precision.BF16, Precision.AUTOCAST_BF16)
        for kind in DeviceKind
    }
    assert traced >= wanted


@given(st.integers(4, 60), st.integers(2, 3), st.integers(0, 2**32))
def test_given_routing_sends_each_expert_its_visits_and_no_token_twice(tokens: int, per_token: int, seed: int) -> None:
    counts = random_counts(tokens * 4, per_token, random.Random(seed))
    with given_routing(counts, per_token):
        _, chosen = torch.topk(torch.zeros((tokens * 4, NUM_EXPERTS)), per_token, dim=-1)
    assert [int((chosen == expert).sum()) for expert in range(NUM_EXPERTS)] == counts
    assert all(len(set(row)) == per_token for row in chosen.tolist())
