"""Shapes of the families with RMS norms, rotary positions, grouped-query attention and a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frenzy.core.models.family_fields import Config, embedding, head_dim_of, integer, linear, output_matrix, refuse
from frenzy.core.models.parameters import ModelShape, ParameterTensor, Split

_TWO_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
_FOUR_NORMS: Final = (*_TWO_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class _Widths:
    """The widths that every family of this kind has."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        return self.kv_heads * self.head_dim

    def attention(self, *, qkv_bias: bool = False, output_bias: bool = False) -> list[ParameterTensor]:
        return [
            *linear("self_attn.q_proj", self.hidden, self.query, Split.COLUMN, bias=qkv_bias),
            *linear("self_attn.k_proj", self.hidden, self.key_value, Split.COLUMN, bias=qkv_bias),
            *linear("self_attn.v_proj", self.hidden, self.key_value, Split.COLUMN, bias=qkv_bias),
            *linear("self_attn.o_proj", self.query, self.hidden, Split.ROW, bias=output_bias),
        ]

    def head_norms(self) -> list[ParameterTensor]:
        return [ParameterTensor(f"self_attn.{each}_norm", self.head_dim) for each in ("q", "k")]

    def gated_mlp(self, *, bias: bool = False) -> list[ParameterTensor]:
        return [
            *linear("mlp.gate_proj", self.hidden, self.inner, Split.COLUMN, bias=bias),
            *linear("mlp.up_proj", self.hidden, self.inner, Split.COLUMN, bias=bias),
            *linear("mlp.down_proj", self.inner, self.hidden, Split.ROW, bias=bias),
        ]

    def experts(self, number: int) -> list[ParameterTensor]:
        """All experts' gate and up maps in one tensor, all down maps in another."""
        return [
            ParameterTensor("mlp.experts.gate_up_proj", number * 2 * self.inner, self.hidden, is_expert=True),
            ParameterTensor("mlp.experts.down_proj", number * self.hidden, self.inner, is_expert=True),
        ]

    def norms(self, names: tuple[str, ...] = _TWO_NORMS) -> list[ParameterTensor]:
        return [ParameterTensor(name, self.hidden) for name in names]


def _widths(config: Config, inner: str = "intermediate_size") -> _Widths:
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}")
    return _Widths(
        hidden,
        heads,
        kv_heads,
        head_dim_of(config, hidden, heads),
        integer(config, inner),
        integer(config, "vocab_size"),
    )


@dataclass(frozen=True, slots=True)
class _Experts:
    number: int = 0
    per_token: int = 0


def _shape(
    config: Config,
    widths: _Widths,
    layer: list[ParameterTensor],
    *,
    experts: _Experts = _Experts(),  # noqa: B008  # frozen
    autotp: bool = True,
    hidden_dropout: float = 0.0,
) -> ModelShape:
    tied = bool(config.get("tie_word_embeddings", False))
    return ModelShape(
        family=str(config["model_type"]),
        num_layers=integer(config, "num_hidden_layers"),
        hidden_size=widths.hidden,
        num_heads=widths.heads,
        num_key_value_heads=widths.kv_heads,
        head_dim=widths.head_dim,
        intermediate_size=widths.inner,
        vocab_size=widths.vocab,
        max_positions=integer(config, "max_position_embeddings"),
        tied_embeddings=tied,
        embeddings=(embedding("embed_tokens", widths.vocab, widths.hidden),),
        layer=tuple(layer),
        head=(ParameterTensor("norm", widths.hidden), *output_matrix(widths.vocab, widths.hidden, tied=tied)),
        attention_dropout=float(config.get("attention_dropout") or 0.0),
        residual_dropout=hidden_dropout,
        autotp=autotp,
        num_experts=experts.number,
        experts_per_token=experts.per_token,
        attention_window=config.get("sliding_window"),
    )


def llama(config: Config) -> ModelShape:
    """Llama 1 to 3, and Granite and PowerLM, whose class has the same parameters."""
    widths, bias = _widths(config), bool(config.get("attention_bias", False))
    attention = widths.attention(qkv_bias=bias, output_bias=bias)
    return _shape(
        config, widths, [*attention, *widths.gated_mlp(bias=bool(config.get("mlp_bias", False))), *widths.norms()]
    )


def mistral(config: Config) -> ModelShape:
    """Mistral."""
    widths = _widths(config)
    return _shape(config, widths, [*widths.attention(), *widths.gated_mlp(), *widths.norms()])


def qwen2(config: Config) -> ModelShape:
    """Qwen 2 and 2.5: biases on the inputs of attention only."""
    widths = _widths(config)
    return _shape(config, widths, [*widths.attention(qkv_bias=True), *widths.gated_mlp(), *widths.norms()])


def qwen3(config: Config) -> ModelShape:
    """Qwen 3: norms of the heads."""
    widths, bias = _widths(config), bool(config.get("attention_bias", False))
    attention = [*widths.attention(qkv_bias=bias, output_bias=bias), *widths.head_norms()]
    return _shape(config, widths, [*attention, *widths.gated_mlp(), *widths.norms()])


def gemma(config: Config) -> ModelShape:
    """Gemma 1."""
    widths, bias = _widths(config), bool(config.get("attention_bias", False))
    attention = widths.attention(qkv_bias=bias, output_bias=bias)
    return _shape(config, widths, [*attention, *widths.gated_mlp(), *widths.norms()])


def gemma2(config: Config) -> ModelShape:
    """Gemma 2: capped scores and logits, hence eager attention unless flash is asked for."""
    widths, bias = _widths(config), bool(config.get("attention_bias", False))
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(name) is None:
            raise ValueError(f"{name} = None is not covered: this family is traced with caps")
    refuse(config, {"use_bidirectional_attention": False})
    attention = widths.attention(qkv_bias=bias, output_bias=bias)
    return _shape(config, widths, [*attention, *widths.gated_mlp(), *widths.norms(_FOUR_NORMS)])


def gemma3_text(config: Config) -> ModelShape:
    """Gemma 3, the text model."""
    widths, bias = _widths(config), bool(config.get("attention_bias", False))
    refuse(config, {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    refuse(config, {"use_bidirectional_attention": False})
    attention = [*widths.attention(qkv_bias=bias, output_bias=bias), *widths.head_norms()]
    return _shape(config, widths, [*attention, *widths.gated_mlp(), *widths.norms(_FOUR_NORMS)])


def phi3(config: Config) -> ModelShape:
    """Phi-3 and Phi-4: the inputs of attention, and gate and up, are one linear map each."""
    widths = _widths(config)
    layer = [
        *linear("self_attn.o_proj", widths.query, widths.hidden, Split.ROW, bias=False),
        *linear("self_attn.qkv_proj", widths.hidden, widths.query + 2 * widths.key_value, Split.COLUMN, bias=False),
        *linear("mlp.gate_up_proj", widths.hidden, 2 * widths.inner, Split.COLUMN, bias=False),
        *linear("mlp.down_proj", widths.inner, widths.hidden, Split.ROW, bias=False),
        *widths.norms(),
    ]
    return _shape(config, widths, layer, autotp=False, hidden_dropout=float(config["resid_pdrop"]))


def mixtral(config: Config) -> ModelShape:
    """Mixtral: every layer's MLP is a mixture of experts; AutoTP leaves such tensors undivided."""
    widths, experts = _widths(config), _experts(config)
    refuse(config, {"output_router_logits": False, "router_jitter_noise": 0.0})
    gate = ParameterTensor("mlp.gate", experts.number, widths.hidden)
    layer = [*widths.attention(), gate, *widths.experts(experts.number), *widths.norms()]
    return _shape(config, widths, layer, experts=experts, autotp=False)


def qwen3_moe(config: Config) -> ModelShape:
    """Qwen 3's mixture of experts, where every layer is one."""
    widths, experts = _widths(config, "moe_intermediate_size"), _experts(config)
    refuse(config, {"output_router_logits": False, "decoder_sparse_step": 1, "mlp_only_layers": []})
    bias = bool(config.get("attention_bias", False))
    layer = [
        *widths.attention(qkv_bias=bias, output_bias=bias),
        *widths.head_norms(),
        *widths.experts(experts.number),
        ParameterTensor("mlp.gate", experts.number, widths.hidden),
        *widths.norms(),
    ]
    return _shape(config, widths, layer, experts=experts, autotp=False)


def _experts(config: Config) -> _Experts:
    name = "num_local_experts" if "num_local_experts" in config else "num_experts"
    number, per_token = integer(config, name), integer(config, "num_experts_per_tok")
    if per_token > number:
        raise ValueError(f"num_experts_per_tok = {per_token} is more than {name} = {number}")
    return _Experts(number, per_token)
