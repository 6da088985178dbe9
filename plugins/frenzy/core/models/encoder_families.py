"""Shapes of BERT-style encoders with their masked-language-model head."""

from __future__ import annotations

from frenzy.core.models.family_fields import Config, embedding, head_dim_of, integer, layer_norm, linear, refuse
from frenzy.core.models.parameters import ModelShape, ParameterTensor, Split


def bert(config: Config) -> ModelShape:
    """BERT for masked language modelling."""
    hidden, vocab = integer(config, "hidden_size"), integer(config, "vocab_size")
    positions, kinds = integer(config, "max_position_embeddings"), integer(config, "type_vocab_size")
    embeddings = (
        embedding("word_embeddings", vocab, hidden),
        embedding("position_embeddings", positions, hidden),
        embedding("token_type_embeddings", kinds, hidden),
        *layer_norm("LayerNorm", hidden),
    )
    return _encoder(config, embeddings, positions)


def roberta(config: Config) -> ModelShape:
    """RoBERTa; positions are counted from behind the padding token's id."""
    hidden, vocab = integer(config, "hidden_size"), integer(config, "vocab_size")
    rows, kinds = integer(config, "max_position_embeddings"), integer(config, "type_vocab_size")
    embeddings = (
        embedding("word_embeddings", vocab, hidden),
        embedding("token_type_embeddings", kinds, hidden),
        *layer_norm("LayerNorm", hidden),
        embedding("position_embeddings", rows, hidden),
    )
    return _encoder(config, embeddings, rows - integer(config, "pad_token_id") - 1)


def _encoder(config: Config, embeddings: tuple[ParameterTensor, ...], positions: int) -> ModelShape:
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    inner, vocab = integer(config, "intermediate_size"), integer(config, "vocab_size")
    refuse(config, {"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True})
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
        ParameterTensor("head.bias", vocab),
        *linear("head.dense", hidden, hidden, Split.NONE, bias=True),
        *layer_norm("head.layer_norm", hidden),
    ]
    hidden_dropout = float(config["hidden_dropout_prob"])
    return ModelShape(
        family=str(config["model_type"]),
        num_layers=integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim_of({}, hidden, heads),
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=positions,
        tied_embeddings=True,
        embeddings=embeddings,
        layer=tuple(layer),
        head=tuple(head),
        embedding_dropout=hidden_dropout,
        attention_dropout=float(config["attention_probs_dropout_prob"]),
        residual_dropout=hidden_dropout,
        is_encoder=True,
    )
