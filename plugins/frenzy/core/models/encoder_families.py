"""Shapes of BERT-style encoders with their masked-language-model head."""

from __future__ import annotations

from dataclasses import replace

from frenzy.core.models.family_fields import Config, embedding, integer, layer_norm, linear, refuse, sizes_of
from frenzy.core.models.parameters import ModelShape, ParameterTensor, Split


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
