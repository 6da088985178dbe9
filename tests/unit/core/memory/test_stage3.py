"""ZeRO stage 3: which weights stay gathered, and which inputs it keeps beside frozen weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.marp_values import CALIBRATION, gpt2_config, job, llama_config, request

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import MemoryTable, Workload, predict_memory
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.core.values.zero_buckets import ZeroBuckets

LENGTH, BATCH, LAYERS, HIDDEN = 128, 2, 6, 256
LLAMA = model_shape(llama_config(HIDDEN, LAYERS, 8, 2000))
LAYER = sum(each.num_elements for each in LLAMA.layer)
HEAD = LLAMA.embeddings[0].num_elements
LAST_MAP = 3 * HIDDEN * HIDDEN
MIXTRAL = model_shape(
    {**llama_config(HIDDEN, LAYERS, 8, 2000), "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
)
EXPERTS = sum(each.num_elements for each in MIXTRAL.layer if each.is_expert)
ALL_MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def workload(shape: ModelShape = LLAMA, kind: DeviceKind = DeviceKind.CUDA, **training: Any) -> Workload:
    asked = job(**{"sequence_length": LENGTH, "precision": Precision.BF16, **training})
    return workload_of(request(shape, asked), kind)


def table(
    of: Workload, *, stage: int = 3, checkpointing: bool = False, dp: int = 4, by: Calibration = CALIBRATION
) -> MemoryTable:
    found = predict_memory(of, grid_of([(dp, 1, stage, BATCH, 1, checkpointing)]), by)
    assert found is not None
    return found


def term(found: MemoryTable, name: str, moment: str = "loss") -> float:
    at = next(each for each in found.moments if each.name == moment)
    return next(float(each.num_bytes[0]) for each in at.terms if each.name == name)


def gathered(live: int, *, checkpointing: bool, moment: str = "loss", dp: int = 4, of: Workload | None = None) -> float:
    """Gathered elements where so many may be live."""
    buckets = ZeroBuckets(reduce=1000, prefetch=0, live=live, reuse=0, persistent=0)
    found = table(replace(of or workload(), buckets=buckets), checkpointing=checkpointing, dp=dp)
    return term(found, "gathered weights", moment) / 2


def kept(found: MemoryTable) -> tuple[float, float]:
    """Activations in and outside the layers."""
    return term(found, "activations of the layers"), term(found, "activations outside the layers")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_where_nothing_may_be_live_the_head_and_one_map_are_gathered_in_the_loss(checkpointing: bool) -> None:
    assert gathered(0, checkpointing=checkpointing) == HEAD + LAST_MAP


@pytest.mark.parametrize("checkpointing", [False, True])
def test_as_many_weights_stay_gathered_as_may_be_live(checkpointing: bool) -> None:
    live = HEAD + 2 * LAYER
    assert gathered(live, checkpointing=checkpointing) == live
    assert gathered(10**12, checkpointing=checkpointing) == LLAMA.num_parameters - HIDDEN


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=8, target_modules=("q_proj", "v_proj"))])
def test_experts_stay_gathered_until_their_layer_has_gone_backward(lora: LoraSpec | None) -> None:
    largest = max(each.num_elements for each in MIXTRAL.layer if each.is_expert)
    of = workload(MIXTRAL, lora=lora)
    assert gathered(0, checkpointing=False, of=of) == HEAD + largest + LAYERS * EXPERTS
    last = gathered(0, checkpointing=False, moment="first backward layer", of=of)
    assert last == 2 * largest + LAYERS * EXPERTS
    assert gathered(0, checkpointing=False, moment="end of the backward pass", of=of) == HEAD + largest


def test_checkpointing_keeps_the_experts_of_the_layer_that_is_computed_again_alone() -> None:
    largest = max(each.num_elements for each in MIXTRAL.layer if each.is_expert)
    of = workload(MIXTRAL)
    assert gathered(0, checkpointing=True, of=of) == HEAD + largest
    assert gathered(0, checkpointing=True, moment="first backward layer", of=of) == EXPERTS + largest


def test_of_a_period_of_layers_the_experts_of_one_are_computed_again_at_a_time() -> None:
    both = [
        replace(each, name=f"{at}.{each.name}") for at in (0, 1) for each in MIXTRAL.layer if each.is_expert or at == 0
    ]
    period = replace(MIXTRAL, layer=tuple(both), num_layers=LAYERS // 2)
    largest = max(each.num_elements for each in MIXTRAL.layer if each.is_expert)
    again = gathered(0, checkpointing=True, moment="first backward layer", of=workload(period))
    assert again == EXPERTS + largest
    assert gathered(0, checkpointing=False, of=workload(period)) == HEAD + largest + LAYERS * EXPERTS


def test_experts_that_are_maps_of_their_own_are_given_back() -> None:
    maps = tuple(replace(each, is_linear=True) if each.is_expert else each for each in MIXTRAL.layer)
    largest = max(each.num_elements for each in MIXTRAL.layer if each.is_expert)
    assert gathered(0, checkpointing=False, of=workload(replace(MIXTRAL, layer=maps))) == HEAD + largest


def test_releases_before_5_give_experts_back_as_each_is_a_map_of_its_own() -> None:
    of = replace(workload(MIXTRAL), buckets=ZeroBuckets(reduce=1000, prefetch=0, live=0, reuse=0, persistent=0))
    largest = max(each.num_elements for each in MIXTRAL.layer if each.is_expert)
    before = replace(CALIBRATION, versions={"transformers": "4.48.3"})
    assert term(table(of, by=before), "gathered weights") / 2 == HEAD + largest


NF4 = LoraSpec(rank=8, target_modules=("q_proj", "v_proj"), quantization="nf4")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_codes_of_linear_maps_stay_gathered_on_virtual_gpus_and_those_of_experts_never(checkpointing: bool) -> None:
    maps = sum(each.num_elements for each in MIXTRAL.layer if each.is_linear)
    largest = max(each.num_elements for each in MIXTRAL.layer if each.is_expert)
    of = workload(MIXTRAL, kind=DeviceKind.VIRTUAL, lora=NF4)
    in_loss = gathered(0, checkpointing=checkpointing, of=of)
    assert in_loss == HEAD + (largest + LAYERS * maps) / 4
    again = (max(maps, largest) if checkpointing else largest) / 4
    last = gathered(0, checkpointing=checkpointing, moment="first backward layer", of=of)
    assert last == again + (largest + LAYERS * maps) / 4


def test_weights_of_layers_that_have_gone_backward_are_given_back() -> None:
    assert gathered(10**12, checkpointing=False, moment="end of the backward pass") == HEAD + LAST_MAP


def test_a_small_model_is_gathered_whole_at_most_however_much_may_be_fetched_ahead() -> None:
    found = table(replace(workload(), buckets=ZeroBuckets(10**9, 10**8, 10**9, 10**9, persistent=0)))
    assert term(found, "gathered weights") == 2 * LLAMA.num_parameters


def test_a_single_rank_gathers_nothing() -> None:
    found = table(workload(), dp=1)
    assert term(found, "gathered weights") == 0.0


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.booleans())
def test_more_that_may_be_live_never_keeps_less(one: int, other: int, checkpointing: bool) -> None:
    for moment in ("loss", "first backward layer"):
        held = [gathered(each, checkpointing=checkpointing, moment=moment) for each in sorted((one, other))]
        assert held == sorted(held)


def test_stage_3_keeps_the_inputs_of_frozen_maps_and_of_the_head() -> None:
    """Adapters on queries and values: the others' inputs are the width of the model and the inner one."""
    adapters = workload(lora=LoraSpec(rank=4, target_modules=("q_proj", "v_proj")))
    (layers2, outside2), (layers3, outside3) = (kept(table(adapters, stage=stage)) for stage in (2, 3))
    tokens = BATCH * LENGTH
    assert layers3 - layers2 == LAYERS * tokens * 2 * (HIDDEN + 3 * HIDDEN)
    assert outside3 - outside2 == tokens * 2 * HIDDEN


@pytest.mark.parametrize(
    ("of", "checkpointing"),
    [
        (workload(lora=LoraSpec(rank=4, target_modules=ALL_MAPS)), False),
        (workload(lora=LoraSpec(rank=4)), True),
        (workload(model_shape(gpt2_config(HIDDEN, LAYERS, 8)), DeviceKind.VIRTUAL, lora=LoraSpec(rank=4)), False),
    ],
    ids=["adapters on all maps", "checkpointed", "no linear modules"],
)
def test_stage_3_keeps_the_heads_input_alone_where_layers_keep_theirs_or_none(
    of: Workload, checkpointing: bool
) -> None:
    found = [kept(table(of, stage=stage, checkpointing=checkpointing)) for stage in (2, 3)]
    (layers2, outside2), (layers3, outside3) = found
    assert layers3 == layers2
    assert outside3 - outside2 == BATCH * LENGTH * 2 * HIDDEN


def test_a_layer_that_is_computed_again_keeps_the_inputs_of_its_frozen_maps_meanwhile() -> None:
    adapters = workload(lora=LoraSpec(rank=4, target_modules=("q_proj", "v_proj")))
    two, three = (
        term(table(adapters, stage=stage, checkpointing=True), "backward pass of one layer", "first backward layer")
        for stage in (2, 3)
    )
    assert three - two == BATCH * LENGTH * 2 * (HIDDEN + 3 * HIDDEN - HIDDEN)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_full_training_keeps_as_much_in_every_stage(checkpointing: bool) -> None:
    found = [kept(table(workload(), stage=stage, checkpointing=checkpointing)) for stage in (1, 2, 3)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("bucket", [1000, 10**12])
def test_the_optimizer_takes_a_sub_group_of_the_partition_at_a_time(bucket: int) -> None:
    """A flat copy of the gradients in 16 bits, and one in fp32."""
    partition, largest = LLAMA.num_parameters / 4, max(HEAD, *(each.num_elements for each in LLAMA.layer)) / 4
    buckets = ZeroBuckets(reduce=1000, prefetch=0, live=0, reuse=0, persistent=0, sub_group=bucket)
    held = term(table(replace(workload(), buckets=buckets)), "gradient in fp32 and temporaries", "optimizer step")
    assert held == pytest.approx(max(6 * min(partition, bucket + largest), 8 * largest), rel=0.001)
