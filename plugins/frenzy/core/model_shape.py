"""From a Hugging Face config to a ``ModelShape``, one function for each supported family.

Each reader lists the parameters its family's module registers; a test holds every count equal to
the real model's. The config must be complete: this module knows no defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from frenzy.core.errors import PermanentError, Reason, ReasonCode
from frenzy.core.model_parameters import ModelShape, ParameterTensor, Split

__all__ = ["SUPPORTED_FAMILIES", "ModelShape", "model_shape"]

Config = Mapping[str, Any]


def model_shape(config: Config) -> ModelShape:
    """The shape of the model a full Hugging Face ``config`` describes.

    Raises PermanentError (MODEL_NOT_SUPPORTED) for an unknown family or an unreadable field.
    """
    family = config.get("model_type")
    reader = _READERS.get(str(family))
    if reader is None:
        raise _refused(
            f"model_type {family!r} is not a family the memory model knows: {', '.join(SUPPORTED_FAMILIES)}.",
            f"Use one of the families {', '.join(SUPPORTED_FAMILIES)}.",
        )
    try:
        return reader(config)
    except KeyError as error:
        raise _refused(f"The {family} config has no field {error.args[0]!r}.", "Give the complete config.") from error
    except (TypeError, ValueError) as error:
        raise _refused(f"The {family} config cannot be read: {error}.", "Correct the field.") from error


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.MODEL_NOT_SUPPORTED, detail=detail, remedy=remedy))


# tensors


def _linear(name: str, inputs: int, outputs: int, split: Split, *, bias: bool) -> list[ParameterTensor]:
    """A linear map's weight and, with ``bias``, its bias (a row-split map's bias is not divided)."""
    weight = ParameterTensor(name, outputs, inputs, split, is_linear=True)
    bias_split = Split.COLUMN if split is Split.COLUMN else Split.NONE
    return [weight, ParameterTensor(f"{name}.bias", outputs, 1, bias_split)] if bias else [weight]


def _layer_norm(name: str, width: int, *, bias: bool = True) -> list[ParameterTensor]:
    return [ParameterTensor(name, width), *([ParameterTensor(f"{name}.bias", width)] if bias else [])]


def _embedding(name: str, rows: int, width: int) -> ParameterTensor:
    return ParameterTensor(name, rows, width)


def _integer(config: Config, name: str) -> int:
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} = {value!r} is not a positive whole number")
    return value


def _head_dim(config: Config, hidden: int, heads: int) -> int:
    given = config.get("head_dim")
    if given is not None:
        return int(given)
    if hidden % heads:
        raise ValueError(f"hidden size {hidden} is not a multiple of {heads} heads")
    return hidden // heads


# families


def _gpt2(config: Config) -> ModelShape:
    hidden, heads = _integer(config, "n_embd"), _integer(config, "n_head")
    inner = config.get("n_inner") or 4 * hidden
    positions, vocab = _integer(config, "n_positions"), _integer(config, "vocab_size")
    if config.get("add_cross_attention"):
        raise ValueError("add_cross_attention = true is for encoder-decoder models")
    layer = [
        *_layer_norm("ln_1", hidden),
        *_linear("attn.c_attn", hidden, 3 * hidden, Split.COLUMN, bias=True),
        *_linear("attn.c_proj", hidden, hidden, Split.ROW, bias=True),
        *_layer_norm("ln_2", hidden),
        *_linear("mlp.c_fc", hidden, inner, Split.COLUMN, bias=True),
        *_linear("mlp.c_proj", inner, hidden, Split.ROW, bias=True),
    ]
    tied = bool(config.get("tie_word_embeddings", True))
    head = [*_layer_norm("ln_f", hidden), *_output(vocab, hidden, tied=tied)]
    return ModelShape(
        family="gpt2",
        num_layers=_integer(config, "n_layer"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=heads,
        head_dim=_head_dim({}, hidden, heads),
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=positions,
        tied_embeddings=tied,
        embeddings=(_embedding("wte", vocab, hidden), _embedding("wpe", positions, hidden)),
        layer=tuple(layer),
        head=tuple(head),
        embedding_dropout=float(config["embd_pdrop"]),
        attention_dropout=float(config["attn_pdrop"]),
        residual_dropout=float(config["resid_pdrop"]),
    )


def _output(vocab: int, hidden: int, *, tied: bool, bias: bool = False) -> list[ParameterTensor]:
    """The output matrix, when it is not the embedding itself."""
    weight = [] if tied else [ParameterTensor("lm_head", vocab, hidden, is_linear=True)]
    return [*weight, *([ParameterTensor("lm_head.bias", vocab)] if bias else [])]


def _gpt_neox(config: Config) -> ModelShape:
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    inner, vocab = _integer(config, "intermediate_size"), _integer(config, "vocab_size")
    bias = bool(config.get("attention_bias", True))
    layer = [
        *_layer_norm("input_layernorm", hidden),
        *_layer_norm("post_attention_layernorm", hidden),
        *_linear("attention.query_key_value", hidden, 3 * hidden, Split.COLUMN, bias=bias),
        *_linear("attention.dense", hidden, hidden, Split.ROW, bias=bias),
        *_linear("mlp.dense_h_to_4h", hidden, inner, Split.COLUMN, bias=True),
        *_linear("mlp.dense_4h_to_h", inner, hidden, Split.ROW, bias=True),
    ]
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelShape(
        family="gpt_neox",
        num_layers=_integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=heads,
        head_dim=_head_dim({}, hidden, heads),
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=_integer(config, "max_position_embeddings"),
        tied_embeddings=tied,
        embeddings=(_embedding("embed_in", vocab, hidden),),
        layer=tuple(layer),
        head=(*_layer_norm("final_layer_norm", hidden), *_output(vocab, hidden, tied=tied)),
        embedding_dropout=float(config["hidden_dropout"]),
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=float(config["hidden_dropout"]),
        autotp=True,
    )


def _opt(config: Config) -> ModelShape:
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    inner, vocab = _integer(config, "ffn_dim"), _integer(config, "vocab_size")
    width, positions = _integer(config, "word_embed_proj_dim"), _integer(config, "max_position_embeddings")
    bias, affine = bool(config["enable_bias"]), bool(config["layer_norm_elementwise_affine"])
    if width != hidden:
        raise ValueError(f"word_embed_proj_dim = {width} differs from hidden_size = {hidden}")
    if float(config.get("layerdrop", 0.0)) > 0:
        raise ValueError("layerdrop > 0 makes each step's memory random")
    norm = [*_layer_norm("self_attn_layer_norm", hidden)] if affine else []
    layer = [
        *_linear("self_attn.k_proj", hidden, hidden, Split.COLUMN, bias=bias),
        *_linear("self_attn.v_proj", hidden, hidden, Split.COLUMN, bias=bias),
        *_linear("self_attn.q_proj", hidden, hidden, Split.COLUMN, bias=bias),
        *_linear("self_attn.out_proj", hidden, hidden, Split.ROW, bias=bias),
        *norm,
        *_linear("fc1", hidden, inner, Split.COLUMN, bias=bias),
        *_linear("fc2", inner, hidden, Split.ROW, bias=bias),
        *norm,
    ]
    has_final = config.get("do_layer_norm_before", True) and not config.get("_remove_final_layer_norm") and affine
    tied = bool(config.get("tie_word_embeddings", True))
    final = _layer_norm("final_layer_norm", hidden) if has_final else []
    return ModelShape(
        family="opt",
        num_layers=_integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=heads,
        head_dim=_head_dim({}, hidden, heads),
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=positions,
        tied_embeddings=tied,
        # the position table starts at offset 2
        embeddings=(
            _embedding("embed_tokens", vocab, hidden),
            _embedding("embed_positions", positions + 2, hidden),
            *final,
        ),
        layer=tuple(layer),
        head=tuple(_output(vocab, hidden, tied=tied)),
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=float(config["dropout"]),
        autotp=True,
    )


def _llama_like(
    config: Config,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    head_norms: bool = False,
    norms: int = 2,
    final: tuple[str, ...] = ("norm",),
) -> ModelShape:
    """RMS norms, rotary positions, grouped-query attention and a gated MLP."""
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = _head_dim(config, hidden, heads)
    query, key_value = heads * head_dim, kv_heads * head_dim
    inner, vocab = _integer(config, "intermediate_size"), _integer(config, "vocab_size")
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}")
    head_norm = [ParameterTensor("self_attn.q_norm", head_dim), ParameterTensor("self_attn.k_norm", head_dim)]
    layer = [
        *_linear("self_attn.q_proj", hidden, query, Split.COLUMN, bias=qkv_bias),
        *_linear("self_attn.k_proj", hidden, key_value, Split.COLUMN, bias=qkv_bias),
        *_linear("self_attn.v_proj", hidden, key_value, Split.COLUMN, bias=qkv_bias),
        *_linear("self_attn.o_proj", query, hidden, Split.ROW, bias=output_bias),
        *(head_norm if head_norms else []),
        *_linear("mlp.gate_proj", hidden, inner, Split.COLUMN, bias=mlp_bias),
        *_linear("mlp.up_proj", hidden, inner, Split.COLUMN, bias=mlp_bias),
        *_linear("mlp.down_proj", inner, hidden, Split.ROW, bias=mlp_bias),
        *(ParameterTensor(f"norm_{index}", hidden) for index in range(norms)),
    ]
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelShape(
        family=str(config["model_type"]),
        num_layers=_integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=_integer(config, "max_position_embeddings"),
        tied_embeddings=tied,
        embeddings=(_embedding("embed_tokens", vocab, hidden),),
        layer=tuple(layer),
        head=(*(ParameterTensor(name, hidden) for name in final), *_output(vocab, hidden, tied=tied)),
        attention_dropout=float(config.get("attention_dropout") or 0.0),
        autotp=True,
    )


def _llama(config: Config) -> ModelShape:
    bias = bool(config.get("attention_bias", False))
    return _llama_like(config, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)))


def _mistral(config: Config) -> ModelShape:
    return _llama_like(config)


def _qwen2(config: Config) -> ModelShape:
    return _llama_like(config, qkv_bias=True)


def _qwen3(config: Config) -> ModelShape:
    bias = bool(config.get("attention_bias", False))
    return _llama_like(config, qkv_bias=bias, output_bias=bias, head_norms=True)


def _gemma(config: Config) -> ModelShape:
    bias = bool(config.get("attention_bias", False))
    return _llama_like(config, qkv_bias=bias, output_bias=bias)


def _phi(config: Config) -> ModelShape:
    hidden, heads = _integer(config, "hidden_size"), _integer(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = _head_dim({}, hidden, heads)
    inner, vocab = _integer(config, "intermediate_size"), _integer(config, "vocab_size")
    if config.get("qk_layernorm"):
        raise ValueError("qk_layernorm = true is not covered")
    layer = [
        *_linear("self_attn.q_proj", hidden, heads * head_dim, Split.COLUMN, bias=True),
        *_linear("self_attn.k_proj", hidden, kv_heads * head_dim, Split.COLUMN, bias=True),
        *_linear("self_attn.v_proj", hidden, kv_heads * head_dim, Split.COLUMN, bias=True),
        *_linear("self_attn.dense", heads * head_dim, hidden, Split.ROW, bias=True),
        *_linear("mlp.fc1", hidden, inner, Split.COLUMN, bias=True),
        *_linear("mlp.fc2", inner, hidden, Split.ROW, bias=True),
        *_layer_norm("input_layernorm", hidden),
    ]
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelShape(
        family="phi",
        num_layers=_integer(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=vocab,
        max_positions=_integer(config, "max_position_embeddings"),
        tied_embeddings=tied,
        embeddings=(_embedding("embed_tokens", vocab, hidden),),
        layer=tuple(layer),
        head=(*_layer_norm("final_layernorm", hidden), *_output(vocab, hidden, tied=tied, bias=True)),
        embedding_dropout=float(config["embd_pdrop"]),
        attention_dropout=float(config["attention_dropout"]),
        residual_dropout=float(config["resid_pdrop"]),
        autotp=True,
    )


_READERS: Final[Mapping[str, Callable[[Config], ModelShape]]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "phi": _phi,
}
SUPPORTED_FAMILIES: Final = tuple(_READERS)
