"""The layout of Megatron-LM: what the degrees divide, and what they do not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, TokenBytes
from frenzy.core.models.shape import model_shape
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from tools.accuracy.datasets.megatron import MegatronRun, predict_megatron_memory

SHAPE = model_shape(
    {
        "model_type": "llama",
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
    }
)
COEFFICIENTS = ActivationCoefficients(
    family="llama",
    precision=Precision.BF16,
    checkpointing=False,
    attention_dropout=False,
    hidden_dropout=False,
    layer=TokenBytes(hidden=30.0, intermediate=8.0),
    outside=TokenBytes(hidden=6.0),
    in_loss=(TokenBytes(vocab=10.0),),
    in_backward=(TokenBytes(hidden=20.0),),
    kind=DeviceKind.CUDA,
)
RUN = MegatronRun(shape=SHAPE, coefficients=COEFFICIENTS, micro_batch=1, sequence_length=1024, dp=1, tp=1, zero_stage=0)


def peak(run: MegatronRun) -> int:
    return predict_megatron_memory(run).peak_allocated_bytes


def term(run: MegatronRun, name: str) -> int:
    return sum(each.num_bytes for each in predict_megatron_memory(run).terms if each.name == name)


def test_without_zero_a_parameter_takes_eighteen_bytes() -> None:
    states = ("weights", "gradients in fp32", "master weights and states")

    assert sum(term(RUN, each) for each in states) == 18 * SHAPE.num_parameters


def test_zero_1_divides_masters_and_states_only() -> None:
    wide = replace(RUN, dp=4, zero_stage=1)

    assert term(wide, "master weights and states") == 3 * SHAPE.num_parameters
    assert term(wide, "weights") == 2 * SHAPE.num_parameters


def test_what_tensor_parallelism_gathers_is_whole_on_every_rank() -> None:
    assert term(RUN, "gathered inputs") == 0
    assert term(replace(RUN, tp=8), "gathered inputs") == 2 * 512 * 9 * 1024 * 7 // 8


@given(st.integers(1, 16), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 8]), st.sampled_from([0, 1]))
def test_the_terms_sum_to_the_peak_and_more_tokens_need_more(batch: int, tp: int, dp: int, stage: int) -> None:
    run = replace(RUN, micro_batch=batch, tp=tp, dp=dp, zero_stage=stage)
    found = predict_megatron_memory(run)

    assert sum(each.num_bytes for each in found.terms) == found.peak_allocated_bytes
    assert peak(replace(run, micro_batch=2 * batch)) > found.peak_allocated_bytes
