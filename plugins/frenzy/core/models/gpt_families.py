"""Shapes of the families with layer norms and a plain MLP: GPT-2, BigCode, NeoX, OPT, MPT, Phi; BERT and RoBERTa."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.core.models.family_fields import (
    Config,
    Names,
    embedding,
    integer,
    layer_norm,
    linear,
    output_matrix,
    refuse,
    sizes_of,
)
from frenzy.core.models.parameters import ModelShape, ParameterTensor, Split

_OF_GPT2: Final = Names("n_embd", "n_head", "n_layer", "n_positions")
_OF_MPT: Final = Names("d_model", "n_heads", "n_layers", "max_seq_len")


def gpt2(config: Config) -> ModelShape:
    return _gpt(config, None)


def gpt_bigcode(config: Config) -> ModelShape:
    """StarCoder's class; multi-query attention unless ``multi_query`` is false."""
    return _gpt(config, 1 if config.get("multi_query", True) else None)


def _gpt(config: Config, kv_heads: int | None) -> ModelShape:
    refuse(config, {"add_cross_attention": False})
    sizes = sizes_of(config, _OF_GPT2, inner=config.get("n_inner"), kv_heads=kv_heads, tied=True)
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    layer = [
        *layer_norm("ln_1", hidden),
        *linear("attn.c_attn", hidden, hidden + 2 * sizes.key_value_width, Split.COLUMN, bias=True),
        *linear("attn.c_proj", hidden, hidden, Split.ROW, bias=True),
        *layer_norm("ln_2", hidden),
        *linear("mlp.c_fc", hidden, inner, Split.COLUMN, bias=True),
        *linear("mlp.c_proj", inner, hidden, Split.ROW, bias=True),
    ]
    return replace(
        sizes,
        embeddings=(embedding("wte", sizes.vocab_size, hidden), embedding("wpe", sizes.max_positions, hidden)),
        layer=tuple(layer),
        head=(*layer_norm("ln_f", hidden), *output_matrix(sizes)),
        embedding_dropout=float(config["embd_pdrop"]),
        attention_dropout=float(config["attn_pdrop"]),
        residual_dropout=float(config["resid_pdrop"]),
    )


def gpt_neox(config: Config) -> ModelShape:
    """GPT-NeoX and Pythia."""
    inner, bias = integer(config, "intermediate_size"), bool(config.get("attention_bias", True))
    sizes = sizes_of(config, inner=inner, tied=False)
    hidden, dropout = sizes.hidden_size, float(config["hidden_dropout"])
    layer = [
        *layer_norm("input_layernorm", hidden),
        *layer_norm("post_attention_layernorm", hidden),
        *linear("attention.query_key_value", hidden, 3 * hidden, Split.COLUMN, bias=bias),
        *linear("attention.dense", hidden, hidden, Split.ROW, bias=bias),
        *linear("mlp.dense_h_to_4h", hidden, inner, Split.COLUMN, bias=True),
        *linear("mlp.dense_4h_to_h", inner, hidden, Split.ROW, bias=True),
    ]
    return replace(
        sizes,
        embeddings=(embedding("embed_in", sizes.vocab_size, hidden),),
        layer=tuple(layer),
        head=(*layer_norm("final_layer_norm", hidden), *output_matrix(sizes)),
        embedding_dropout=dropout,
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=dropout,
        autotp=True,
    )


def opt(config: Config) -> ModelShape:
    """OPT; the position table starts at offset 2."""
    inner = integer(config, "ffn_dim")
    sizes = sizes_of(config, inner=inner, tied=True)
    hidden, width = sizes.hidden_size, integer(config, "word_embed_proj_dim")
    bias, affine = bool(config["enable_bias"]), bool(config["layer_norm_elementwise_affine"])
    if width != hidden:
        raise ValueError(f"word_embed_proj_dim = {width} differs from hidden_size = {hidden}")
    if float(config.get("layerdrop", 0.0)) > 0:
        raise ValueError("layerdrop > 0 makes each step's memory random")
    norm = [*layer_norm("self_attn_layer_norm", hidden)] if affine else []
    layer = [
        *linear("self_attn.k_proj", hidden, hidden, Split.COLUMN, bias=bias),
        *linear("self_attn.v_proj", hidden, hidden, Split.COLUMN, bias=bias),
        *linear("self_attn.q_proj", hidden, hidden, Split.COLUMN, bias=bias),
        *linear("self_attn.out_proj", hidden, hidden, Split.ROW, bias=bias),
        *norm,
        *linear("fc1", hidden, inner, Split.COLUMN, bias=bias),
        *linear("fc2", inner, hidden, Split.ROW, bias=bias),
        *norm,
    ]
    has_final = config.get("do_layer_norm_before", True) and not config.get("_remove_final_layer_norm") and affine
    embeddings = (
        embedding("embed_tokens", sizes.vocab_size, hidden),
        embedding("embed_positions", sizes.max_positions + 2, hidden),
    )
    return replace(
        sizes,
        embeddings=(*embeddings, *(layer_norm("final_layer_norm", hidden) if has_final else [])),
        layer=tuple(layer),
        head=tuple(output_matrix(sizes)),
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=float(config["dropout"]),
        autotp=True,
    )


def mpt(config: Config) -> ModelShape:
    """MPT with alibi; the library computes its attention eagerly, whatever is asked for."""
    sizes = sizes_of(config, _OF_MPT, inner=None, tied=True)
    hidden, inner, attention = sizes.hidden_size, sizes.intermediate_size, config["attn_config"]
    refuse(attention, {"attn_type": "multihead_attention", "qk_ln": False, "prefix_lm": False, "clip_qkv": None})
    refuse(config, {"no_bias": True, "expansion_ratio": 4})
    dropout = float(attention["attn_pdrop"])
    layer = [
        *layer_norm("norm_1", hidden, bias=False),
        *linear("attn.Wqkv", hidden, 3 * hidden, Split.COLUMN, bias=False),
        *linear("attn.out_proj", hidden, hidden, Split.ROW, bias=False),
        *layer_norm("norm_2", hidden, bias=False),
        *linear("ffn.up_proj", hidden, inner, Split.COLUMN, bias=False),
        *linear("ffn.down_proj", inner, hidden, Split.ROW, bias=False),
    ]
    return replace(
        sizes,
        embeddings=(embedding("wte", sizes.vocab_size, hidden),),
        layer=tuple(layer),
        head=(*layer_norm("norm_f", hidden, bias=False), *output_matrix(sizes)),
        # one rate for both: the library has no other use for the config's other dropouts
        attention_dropout=dropout,
        residual_dropout=dropout,
    )


def phi(config: Config) -> ModelShape:
    """Phi-1, Phi-1.5 and Phi-2."""
    inner = integer(config, "intermediate_size")
    refuse(config, {"qk_layernorm": False})
    sizes = sizes_of(config, inner=inner, kv_heads=config.get("num_key_value_heads"), tied=False)
    hidden, query, key_value = sizes.hidden_size, sizes.query_width, sizes.key_value_width
    layer = [
        *linear("self_attn.q_proj", hidden, query, Split.COLUMN, bias=True),
        *linear("self_attn.k_proj", hidden, key_value, Split.COLUMN, bias=True),
        *linear("self_attn.v_proj", hidden, key_value, Split.COLUMN, bias=True),
        *linear("self_attn.dense", query, hidden, Split.ROW, bias=True),
        *linear("mlp.fc1", hidden, inner, Split.COLUMN, bias=True),
        *linear("mlp.fc2", inner, hidden, Split.ROW, bias=True),
        *layer_norm("input_layernorm", hidden),
    ]
    return replace(
        sizes,
        embeddings=(embedding("embed_tokens", sizes.vocab_size, hidden),),
        layer=tuple(layer),
        head=(*layer_norm("final_layernorm", hidden), *output_matrix(sizes, bias=True)),
        embedding_dropout=float(config["embd_pdrop"]),
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=float(config["resid_pdrop"]),
        autotp=True,
    )


# encoders with their masked-language-model head


def bert(config: Config) -> ModelShape:
    """BERT for masked language modelling."""
    words, positions, kinds, *norm = _embeddings(config)
    return replace(_encoder(config), embeddings=(words, positions, kinds, *norm))


def roberta(config: Config) -> ModelShape:
    """RoBERTa; positions are counted from behind the padding token's id."""
    words, positions, kinds, *norm = _embeddings(config)
    num_positions = positions.rows - integer(config, "pad_token_id") - 1
    return replace(_encoder(config), embeddings=(words, kinds, *norm, positions), max_positions=num_positions)


def _embeddings(config: Config) -> list[ParameterTensor]:
    hidden = integer(config, "hidden_size")
    return [
        embedding("word_embeddings", integer(config, "vocab_size"), hidden),
        embedding("position_embeddings", integer(config, "max_position_embeddings"), hidden),
        embedding("token_type_embeddings", integer(config, "type_vocab_size"), hidden),
        *layer_norm("LayerNorm", hidden),
    ]


def _encoder(config: Config) -> ModelShape:
    inner = integer(config, "intermediate_size")
    refuse(config, {"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True})
    sizes = sizes_of(config, inner=inner, tied=True)
    hidden, dropout = sizes.hidden_size, float(config["hidden_dropout_prob"])
    layer = [
        *linear("attention.self.query", hidden, hidden, Split.COLUMN, bias=True),
        *linear("attention.self.key", hidden, hidden, Split.COLUMN, bias=True),
        *linear("attention.self.value", hidden, hidden, Split.COLUMN, bias=True),
        *linear("attention.output.dense", hidden, hidden, Split.ROW, bias=True),
        *layer_norm("attention.output.LayerNorm", hidden),
        *linear("intermediate.dense", hidden, inner, Split.COLUMN, bias=True),
        *linear("output.dense", inner, hidden, Split.ROW, bias=True),
        *layer_norm("output.LayerNorm", hidden),
    ]
    head = [
        ParameterTensor("head.bias", sizes.vocab_size),
        *linear("head.dense", hidden, hidden, Split.NONE, bias=True),
        *layer_norm("head.layer_norm", hidden),
    ]
    return replace(
        sizes,
        tied_embeddings=True,  # a config may say None
        layer=tuple(layer),
        head=tuple(head),
        embedding_dropout=dropout,
        attention_dropout=float(config["attention_probs_dropout_prob"]),
        residual_dropout=dropout,
        is_encoder=True,
    )
