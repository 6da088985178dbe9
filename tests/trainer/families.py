"""A tiny model of every family that counts as launchable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.trainer.launching import GPT2

_COMMON: Final = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "vocab_size": 260,
}
_GROUPED: Final = {**_COMMON, "num_key_value_heads": 2, "head_dim": 16}
_EXPERTS: Final = {**_GROUPED, "num_experts_per_tok": 2}

CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "gpt2": {**GPT2, "n_embd": 64},
    "gpt_bigcode": {**GPT2, "n_embd": 64},
    "gpt_neox": {**_COMMON, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    "opt": {**_COMMON, "word_embed_proj_dim": 64, "ffn_dim": 128, "dropout": 0.0},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 260},
    "llama": _GROUPED,
    "mistral": _GROUPED,
    "granite": {**_GROUPED, "logits_scaling": 2.0},
    "qwen2": _GROUPED,
    "qwen3": _GROUPED,
    "gemma": _GROUPED,
    "gemma2": _GROUPED,
    "gemma3_text": _GROUPED,
    "phi": {**_COMMON, "resid_pdrop": 0.0},
    "phi3": {**_GROUPED, "pad_token_id": 0},
    "mixtral": {**_EXPERTS, "num_local_experts": 4},
    "qwen3_moe": {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 64},
}


def config_of(family: str) -> dict[str, Any]:
    """The Hugging Face config of the tiny model, with its model_type."""
    return {**CONFIGS[family], "model_type": family}
