"""What plans on cards before Ampere say and count of attention that has no kernel there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core.marp_values import gpt2_config, job, llama_config, node, request

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.marp import plan_candidates, smallest_remedy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import Checkpointing, LoraSpec, Precision
from frenzy.core.values.resource_plan import Candidate

ALONE = gpt2_config()
SHARED = llama_config(512, 8, 8, num_key_value_heads=2)
MOE = {**SHARED, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}


def cluster_of(*names: str) -> Cluster:
    return Cluster(tuple(CATALOGUE[each].gpu for each in names), tuple(node(f"{each}-0", each, 2) for each in names))


def listed(config: dict[str, Any], *cards: str, **training: Any) -> tuple[Candidate, ...]:
    asked = request(model_shape(config), job(global_batch=8, sequence_length=1024, **training), every_plan=True)
    return plan_candidates(asked, cluster_of(*cards), default_calibration())


def peaks(config: dict[str, Any], card: str, *beside: str, **training: Any) -> dict[Any, int]:
    found = [each.plan for each in listed(config, card, *beside, **training) if each.plan.gpu_type == card]
    return {replace(each.shape, gpu_type=""): each.memory.model_peak_bytes for each in found}


def is_more(config: dict[str, Any], **training: Any) -> set[bool]:
    """Of the plans that a T4 and an A100 share."""
    old, new = peaks(config, "t4", "a100-40", **training), peaks(config, "a100-40", **training)
    return {old[each] > new[each] for each in old.keys() & new.keys()}


@pytest.mark.parametrize(
    ("config", "training"),
    [
        (ALONE, {}),
        (ALONE, {"precision": Precision.AUTOCAST_BF16}),
        (SHARED, {}),
        (SHARED, {"precision": Precision.FP16}),
        (SHARED, {"lora": LoraSpec(target_modules=("q_proj", "v_proj"))}),
        (MOE, {}),
    ],
)
def test_scores_are_counted_where_torch_has_no_kernel(config: dict[str, Any], training: dict[str, Any]) -> None:
    assert is_more(config, gradient_checkpointing=Checkpointing.OFF, **training) == {True}


@pytest.mark.parametrize(
    ("config", "training"),
    [
        (ALONE, {"precision": Precision.FP16}),
        (ALONE, {"precision": Precision.FP32}),
        (ALONE, {"attention": "eager"}),
        (SHARED, {"attention": "eager"}),
    ],
)
def test_nothing_more_is_counted_where_it_has_one_or_is_not_asked(
    config: dict[str, Any], training: dict[str, Any]
) -> None:
    assert is_more(config, **training) == {False}


def test_a_card_beside_older_ones_is_planned_as_if_it_were_alone() -> None:
    assert peaks(ALONE, "a100-40", "t4") == peaks(ALONE, "a100-40")


def test_a_plan_says_that_attention_is_not_planned_as_asked() -> None:
    best = listed(ALONE, "t4")[0]
    assert "no attention kernel for bf16 on t4 (compute capability 7.5)" in best.reason.detail
    assert "for fp16 it has one" in best.reason.detail
    equations = {each.name: each.equation for each in best.plan.memory.terms}
    assert "whole scores" in equations["activations of the layers"]
    assert "for fp16" not in listed(SHARED, "t4")[0].reason.detail
    (newer, *_) = listed(ALONE, "a100-40")
    assert "kernel" not in newer.reason.detail
    assert not any("whole scores" in each.equation for each in newer.plan.memory.terms)


def long_gpt2(layers: int = 24) -> dict[str, Any]:
    return gpt2_config() | {"n_head": 16, "n_embd": 2048, "n_layer": layers, "n_positions": 8192}


def remedy_of(config: dict[str, Any], *cards: str, documents: bool = False, **training: Any) -> str | None:
    """Of long sequences that no plan has the memory for."""
    ways = {"gradient_checkpointing": Checkpointing.ON, "loss": "fused", "optimizer": "adamw-8bit", **training}
    of = job(global_batch=2, sequence_length=8192, **ways)
    asked = request(model_shape(config), replace(of, data=replace(of.data, document_masks=documents)))
    (refused, *_) = plan_candidates(asked, cluster_of(*cards), default_calibration())
    assert refused.reason.code is ReasonCode.INSUFFICIENT_GPU_MEMORY
    assert ("whole scores are counted" in refused.reason.detail) == ("attention" not in training)
    return smallest_remedy(asked, cluster_of(*cards), default_calibration()).remedy


def test_a_plan_that_scores_make_too_large_is_told_of_eager_attention_where_that_takes_less() -> None:
    assert remedy_of(long_gpt2(), "t4") == "training.attention: sdpa -> eager would fit."


@pytest.mark.parametrize(("precision", "layers"), [(Precision.BF16, 50), (Precision.AUTOCAST_BF16, 24)])
def test_a_plan_that_eager_attention_leaves_too_large_is_told_of_fp16(precision: Precision, layers: int) -> None:
    remedy = remedy_of(long_gpt2(layers), "t4", precision=precision)
    assert remedy == f"training.precision: {precision} -> fp16 would fit."


def test_masks_for_which_heads_are_repeated_leave_fp16_a_kernel() -> None:
    config = llama_config(2048, 20, 16, num_key_value_heads=4, max_position_embeddings=8192)
    assert remedy_of(config, "t4", documents=True) == "training.precision: bf16 -> fp16 would fit."


def test_eager_attention_is_kept_where_that_of_torch_takes_more_and_left_where_a_newer_card_avoids_scores() -> None:
    off = {"gradient_checkpointing": Checkpointing.OFF, "attention": "eager"}
    assert remedy_of(long_gpt2(), "t4", **off) == "training.gradient_checkpointing: off -> auto would fit."
    assert remedy_of(long_gpt2(50), "t4", "a2", attention="eager") == "training.attention: eager -> sdpa would fit."
