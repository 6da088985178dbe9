"""The shapes read from configs hold against the modules that transformers really builds."""

from __future__ import annotations

from typing import Any

import pytest

from frenzy.adapters.model_config import resolve_model_config
from frenzy.core.models.module_tree import MODULE_TREE
from frenzy.core.models.shape import SUPPORTED_FAMILIES, model_shape
from frenzy.core.values.job import ModelSpec
from frenzy.trainer.model.list_modules import module_tree

pytestmark = pytest.mark.usefixtures("one_config_reader")

COMMON = {
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 200,
    "vocab_size": 301,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
GPT2 = {"n_embd": 96, "n_layer": 3, "n_head": 4, "vocab_size": 301, "bos_token_id": 0, "eos_token_id": 0}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
MPT = {"d_model": 96, "n_layers": 3, "n_heads": 4, "vocab_size": 301}
OPT = {**COMMON, "ffn_dim": 200, "word_embed_proj_dim": 96}

CONFIGS: list[dict[str, Any]] = [
    {"model_type": "gpt2", **GPT2},
    {"model_type": "gpt2", **GPT2, "n_inner": 200},
    {"model_type": "gpt2", **GPT2, "tie_word_embeddings": False},
    {"model_type": "gpt_neox", **COMMON},
    {"model_type": "gpt_neox", **COMMON, "attention_bias": False},
    {"model_type": "opt", **OPT},
    {"model_type": "opt", **OPT, "enable_bias": False},
    {"model_type": "opt", **OPT, "do_layer_norm_before": False},
    {"model_type": "llama", **COMMON, "num_key_value_heads": 2},
    {"model_type": "llama", **COMMON, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", **COMMON, "head_dim": 32},
    {"model_type": "mistral", **COMMON, "num_key_value_heads": 2},
    {"model_type": "qwen2", **COMMON, "num_key_value_heads": 2},
    {"model_type": "qwen2", **COMMON, "num_key_value_heads": 1, "tie_word_embeddings": True},
    {"model_type": "qwen3", **COMMON, "num_key_value_heads": 2},
    {"model_type": "qwen3", **COMMON, "num_key_value_heads": 2, "head_dim": 32, "attention_bias": True},
    {"model_type": "gemma", **COMMON, "num_key_value_heads": 2, "head_dim": 48},
    {"model_type": "phi", **COMMON, "num_key_value_heads": 2},
    {"model_type": "gpt_bigcode", **GPT2},
    {"model_type": "gpt_bigcode", **GPT2, "multi_query": False, "n_inner": 200, "tie_word_embeddings": False},
    {"model_type": "mpt", **MPT},
    {"model_type": "mpt", **MPT, "tie_word_embeddings": False},
    {"model_type": "granite", **COMMON, "num_key_value_heads": 2},
    {"model_type": "granite", **COMMON, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    {"model_type": "gemma2", **COMMON, "num_key_value_heads": 2, "head_dim": 48},
    {"model_type": "gemma3_text", **COMMON, "num_key_value_heads": 2, "head_dim": 48},
    {"model_type": "phi3", **COMMON, "num_key_value_heads": 2},
    {"model_type": "mixtral", **COMMON, "num_key_value_heads": 2},
    {"model_type": "mixtral", **COMMON, **EXPERTS, "num_key_value_heads": 4, "head_dim": 32},
    {"model_type": "qwen3_moe", **COMMON, "num_key_value_heads": 2, "moe_intermediate_size": 72, **EXPERTS},
    {"model_type": "bert", **COMMON},
    {"model_type": "roberta", **COMMON, "pad_token_id": 1},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(str(config[key]) for key in ("model_type",)))
def test_every_parameter_is_listed_in_the_order_it_is_registered(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    shape = model_shape(resolve_model_config(ModelSpec(config=config)))
    kind = transformers.AutoModelForMaskedLM if shape.is_encoder else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(transformers.AutoConfig.for_model(**config))
    assert [each.num_elements for _, each in shape.all_tensors()] == [each.numel() for each in model.parameters()]


def test_every_supported_family_is_held_against_its_module() -> None:
    assert {config["model_type"] for config in CONFIGS} == set(SUPPORTED_FAMILIES)


UNKNOWN: list[dict[str, Any]] = [
    {"model_type": "stablelm", **COMMON, "num_key_value_heads": 2},
    {"model_type": "bloom", "hidden_size": 96, "n_layer": 3, "n_head": 4, "vocab_size": 301},
]


@pytest.mark.parametrize("config", UNKNOWN, ids=lambda config: str(config["model_type"]))
def test_a_family_without_a_reader_is_read_from_its_module(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    full, built = resolve_model_config(ModelSpec(config=config)), transformers.AutoConfig.for_model(**config)
    shape = model_shape({**full, MODULE_TREE: module_tree(built)})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    assert [each.num_elements for _, each in shape.all_tensors()] == [each.numel() for each in model.parameters()]
