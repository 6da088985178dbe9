"""Shapes of the families with layer norms and a plain MLP: GPT-2, GPT-BigCode, GPT-NeoX, OPT, MPT, Phi."""

from __future__ import annotations

from frenzy.core.models.family_fields import (
    Config,
    embedding,
    head_dim_of,
    integer,
    layer_norm,
    linear,
    output_matrix,
    refuse,
)
from frenzy.core.models.parameters import ModelShape, Split


def gpt2(config: Config) -> ModelShape:
    """GPT-2."""
    return _gpt(config, "gpt2", integer(config, "n_head"))


def gpt_bigcode(config: Config) -> ModelShape:
    """StarCoder's class; multi-query attention unless ``multi_query`` is false."""
    kv_heads = 1 if config.get("multi_query", True) else integer(config, "n_head")
    return _gpt(config, "gpt_bigcode", kv_heads)


def _gpt(config: Config, family: str, kv_heads: int) -> ModelShape:
    hidden, heads = integer(config, "n_embd"), integer(config, "n_head")
    inner = config.get("n_inner") or 4 * hidden
    positions, vocab = integer(config, "n_positions"), integer(config, "vocab_size")
    refuse(config, {"add_cross_attention": False})
    head_dim = head_dim_of({}, hidden, heads)
    layer = [
        *layer_norm("ln_1", hidden),
        *linear("attn.c_attn", hidden, hidden + 2 * kv_heads * head_dim, Split.COLUMN, bias=True),
        *linear("attn.c_proj", hidden, hidden, Split.ROW, bias=True),
        *layer_norm("ln_2", hidden),
        *linear("mlp.c_fc", hidden, inner, Split.COLUMN, bias=True),
        *linear("mlp.c_proj", inner, hidden, Split.ROW, bias=True),
    ]
    tied = bool(config.get("tie_word_embeddings", True))
    return ModelShape(
        family=family,
        num_layers=integer(config, "n_layer"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=positions,
        tied_embeddings=tied,
        embeddings=(embedding("wte", vocab, hidden), embedding("wpe", positions, hidden)),
        layer=tuple(layer),
        head=(*layer_norm("ln_f", hidden), *output_matrix(vocab, hidden, tied=tied)),
        embedding_dropout=float(config["embd_pdrop"]),
        attention_dropout=float(config["attn_pdrop"]),
        residual_dropout=float(config["resid_pdrop"]),
    )


def gpt_neox(config: Config) -> ModelShape:
    """GPT-NeoX and Pythia."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    inner, vocab = integer(config, "intermediate_size"), integer(config, "vocab_size")
    bias = bool(config.get("attention_bias", True))
    layer = [
        *layer_norm("input_layernorm", hidden),
        *layer_norm("post_attention_layernorm", hidden),
        *linear("attention.query_key_value", hidden, 3 * hidden, Split.COLUMN, bias=bias),
        *linear("attention.dense", hidden, hidden, Split.ROW, bias=bias),
        *linear("mlp.dense_h_to_4h", hidden, inner, Split.COLUMN, bias=True),
        *linear("mlp.dense_4h_to_h", inner, hidden, Split.ROW, bias=True),
    ]
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelShape(
        family="gpt_neox",
        num_layers=integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim_of({}, hidden, heads),
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=integer(config, "max_position_embeddings"),
        tied_embeddings=tied,
        embeddings=(embedding("embed_in", vocab, hidden),),
        layer=tuple(layer),
        head=(*layer_norm("final_layer_norm", hidden), *output_matrix(vocab, hidden, tied=tied)),
        embedding_dropout=float(config["hidden_dropout"]),
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=float(config["hidden_dropout"]),
        autotp=True,
    )


def opt(config: Config) -> ModelShape:
    """OPT; the position table starts at offset 2."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    inner, vocab = integer(config, "ffn_dim"), integer(config, "vocab_size")
    width, positions = integer(config, "word_embed_proj_dim"), integer(config, "max_position_embeddings")
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
    tied = bool(config.get("tie_word_embeddings", True))
    final = layer_norm("final_layer_norm", hidden) if has_final else []
    return ModelShape(
        family="opt",
        num_layers=integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim_of({}, hidden, heads),
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=positions,
        tied_embeddings=tied,
        # the position table starts at offset 2
        embeddings=(
            embedding("embed_tokens", vocab, hidden),
            embedding("embed_positions", positions + 2, hidden),
            *final,
        ),
        layer=tuple(layer),
        head=tuple(output_matrix(vocab, hidden, tied=tied)),
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=float(config["dropout"]),
        autotp=True,
    )


def mpt(config: Config) -> ModelShape:
    """MPT with alibi; the library computes its attention eagerly, whatever is asked for."""
    hidden, heads = integer(config, "d_model"), integer(config, "n_heads")
    vocab, inner = integer(config, "vocab_size"), 4 * hidden
    attention = config["attn_config"]
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
    tied = bool(config.get("tie_word_embeddings", True))
    return ModelShape(
        family="mpt",
        num_layers=integer(config, "n_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim_of({}, hidden, heads),
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=integer(config, "max_seq_len"),
        tied_embeddings=tied,
        embeddings=(embedding("wte", vocab, hidden),),
        layer=tuple(layer),
        head=(*layer_norm("norm_f", hidden, bias=False), *output_matrix(vocab, hidden, tied=tied)),
        # one rate for both: the library has no other use for the config's other dropouts
        attention_dropout=dropout,
        residual_dropout=dropout,
    )


def phi(config: Config) -> ModelShape:
    """Phi-1, Phi-1.5 and Phi-2."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = head_dim_of({}, hidden, heads)
    inner, vocab = integer(config, "intermediate_size"), integer(config, "vocab_size")
    refuse(config, {"qk_layernorm": False})
    layer = [
        *linear("self_attn.q_proj", hidden, heads * head_dim, Split.COLUMN, bias=True),
        *linear("self_attn.k_proj", hidden, kv_heads * head_dim, Split.COLUMN, bias=True),
        *linear("self_attn.v_proj", hidden, kv_heads * head_dim, Split.COLUMN, bias=True),
        *linear("self_attn.dense", heads * head_dim, hidden, Split.ROW, bias=True),
        *linear("mlp.fc1", hidden, inner, Split.COLUMN, bias=True),
        *linear("mlp.fc2", inner, hidden, Split.ROW, bias=True),
        *layer_norm("input_layernorm", hidden),
    ]
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelShape(
        family="phi",
        num_layers=integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=integer(config, "max_position_embeddings"),
        tied_embeddings=tied,
        embeddings=(embedding("embed_tokens", vocab, hidden),),
        layer=tuple(layer),
        head=(*layer_norm("final_layernorm", hidden), *output_matrix(vocab, hidden, tied=tied, bias=True)),
        embedding_dropout=float(config["embd_pdrop"]),
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=float(config["resid_pdrop"]),
        autotp=True,
    )
