"""Parameter counts from configs, against the published sizes of models everyone knows."""

from __future__ import annotations

import pytest
from tests.unit.core.marp_values import gpt2_config, llama_config

from frenzy.core.models.shape import SUPPORTED_FAMILIES, model_shape
from frenzy.core.values.errors import PermanentError, ReasonCode

BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
PUBLISHED = {
    "GPT-2 small": (
        gpt2_config(768, 12, 12, 50257),
        124_439_808,
    ),
    "Llama 2 7B": (
        llama_config(4096, 32, 32, 32000, num_key_value_heads=32, intermediate_size=11008),
        6_738_415_616,
    ),
    "Llama 3 8B": (
        llama_config(4096, 32, 32, 128256, num_key_value_heads=8, intermediate_size=14336),
        8_030_261_248,
    ),
    "Mistral 7B": (
        {**llama_config(4096, 32, 32, 32000, num_key_value_heads=8, intermediate_size=14336), "model_type": "mistral"},
        7_241_732_096,
    ),
    "Qwen2 0.5B": (
        {
            **llama_config(896, 24, 14, 151936, num_key_value_heads=2, intermediate_size=4864),
            "model_type": "qwen2",
            "tie_word_embeddings": True,
        },
        494_032_768,
    ),
    "Qwen3 0.6B": (
        {
            **llama_config(1024, 28, 16, 151936, num_key_value_heads=8, intermediate_size=3072),
            "model_type": "qwen3",
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
        596_049_920,
    ),
    "Gemma 2B": (
        {
            **llama_config(2048, 18, 8, 256000, num_key_value_heads=1, intermediate_size=16384),
            "model_type": "gemma",
            "head_dim": 256,
            "tie_word_embeddings": True,
        },
        2_506_172_416,
    ),
    "OPT 125M": (
        {
            "model_type": "opt",
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "vocab_size": 50272,
            "word_embed_proj_dim": 768,
            "max_position_embeddings": 2048,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "do_layer_norm_before": True,
            "attention_dropout": 0.0,
            "dropout": 0.1,
        },
        125_239_296,
    ),
    "Pythia 160M": (
        {
            "model_type": "gpt_neox",
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 50304,
            "max_position_embeddings": 2048,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        162_322_944,
    ),
    "Phi-2": (
        {
            "model_type": "phi",
            "hidden_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 10240,
            "vocab_size": 51200,
            "max_position_embeddings": 2048,
            "embd_pdrop": 0.0,
            "attention_dropout": 0.0,
            "resid_pdrop": 0.1,
        },
        2_779_683_840,
    ),
    "StarCoder": (
        {
            **gpt2_config(6144, 40, 48, 49152),
            "model_type": "gpt_bigcode",
            "n_positions": 8192,
            "n_inner": 24576,
            "multi_query": True,
        },
        15_517_456_384,
    ),
    "MPT-7B": (
        {
            "model_type": "mpt",
            "d_model": 4096,
            "n_layers": 32,
            "n_heads": 32,
            "vocab_size": 50432,
            "max_seq_len": 2048,
            "no_bias": True,
            "expansion_ratio": 4,
            "attn_config": {"attn_type": "multihead_attention", "attn_pdrop": 0, "alibi": True},
        },
        6_649_286_656,
    ),
    "Granite 3.0 8B": (
        {
            **llama_config(4096, 40, 32, 49155, num_key_value_heads=8, intermediate_size=12800),
            "model_type": "granite",
            "tie_word_embeddings": True,
        },
        8_170_848_256,
    ),
    "Gemma 2 2B": (
        {
            **llama_config(2304, 26, 8, 256000, num_key_value_heads=4, intermediate_size=9216),
            "model_type": "gemma2",
            "head_dim": 256,
            "tie_word_embeddings": True,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        2_614_341_888,
    ),
    "Gemma 3 1B": (
        {
            **llama_config(1152, 26, 4, 262144, num_key_value_heads=1, intermediate_size=6912),
            "model_type": "gemma3_text",
            "head_dim": 256,
            "tie_word_embeddings": True,
        },
        999_885_952,
    ),
    "Phi-3 mini": (
        {
            **llama_config(3072, 32, 32, 32064, num_key_value_heads=32, intermediate_size=8192),
            "model_type": "phi3",
            "resid_pdrop": 0.0,
        },
        3_821_079_552,
    ),
    "Mixtral 8x7B": (
        {
            **llama_config(4096, 32, 32, 32000, num_key_value_heads=8, intermediate_size=14336),
            "model_type": "mixtral",
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        46_702_792_704,
    ),
    "Qwen3 30B-A3B": (
        {
            **llama_config(2048, 48, 32, 151936, num_key_value_heads=4, intermediate_size=6144),
            "model_type": "qwen3_moe",
            "head_dim": 128,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
        30_532_122_624,
    ),
    "BERT base": (
        {"model_type": "bert", "pad_token_id": 0, "vocab_size": 30522, "max_position_embeddings": 512, **BASE},
        109_514_298,
    ),
    "RoBERTa base": (
        {"model_type": "roberta", "pad_token_id": 1, "vocab_size": 50265, "max_position_embeddings": 514, **BASE}
        | {"type_vocab_size": 1},
        124_697_433,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_gives_the_models_published_number_of_parameters(name: str) -> None:
    config, published = PUBLISHED[name]
    assert model_shape(config).num_parameters == published


def test_every_family_has_a_published_model_among_these_tests() -> None:
    assert {config["model_type"] for config, _ in PUBLISHED.values()} == set(SUPPORTED_FAMILIES)


def test_the_tensors_add_up_to_the_parameters() -> None:
    shape = model_shape(llama_config())
    assert sum(each.num_elements for _, each in shape.all_tensors()) == shape.num_parameters


def test_tensor_parallelism_divides_the_linear_maps_of_the_layers_only() -> None:
    shape = model_shape(llama_config())
    linear = sum(each.num_elements for each in shape.layer if each.is_linear) * shape.num_layers
    assert shape.parameters_per_rank(2) == shape.num_parameters - linear // 2


def test_a_token_meets_only_the_experts_it_visits() -> None:
    # Jiang et al. 2024 (Mixtral of Experts): 47B parameters, of which a token uses 13B.
    shape = model_shape(PUBLISHED["Mixtral 8x7B"][0])
    active = shape.num_parameters - shape.num_inactive_parameters
    assert active == 12_879_925_248
    assert shape.flops_shape().num_active == shape.flops_shape().num_active_trainable == active


def test_a_dense_model_is_met_whole() -> None:
    shape = model_shape(llama_config())
    assert shape.num_inactive_parameters == 0
    assert shape.flops_shape(num_trainable=1000).num_active_trainable == 1000


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("MPT-7B", {"attn_config": {"attn_pdrop": 0, "qk_ln": True}}, "qk_ln = True is not covered"),
        ("MPT-7B", {"expansion_ratio": 8}, "expansion_ratio = 8 is not covered"),
        ("Phi-2", {"qk_layernorm": True}, "qk_layernorm = True is not covered"),
        ("Gemma 2 2B", {"attn_logit_softcapping": None}, "attn_logit_softcapping = None"),
        ("Mixtral 8x7B", {"output_router_logits": True}, "output_router_logits = True"),
        ("Mixtral 8x7B", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is more than"),
        ("Qwen3 30B-A3B", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("BERT base", {"is_decoder": True}, "is_decoder = True is not covered"),
    ],
)
def test_a_variant_with_other_memory_is_refused_by_its_field(name: str, change: dict[str, object], said: str) -> None:
    with pytest.raises(PermanentError, match=said):
        model_shape({**PUBLISHED[name][0], **change})


def test_tied_embeddings_count_once() -> None:
    tied = model_shape(llama_config(tie_word_embeddings=True)).num_parameters
    untied = model_shape(llama_config(tie_word_embeddings=False)).num_parameters
    assert untied - tied == 192 * 1000


def test_an_unknown_family_is_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(PermanentError) as caught:
        model_shape({"model_type": "rwkv"})
    assert caught.value.reason.code is ReasonCode.MODEL_NOT_SUPPORTED
    assert "'rwkv'" in caught.value.reason.sentence
    assert "llama" in (caught.value.reason.remedy or "")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({key: value for key, value in gpt2_config().items() if key != "n_embd"}, "n_embd"),
        (gpt2_config(hidden=100, heads=7), "7 heads"),
        (gpt2_config(layers=0), "n_layer = 0"),
        (llama_config(num_key_value_heads=4), "num_key_value_heads = 4"),
    ],
)
def test_an_impossible_field_is_refused_by_name(config: dict[str, object], said: str) -> None:
    with pytest.raises(PermanentError, match=said):
        model_shape(config)
