"""Published models as complete configs: what the job classes of generated workloads train."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from frenzy.core.models.family_fields import Config


def _gpt2(hidden: int, layers: int, heads: int) -> Config:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": None}
    return {"model_type": "gpt2", **sizes, "n_positions": 1024, "vocab_size": 50257, **rates}


def _shared(model_type: str, hidden: int, layers: int, heads: int, vocab: int, positions: int) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "attention_dropout": 0.0,
    }


def _pythia(hidden: int, layers: int, heads: int, vocab: int = 50304) -> Config:
    base = _shared("gpt_neox", hidden, layers, heads, vocab, 2048)
    return {**base, "intermediate_size": 4 * hidden, "hidden_dropout": 0.0}


def _opt(hidden: int, layers: int, heads: int) -> Config:
    base = _shared("opt", hidden, layers, heads, 50272, 2048)
    widths = {"ffn_dim": 4 * hidden, "word_embed_proj_dim": hidden}
    return {**base, **widths, "dropout": 0.0, "enable_bias": True, "layer_norm_elementwise_affine": True}


def _llama(base: Mapping[str, Any], *, inner: int, kv_heads: int, tied: bool = False) -> Config:
    """Llama and Qwen 2."""
    return {**base, "intermediate_size": inner, "num_key_value_heads": kv_heads, "tie_word_embeddings": tied}


MODELS: Final[Mapping[str, Config]] = MappingProxyType(
    {
        "gpt2-124m": _gpt2(768, 12, 12),
        "gpt2-355m": _gpt2(1024, 24, 16),
        "gpt2-774m": _gpt2(1280, 36, 20),
        "gpt2-1.5b": _gpt2(1600, 48, 25),
        "opt-125m": _opt(768, 12, 12),
        "opt-1.3b": _opt(2048, 24, 32),
        "opt-2.7b": _opt(2560, 32, 32),
        "pythia-160m": _pythia(768, 12, 12),
        "pythia-410m": _pythia(1024, 24, 16),
        "pythia-1b": _pythia(2048, 16, 8),
        "pythia-1.4b": _pythia(2048, 24, 16),
        "pythia-2.8b": _pythia(2560, 32, 32),
        "pythia-6.9b": _pythia(4096, 32, 32, vocab=50432),
        "qwen2.5-0.5b": _llama(_shared("qwen2", 896, 24, 14, 151936, 32768), inner=4864, kv_heads=2, tied=True),
        "qwen2.5-1.5b": _llama(_shared("qwen2", 1536, 28, 12, 151936, 32768), inner=8960, kv_heads=2, tied=True),
        "qwen2.5-7b": _llama(_shared("qwen2", 3584, 28, 28, 152064, 32768), inner=18944, kv_heads=4),
        "tinyllama-1.1b": _llama(_shared("llama", 2048, 22, 32, 32000, 2048), inner=5632, kv_heads=4),
        "llama-3.2-1b": _llama(_shared("llama", 2048, 16, 32, 128256, 8192), inner=8192, kv_heads=8, tied=True),
        "llama-3.2-3b": _llama(_shared("llama", 3072, 28, 24, 128256, 8192), inner=8192, kv_heads=8, tied=True),
        "llama-2-7b": _llama(_shared("llama", 4096, 32, 32, 32000, 4096), inner=11008, kv_heads=32),
        "llama-2-13b": _llama(_shared("llama", 5120, 40, 40, 32000, 4096), inner=13824, kv_heads=40),
    }
)
