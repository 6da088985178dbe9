"""Small random configs of every family, wide enough in every direction to tell the widths apart."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from frenzy.core.values.hardware import DeviceKind

# What the third adds is what every further one adds; beside the first, a model still holds its embeddings.
NUM_LAYERS: Final = 3
# Few, so that each gets tokens; a release that loops over experts makes as many operations.
NUM_EXPERTS: Final = 4
_DROPOUT: Final = 0.1
_USUAL: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


@dataclass(frozen=True, slots=True)
class Family:
    """How to make small configs of one model type.

    names: config fields of the width, the layers, the heads and the MLP's width (None where the
    family fixes it). hidden_dropouts, attention_dropouts: config fields; none where the family has no
    dropout. own_head_dim: the head width is free of the hidden size. grouped: fewer key/value heads.
    heads: numbers to choose from, if not any will do. options: other fields. eager_only: no other
    attention is implemented. num_experts, experts_per_token: config fields of a mixture of experts.
    """

    model_type: str
    names: tuple[str, str, str, str | None] = _USUAL
    hidden_dropouts: tuple[str, ...] = ()
    attention_dropouts: tuple[str, ...] = ("attention_dropout",)
    own_head_dim: bool = False
    grouped: bool = False
    heads: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    eager_only: bool = False
    is_encoder: bool = False
    num_experts: str | None = None
    experts_per_token: str = "num_experts_per_tok"


_GPT_NAMES: Final = ("n_embd", "n_layer", "n_head", "n_inner")
_GPT_DROPOUTS: Final = ("resid_pdrop", "embd_pdrop")
_BERT_DROPOUTS: Final = (("hidden_dropout_prob",), ("attention_probs_dropout_prob",))
_QWEN3_MOE_NAMES: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads", "moe_intermediate_size")
FAMILIES: Final = (
    Family("gpt2", _GPT_NAMES, _GPT_DROPOUTS, ("attn_pdrop",)),
    Family("gpt_bigcode", _GPT_NAMES, _GPT_DROPOUTS, ("attn_pdrop",)),
    Family("gpt_neox", _USUAL, ("hidden_dropout",)),
    Family("opt", ("hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim"), ("dropout",)),
    # its config takes whole numbers only for its one dropout rate, hence none; alibi differs off powers of two
    Family("mpt", ("d_model", "n_layers", "n_heads", None), (), (), heads=(2, 4, 8, 16), eager_only=True),
    Family("llama", own_head_dim=True, grouped=True),
    Family("mistral", own_head_dim=True, grouped=True),
    Family("granite", grouped=True),
    Family("qwen2", grouped=True),
    Family("qwen3", own_head_dim=True, grouped=True),
    Family("gemma", own_head_dim=True, grouped=True),
    Family("gemma2", own_head_dim=True, grouped=True, eager_only=True),
    Family("gemma3_text", own_head_dim=True, grouped=True),
    Family("phi", _USUAL, _GPT_DROPOUTS, grouped=True),
    Family("phi3", _USUAL, _GPT_DROPOUTS, grouped=True),
    Family("mixtral", own_head_dim=True, grouped=True, num_experts="num_local_experts"),
    Family("qwen3_moe", _QWEN3_MOE_NAMES, own_head_dim=True, grouped=True, num_experts="num_experts"),
    Family("bert", _USUAL, *_BERT_DROPOUTS, is_encoder=True),
    Family("roberta", _USUAL, *_BERT_DROPOUTS, is_encoder=True, options={"pad_token_id": 1}),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths to choose from. On a card kernels round, so there they are multiples of what they round to."""

    heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    lengths: tuple[int, ...]


SIZES: Final = {
    DeviceKind.VIRTUAL: Sizes((4, 6, 8, 12), (8, 16, 24), (32, 64, 96)),
    DeviceKind.CUDA: Sizes((4, 6, 8), (32, 64), (128, 256)),
}
_INNER: Final = (40, 72, 136, 200, 264)
_VOCABULARIES: Final = (48, 96, 304, 504)
_POSITIONS: Final = 512


def small_config(
    family: Family, sizes: Sizes, generator: random.Random, *, hidden_dropout: bool, attention_dropout: bool
) -> dict[str, Any]:
    """A random small config of ``family``."""
    hidden, layers, heads, inner = family.names
    num_heads, head_dim = generator.choice(family.heads or sizes.heads), generator.choice(sizes.head_dims)
    width = num_heads * head_dim
    config: dict[str, Any] = {
        "model_type": family.model_type,
        hidden: width,
        layers: NUM_LAYERS,
        heads: num_heads,
        "vocab_size": generator.choice(_VOCABULARIES),
        "max_position_embeddings": _POSITIONS,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
        **family.options,
    }
    if inner is not None:
        config[inner] = generator.choice(_INNER)
    if family.grouped:
        config["num_key_value_heads"] = generator.choice([2, num_heads // 2 if num_heads > 4 else 2])
    if family.own_head_dim:
        config["head_dim"] = generator.choice([*sizes.head_dims, 32])
    if family.num_experts is not None:
        config[family.num_experts] = NUM_EXPERTS
        config[family.experts_per_token] = generator.choice([2, 3])
    if family.model_type == "opt":
        config["word_embed_proj_dim"] = width
    config |= dict.fromkeys(family.hidden_dropouts, _DROPOUT if hidden_dropout else 0.0)
    config |= dict.fromkeys(family.attention_dropouts, _DROPOUT if attention_dropout else 0.0)
    return config
