"""The shapes read from configs hold against the modules that transformers really builds."""

from __future__ import annotations

from typing import Any

import pytest

from frenzy.adapters.model_config import resolve_model_config
from frenzy.core.job import ModelSpec
from frenzy.core.model_shape import SUPPORTED_FAMILIES, model_shape

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
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(str(config[key]) for key in ("model_type",)))
def test_every_parameter_is_listed_in_the_order_it_is_registered(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        options = {key: value for key, value in config.items() if key != "model_type"}
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **options)
        )
    shape = model_shape(resolve_model_config(ModelSpec(config=config)))
    assert [each.num_elements for _, each in shape.all_tensors()] == [each.numel() for each in model.parameters()]


def test_every_supported_family_is_held_against_its_module() -> None:
    assert {config["model_type"] for config in CONFIGS} == set(SUPPORTED_FAMILIES)
