"""Shapes of the families with RMS norms, rotary positions, grouped-query attention and a gated MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.core.models.family_fields import Config, embedding, integer, linear, output_matrix, refuse, sizes_of
from frenzy.core.models.parameters import ModelShape, ParameterTensor, Split

_TWO_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
_FOUR_NORMS: Final = (*_TWO_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _attention(sizes: ModelShape, *, qkv_bias: bool = False, output_bias: bool = False) -> list[ParameterTensor]:
    hidden, query, key_value = sizes.hidden_size, sizes.query_width, sizes.key_value_width
    return [
        *linear("self_attn.q_proj", hidden, query, Split.COLUMN, bias=qkv_bias),
        *linear("self_attn.k_proj", hidden, key_value, Split.COLUMN, bias=qkv_bias),
        *linear("self_attn.v_proj", hidden, key_value, Split.COLUMN, bias=qkv_bias),
        *linear("self_attn.o_proj", query, hidden, Split.ROW, bias=output_bias),
    ]


def _head_norms(sizes: ModelShape) -> list[ParameterTensor]:
    return [ParameterTensor(f"self_attn.{each}_norm", sizes.head_dim) for each in ("q", "k")]


def _gated_mlp(sizes: ModelShape, *, bias: bool = False) -> list[ParameterTensor]:
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    return [
        *linear("mlp.gate_proj", hidden, inner, Split.COLUMN, bias=bias),
        *linear("mlp.up_proj", hidden, inner, Split.COLUMN, bias=bias),
        *linear("mlp.down_proj", inner, hidden, Split.ROW, bias=bias),
    ]


def _experts(sizes: ModelShape) -> list[ParameterTensor]:
    """All experts' gate and up maps in one tensor, all down maps in another."""
    number, hidden, inner = sizes.num_experts, sizes.hidden_size, sizes.intermediate_size
    return [
        ParameterTensor("mlp.experts.gate_up_proj", number * 2 * inner, hidden, is_expert=True),
        ParameterTensor("mlp.experts.down_proj", number * hidden, inner, is_expert=True),
    ]


def _norms(sizes: ModelShape, names: tuple[str, ...] = _TWO_NORMS) -> list[ParameterTensor]:
    return [ParameterTensor(name, sizes.hidden_size) for name in names]


def _sizes(config: Config, inner: str = "intermediate_size") -> ModelShape:
    """All but the layer."""
    heads, head_dim = integer(config, "num_attention_heads"), config.get("head_dim")
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}")
    sizes = sizes_of(
        config,
        inner=integer(config, inner),
        kv_heads=kv_heads,
        tied=False,
        head_dim=None if head_dim is None else int(head_dim),
    )
    return replace(
        sizes,
        embeddings=(embedding("embed_tokens", sizes.vocab_size, sizes.hidden_size),),
        head=(ParameterTensor("norm", sizes.hidden_size), *output_matrix(sizes)),
        attention_dropout=float(config.get("attention_dropout") or 0.0),
        attention_window=config.get("sliding_window"),
        autotp=True,
    )


def llama(config: Config) -> ModelShape:
    """Llama 1 to 3, and Granite and PowerLM, whose class has the same parameters."""
    sizes, bias = _sizes(config), bool(config.get("attention_bias", False))
    attention = _attention(sizes, qkv_bias=bias, output_bias=bias)
    mlp = _gated_mlp(sizes, bias=bool(config.get("mlp_bias", False)))
    return replace(sizes, layer=(*attention, *mlp, *_norms(sizes)))


def mistral(config: Config) -> ModelShape:
    """Mistral."""
    sizes = _sizes(config)
    return replace(sizes, layer=(*_attention(sizes), *_gated_mlp(sizes), *_norms(sizes)))


def qwen2(config: Config) -> ModelShape:
    """Qwen 2 and 2.5: biases on the inputs of attention only."""
    sizes = _sizes(config)
    return replace(sizes, layer=(*_attention(sizes, qkv_bias=True), *_gated_mlp(sizes), *_norms(sizes)))


def qwen3(config: Config) -> ModelShape:
    """Qwen 3: norms of the heads."""
    sizes, bias = _sizes(config), bool(config.get("attention_bias", False))
    attention = [*_attention(sizes, qkv_bias=bias, output_bias=bias), *_head_norms(sizes)]
    return replace(sizes, layer=(*attention, *_gated_mlp(sizes), *_norms(sizes)))


def gemma(config: Config) -> ModelShape:
    """Gemma 1."""
    sizes, bias = _sizes(config), bool(config.get("attention_bias", False))
    attention = _attention(sizes, qkv_bias=bias, output_bias=bias)
    return replace(sizes, layer=(*attention, *_gated_mlp(sizes), *_norms(sizes)))


def gemma2(config: Config) -> ModelShape:
    """Gemma 2: capped scores and logits, hence eager attention unless flash is asked for."""
    sizes, bias = _sizes(config), bool(config.get("attention_bias", False))
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(name) is None:
            raise ValueError(f"{name} = None is not covered: this family is traced with caps")
    refuse(config, {"use_bidirectional_attention": False})
    attention = _attention(sizes, qkv_bias=bias, output_bias=bias)
    return replace(sizes, layer=(*attention, *_gated_mlp(sizes), *_norms(sizes, _FOUR_NORMS)))


def gemma3_text(config: Config) -> ModelShape:
    """Gemma 3, the text model."""
    sizes, bias = _sizes(config), bool(config.get("attention_bias", False))
    refuse(config, {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    refuse(config, {"use_bidirectional_attention": False})
    attention = [*_attention(sizes, qkv_bias=bias, output_bias=bias), *_head_norms(sizes)]
    return replace(sizes, layer=(*attention, *_gated_mlp(sizes), *_norms(sizes, _FOUR_NORMS)))


def phi3(config: Config) -> ModelShape:
    """Phi-3 and Phi-4: the inputs of attention, and gate and up, are one linear map each."""
    sizes = _sizes(config)
    layer = [
        *linear("self_attn.o_proj", sizes.query_width, sizes.hidden_size, Split.ROW, bias=False),
        *linear(
            "self_attn.qkv_proj",
            sizes.hidden_size,
            sizes.query_width + 2 * sizes.key_value_width,
            Split.COLUMN,
            bias=False,
        ),
        *linear("mlp.gate_up_proj", sizes.hidden_size, 2 * sizes.intermediate_size, Split.COLUMN, bias=False),
        *linear("mlp.down_proj", sizes.intermediate_size, sizes.hidden_size, Split.ROW, bias=False),
        *_norms(sizes),
    ]
    return replace(sizes, layer=tuple(layer), autotp=False, residual_dropout=float(config["resid_pdrop"]))


def mixtral(config: Config) -> ModelShape:
    """Mixtral: every layer's MLP is a mixture of experts; AutoTP leaves such tensors undivided."""
    sizes = _with_experts(config, _sizes(config))
    refuse(config, {"output_router_logits": False, "router_jitter_noise": 0.0})
    gate = ParameterTensor("mlp.gate", sizes.num_experts, sizes.hidden_size)
    return replace(sizes, layer=(*_attention(sizes), gate, *_experts(sizes), *_norms(sizes)))


def qwen3_moe(config: Config) -> ModelShape:
    """Qwen 3's mixture of experts, where every layer is one."""
    sizes = _with_experts(config, _sizes(config, "moe_intermediate_size"))
    refuse(config, {"output_router_logits": False, "decoder_sparse_step": 1, "mlp_only_layers": []})
    bias = bool(config.get("attention_bias", False))
    layer = [
        *_attention(sizes, qkv_bias=bias, output_bias=bias),
        *_head_norms(sizes),
        *_experts(sizes),
        ParameterTensor("mlp.gate", sizes.num_experts, sizes.hidden_size),
        *_norms(sizes),
    ]
    return replace(sizes, layer=tuple(layer))


def _with_experts(config: Config, sizes: ModelShape) -> ModelShape:
    name = "num_local_experts" if "num_local_experts" in config else "num_experts"
    number, per_token = integer(config, name), integer(config, "num_experts_per_tok")
    if per_token > number:
        raise ValueError(f"num_experts_per_tok = {per_token} is more than {name} = {number}")
    return replace(sizes, num_experts=number, experts_per_token=per_token, autotp=False)
