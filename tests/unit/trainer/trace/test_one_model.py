"""The trace of one model finds what the closed form of its family says, and covers families that have none."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from frenzy.adapters.calibration_file import family_calibration
from frenzy.core.memory.activation_coefficients import ActivationCoefficients, ActivationSetting, Attention, TokenBytes
from frenzy.core.memory.model_trace import ModelTrace
from frenzy.core.models.module_tree import MODULE_TREE
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.values.codec import decode
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.trainer.model.list_modules import module_tree
from frenzy.trainer.trace.one_model import OneModel, main, solved, traced

pytestmark = pytest.mark.thorough  # each traces a model

WIDTHS = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 3000,
    "max_position_embeddings": 2048,
}
EXPERTS = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 96,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
LENGTH = 2048


def asked(family: str, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The complete config, and the parameters of its module."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, **{**WIDTHS, **fields})
    return config.to_dict(), [[name, size, linear] for name, size, linear in module_tree(config)]


PLAIN = ActivationSetting(precision=Precision.BF16, checkpointing=False, kind=DeviceKind.CUDA)


def found_for(setting: ActivationSetting, family: str, **fields: Any) -> ActivationCoefficients:
    return solved(OneModel.of(*asked(family, **fields)), setting)


def most(rows: tuple[TokenBytes, ...], shape: ModelShape) -> float:
    return max(each.per_token(shape, LENGTH) for each in rows)


@pytest.mark.parametrize(
    ("family", "setting"),
    [
        ("llama", replace(PLAIN, checkpointing=True)),
        ("llama", replace(PLAIN, precision=Precision.AUTOCAST_BF16)),
        ("gpt_neox", replace(PLAIN, kind=DeviceKind.VIRTUAL, attention=Attention.EAGER)),
    ],
)
def test_a_model_of_a_known_family_keeps_what_its_closed_form_says(family: str, setting: ActivationSetting) -> None:
    shape = model_shape(asked(family)[0])
    known, found = family_calibration(family).activation(shape, setting), found_for(setting, family)
    assert known is not None

    def kept(each: ActivationCoefficients) -> float:
        return each.layer.per_token(shape, LENGTH) + each.outside.per_token(shape, LENGTH)

    assert found.layer.per_token(shape, LENGTH) == pytest.approx(known.layer.per_token(shape, LENGTH), rel=1e-3)
    assert kept(found) == pytest.approx(kept(known), rel=1e-3)
    assert most(found.in_loss, shape) == pytest.approx(most(known.in_loss, shape), rel=0.01)
    assert most(found.in_backward, shape) == pytest.approx(most(known.in_backward, shape), abs=0.02 * kept(known))
    assert found.weight_copies == known.weight_copies


def test_a_model_without_fused_attention_is_traced_eagerly_and_keeps_its_scores() -> None:
    model = OneModel.of(*asked("bloom", n_layer=4, n_head=4))
    trace = traced(model, Precision.BF16, [Attention.SDPA], lambda done, of: None)
    assert not trace.has_sdpa
    assert {each.attention for each in trace.activations} == {Attention.EAGER}
    assert all(each.layer.scores > 0 for each in trace.activations if not each.checkpointing)


class LongerSequences(OneModel):
    """Traced at sequences that the product does not try."""

    @property
    def lengths(self) -> tuple[int, int]:
        return 192, 384


def test_layers_that_take_a_sequence_piece_by_piece_keep_what_longer_sequences_show() -> None:
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 64}
    layers = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
    question = asked("qwen3_5_text", max_position_embeddings=256, **heads, **layers)
    found, longer = (solved(kind.of(*question), PLAIN) for kind in (OneModel, LongerSequences))
    shape = OneModel.of(*question).shape
    assert found.layer.per_token(shape, LENGTH) == pytest.approx(longer.layer.per_token(shape, LENGTH), rel=5e-3)
    for one, other in ((found.in_loss, longer.in_loss), (found.in_backward, longer.in_backward)):
        assert most(one, shape) == pytest.approx(most(other, shape), rel=0.01)


def test_a_first_layer_without_experts_is_kept_once() -> None:
    config, tree = asked("deepseek_v3", **EXPERTS)
    shape = model_shape({**config, MODULE_TREE: tree})
    assert shape.num_layers == 5
    assert shape.num_parameters == sum(_elements(size) for _, size, _ in tree)
    assert (shape.num_experts, shape.experts_per_token) == (8, 2)
    with_one, with_none = (
        found_for(PLAIN, "deepseek_v3", **{**EXPERTS, "first_k_dense_replace": first}) for first in (1, 0)
    )
    assert with_one.layer.constant == pytest.approx(with_none.layer.constant)
    assert with_one.outside.constant > with_none.outside.constant + 0.5 * with_one.layer.constant


def _elements(size: list[int]) -> int:
    product = 1
    for each in size:
        product *= each
    return product


def test_a_list_with_a_value_for_each_layer_is_cut_with_the_layers() -> None:
    config, tree = asked("gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=64)
    shortened = OneModel.of(config, tree).shortened(more_words=10)
    assert (shortened["num_hidden_layers"], len(shortened["layer_types"])) == (3, 3)
    assert shortened["vocab_size"] == WIDTHS["vocab_size"] + 10


def answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], question: Any) -> list[Any]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(question)))
    assert main() == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_process_says_how_far_it_is_and_then_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, tree = asked("olmo2")
    question = {"config": config, MODULE_TREE: tree, "precision": "fp16", "attentions": ["sdpa"]}
    *progress, found = answered(monkeypatch, capsys, question)
    assert progress == [{"done": done, "of": 4} for done in range(4)]
    trace = decode(ModelTrace, found)
    assert (trace.has_sdpa, trace.fuses_loss, trace.problem) == (True, True, None)
    assert {each.precision for each in trace.activations} == {Precision.BF16}, "what is looked for where fp16 is asked"
    assert trace.versions.keys() == {"torch", "transformers"}


def test_a_config_that_names_attention_from_elsewhere_brings_none() -> None:
    tree = asked("stablelm", attn_implementation="somebody/kernels", intermediate_size=64)[1]
    assert tree == asked("stablelm", intermediate_size=64)[1]


def test_a_model_that_cannot_be_traced_is_an_answer_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, tree = asked("deepseek_v2", **EXPERTS)
    config["num_experts_per_tok"] = None
    question = {"config": config, MODULE_TREE: tree, "precision": "bf16", "attentions": ["sdpa"]}
    found = answered(monkeypatch, capsys, question)[-1]
    assert "num_experts_per_tok" in found["problem"] or "topk" in found["problem"]
    assert found["activations"] == []


def test_what_is_no_stack_of_layers_is_refused() -> None:
    config, tree = asked("olmo2")
    with pytest.raises(PermanentError, match="no embedding"):
        OneModel.of(config, [row for row in tree if ".layers." in row[0]])
