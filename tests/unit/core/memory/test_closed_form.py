"""The memory model's invariants: monotone, additive, never below what must be there."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.marp_values import CALIBRATION, gpt2_config, job, llama_config, request

from frenzy.core.lifecycle.preflight import counted_bytes
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import MemoryTable, Workload, predict_memory
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import LoraSpec, Precision

Row = tuple[int, int, int, int, int, bool]
PRECISIONS = (Precision.FP32, Precision.BF16, Precision.AUTOCAST_BF16)

shapes = st.builds(
    lambda family, heads, width, layers, vocab: model_shape(
        (gpt2_config if family else llama_config)(heads * width, layers, heads, vocab)
    ),
    st.booleans(),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([16, 32, 64]),
    st.integers(1, 12),
    st.integers(256, 20_000),
)
rows = st.tuples(
    st.sampled_from([1, 2, 3, 4, 8]),
    st.just(1),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 8),
    st.integers(1, 8),
    st.booleans(),
)
precisions = st.sampled_from(PRECISIONS)


def table(
    shape: ModelShape, plans: list[Row], *, length: int = 128, calibration: Calibration = CALIBRATION, **training: Any
) -> MemoryTable:
    asked = request(shape, job(sequence_length=length, **training))
    found = predict_memory(workload_of(asked, DeviceKind.VIRTUAL), grid_of(plans), calibration)
    assert found is not None
    return found


@given(shapes, rows, precisions)
def test_terms_sum_to_the_peak_largest_first(shape: ModelShape, row: Row, precision: Precision) -> None:
    prediction = table(shape, [row], precision=precision).prediction(0)
    sizes = [each.num_bytes for each in prediction.terms]
    assert sum(sizes) == prediction.peak_allocated_bytes
    assert sizes == sorted(sizes, reverse=True) or sizes[0] >= max(sizes)
    assert all(each.equation for each in prediction.terms)


@given(shapes, rows, precisions)
def test_what_is_counted_is_a_part_of_the_peak_that_more_tokens_leave_alone(
    shape: ModelShape, row: Row, precision: Precision
) -> None:
    dp, tp, stage, micro, accumulation, checkpointing = row
    plans = [row, (dp, tp, stage, 2 * micro, accumulation, checkpointing)]
    found = table(shape, plans, precision=precision)
    fewer, more = (found.prediction(index) for index in range(2))
    assert 0 < counted_bytes(fewer) <= fewer.peak_allocated_bytes
    assert counted_bytes(fewer) == counted_bytes(more)


@given(shapes, rows, precisions)
def test_a_larger_micro_batch_never_needs_less(shape: ModelShape, row: Row, precision: Precision) -> None:
    dp, tp, stage, micro, accumulation, checkpointing = row
    plans = [(dp, tp, stage, size, accumulation, checkpointing) for size in (micro, micro + 1, 2 * micro + 1)]
    peaks = table(shape, plans, precision=precision).peak_bytes
    assert (np.diff(peaks) >= 0).all()


@given(shapes, rows, precisions, st.integers(8, 500))
def test_longer_sequences_never_need_less(shape: ModelShape, row: Row, precision: Precision, length: int) -> None:
    short = table(shape, [row], length=length, precision=precision).peak_bytes[0]
    long = table(shape, [row], length=2 * length, precision=precision).peak_bytes[0]
    assert long >= short


@given(shapes, rows, precisions)
def test_more_ranks_hold_less_of_the_optimizer_each(shape: ModelShape, row: Row, precision: Precision) -> None:
    plans = [(ranks, *row[1:]) for ranks in (1, 2, 4, 8, 16)]
    held = held_at_the_loss(table(shape, plans, precision=precision), "fp32 master weights", "optimizer states")
    assert held == sorted(held, reverse=True)


@given(shapes, precisions)
def test_a_higher_stage_keeps_less_of_the_states(shape: ModelShape, precision: Precision) -> None:
    # Not stage 3: its buffers may weigh more than what it divides in a model of few parameters.
    plans: list[Row] = [(8, 1, stage, 1, 4, False) for stage in (1, 2)]
    first, second = held_at_the_loss(table(shape, plans, precision=precision), *STATES)
    assert first >= second


def held_at_the_loss(found: MemoryTable, *names: str) -> list[float]:
    loss = next(each for each in found.moments if each.name == "loss")
    return np.sum([each.num_bytes for each in loss.terms if each.name in names], axis=0).tolist()


STATES = ("weights", "fp32 master weights", "optimizer states", "accumulated gradients")


@given(shapes, rows, precisions)
def test_the_peak_is_never_below_weights_masters_and_optimizer_states(
    shape: ModelShape, row: Row, precision: Precision
) -> None:
    dp, stage = row[0], row[2]
    size = shape.num_parameters
    weight = 2 if precision is Precision.BF16 else 4
    least = weight * size / (dp if stage == 3 else 1) + 12 * size / dp
    assert table(shape, [row], precision=precision).peak_bytes[0] >= int(least)


@given(shapes, rows, precisions)
def test_required_is_above_the_peak_by_the_calibrated_headroom(
    shape: ModelShape, row: Row, precision: Precision
) -> None:
    found = table(shape, [row], precision=precision)
    headroom = int(found.required_bytes[0]) - int(found.peak_bytes[0])
    assert headroom >= CALIBRATION.headroom_bytes - 1
    assert headroom >= CALIBRATION.headroom_share * int(found.peak_bytes[0]) - 1


@given(shapes, rows, precisions)
def test_checkpointing_keeps_fewer_activations(shape: ModelShape, row: Row, precision: Precision) -> None:
    plans = [(*row[:5], checkpointing) for checkpointing in (False, True)]
    found = table(shape, plans, precision=precision)
    loss = next(each for each in found.moments if each.name == "loss")
    layers = next(each for each in loss.terms if each.name == "activations of the layers")
    assert layers.num_bytes[1] < layers.num_bytes[0]


@settings(max_examples=20)
@given(shapes, rows)
def test_adapters_need_less_than_full_training(shape: ModelShape, row: Row) -> None:
    full = table(shape, [row]).peak_bytes[0]
    adapted = table(shape, [row], lora=LoraSpec(rank=2)).peak_bytes[0]
    assert adapted < full


def test_a_family_without_coefficients_gives_none_rather_than_a_guess() -> None:
    asked = request(model_shape(gpt2_config()))
    bare = dataclasses.replace(CALIBRATION, activations=())
    grid = grid_of([(1, 1, 1, 1, 1, False)])
    assert predict_memory(workload_of(asked, DeviceKind.VIRTUAL), grid, bare) is None


def test_many_plans_at_once_give_what_each_gives_alone() -> None:
    shape = model_shape(llama_config())
    plans: list[Row] = [(2, 1, 1, 4, 2, False), (1, 1, 3, 1, 1, True), (4, 1, 2, 2, 2, False)]
    together = table(shape, plans)
    for index, plan in enumerate(plans):
        assert together.prediction(index) == table(shape, [plan]).prediction(0)


@given(rows, st.sampled_from([1, 2, 3]))
def test_eight_bit_moments_take_a_quarter_and_their_scales(row: Row, stage: int) -> None:
    shape = model_shape(llama_config(256, 6, 8, 8000))
    plan: Row = (row[0], 1, stage, *row[3:])
    full, eight = (held_at_the_loss(table(shape, [plan], optimizer=name), "optimizer states")[0] for name in ADAMS)
    assert eight == pytest.approx(full / 4 * (1 + 4 / 256))


ADAMS = ("adamw", "adamw-8bit")


@given(rows, st.sampled_from([1, 2, 3]))
def test_a_cards_adamw_makes_no_temporaries_of_the_partition(row: Row, stage: int) -> None:
    shape = model_shape(llama_config(256, 6, 8, 8000))
    plans: list[Row] = [(row[0], 1, stage, *row[3:])]
    card, host = (updating(workload_of(request(shape), kind), plans) for kind in (DeviceKind.CUDA, DeviceKind.VIRTUAL))
    partition = -(-shape.num_parameters // (2 * row[0])) * 2
    assert card <= host
    if stage == 3:
        assert (card, host) == (4.0 * partition, 12.0 * partition)


def updating(workload: Workload, plans: list[Row]) -> float:
    found = predict_memory(dataclasses.replace(workload, precision=Precision.FP32), grid_of(plans), CALIBRATION)
    assert found is not None
    step = next(each for each in found.moments if each.name == "optimizer step")
    return float(step.terms[-1].num_bytes[0])


@pytest.mark.parametrize("tp", [1, 2])
def test_a_card_is_not_asked_to_hold_the_whole_model_at_the_start_of_stage_3(tp: int) -> None:
    shape = model_shape(llama_config(1024, 12, 8, 8000))
    asked = request(shape, job(precision=Precision.BF16))
    found = predict_memory(workload_of(asked, DeviceKind.CUDA), grid_of([(16, tp, 3, 1, 1, True)]), CALIBRATION)
    assert found is not None
    start = next(each for each in found.moments if each.name == "start")
    whole = 2 * shape.parameters_per_rank(tp)
    assert (start.total[0] >= whole) == (tp > 1)


def test_weights_kept_in_four_bits_take_about_a_quarter_and_pass_through_sixteen_one_at_a_time() -> None:
    shape = model_shape(llama_config(1024, 12, 8, 8000))
    plans: list[Row] = [(1, 1, 1, 1, 1, True)]
    adapters = {name: LoraSpec(rank=4, quantization=name) for name in ("none", "nf4")}
    plain, four = (
        predict_memory(workload_of(request(shape, job(lora=lora)), DeviceKind.CUDA), grid_of(plans), CALIBRATION)
        for lora in adapters.values()
    )
    assert plain is not None
    assert four is not None
    layers = shape.num_layers * sum(each.num_elements for each in shape.layer if each.is_linear)
    saved = held_at_the_loss(plain, "weights")[0] - held_at_the_loss(four, "weights")[0]
    assert saved == pytest.approx(layers * (2 - 0.5 - 4 / 64), rel=0.01)
    backward = next(each for each in four.moments if each.name == "first backward layer")
    passing = next(each for each in backward.terms if each.name == "quantised weight made plain")
    assert passing.num_bytes[0] == 2 * max(each.num_elements for each in shape.layer if each.is_linear)


def test_experts_in_four_bits_are_made_plain_a_map_at_a_time_in_one_layer() -> None:
    shape = model_shape(
        {**llama_config(256, 6, 8, 2000), "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    )
    plans: list[Row] = [(1, 1, 1, micro, 1, False) for micro in (1, 100)]
    lora = LoraSpec(rank=4, target_modules=("q_proj",), quantization="nf4")
    of = workload_of(request(shape, job(sequence_length=64, precision=Precision.BF16, lora=lora)), DeviceKind.CUDA)
    found = predict_memory(of, grid_of(plans), CALIBRATION)
    assert found is not None
    passing = next(
        term for moment in found.moments for term in moment.terms if term.name == "quantised weight made plain"
    )
    largest = max(each.num_elements for each in shape.layer if each.is_expert)
    visited = 64 * shape.experts_per_token * shape.intermediate_size
    of_a_map = max(each.num_elements for each in shape.layer if each.is_linear)
    assert passing.num_bytes.tolist() == [2 * largest - visited, 2 * of_a_map]


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3"])
def test_flash_attention_takes_on_a_card_what_torchs_own_kernel_takes(attention: str) -> None:
    shape, plans = model_shape(llama_config(1024, 12, 8, 8000)), [(1, 1, 1, 1, 1, False)]
    flash, fused, eager = (
        predict_memory(
            workload_of(request(shape, job(sequence_length=4096, precision=Precision.BF16, attention=name)), CUDA),
            grid_of(plans),
            CALIBRATION,
        )
        for name in (attention, "sdpa", "eager")
    )
    assert flash is not None
    assert fused is not None
    assert eager is not None
    assert flash.peak_bytes[0] == fused.peak_bytes[0]
    scores = shape.num_layers * 8 * 4096**2 * 2
    assert eager.peak_bytes[0] - flash.peak_bytes[0] >= scores


CUDA = DeviceKind.CUDA


@given(st.integers(1, 12), st.integers(1, 14), st.integers(1, 4))
def test_checkpointing_some_layers_lies_between_checkpointing_none_and_all(layers: int, every: int, batch: int) -> None:
    shape = model_shape(llama_config(256, layers, 8, 8000))
    asked = request(shape, job(sequence_length=512, checkpoint_every_layers=every))
    plans: list[Row] = [(1, 1, 1, batch, 1, checkpointing) for checkpointing in (False, True)]
    found = predict_memory(workload_of(asked, DeviceKind.VIRTUAL), grid_of(plans), CALIBRATION)
    all_of_them = table(shape, plans, length=512).peak_bytes
    assert found is not None
    plain, some = found.peak_bytes
    assert plain == all_of_them[0]
    assert all_of_them[1] <= some
    if every == 1:
        assert some == all_of_them[1]
    kept = [term(found, "activations of the layers", plan) for plan in (0, 1)]
    one = term(table(shape, plans, length=512), "activations of the layers", 1) / layers
    checkpointed = -(-layers // every)
    assert kept[1] == pytest.approx(checkpointed * one + (layers - checkpointed) * kept[0] / layers)


def term(found: MemoryTable, name: str, plan: int) -> float:
    loss = next(each for each in found.moments if each.name == "loss")
    return next(float(each.num_bytes[plan]) for each in loss.terms if each.name == name)
