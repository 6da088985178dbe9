"""How gradients leave the backward pass: buckets, and their flat copies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.marp_values import CALIBRATION, job, llama_config, request

from frenzy.core.memory.closed_form import MemoryTable, Workload, predict_memory
from frenzy.core.memory.cuda_memory import CONTEXT_BYTES, HOPPER_CONTEXT_BYTES
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.zero_buckets import ZeroBuckets

SHAPE = model_shape(llama_config(256, 6, 8, 2000))
ALL, TABLE = SHAPE.num_parameters, SHAPE.embeddings[0].num_elements
BF16 = 2


def workload(bucket: int, precision: Precision = Precision.BF16) -> Workload:
    buckets = ZeroBuckets(reduce=bucket, prefetch=0, live=10**9, reuse=0, persistent=0)
    asked = job(sequence_length=128, precision=precision)
    return replace(workload_of(request(SHAPE, asked), DeviceKind.CUDA), buckets=buckets)


def reducing(
    bucket: int, *, stage: int, dp: int, accumulation: int = 1, precision: Precision = Precision.BF16
) -> float:
    """Bytes of gradients while the last bucket is reduced."""
    found = predict_memory(workload(bucket, precision), grid_of([(dp, 1, stage, 1, accumulation, False)]), CALIBRATION)
    assert found is not None
    moment = next(each for each in found.moments if each.name == "gradient reduction")
    return next(float(each.num_bytes[0]) for each in moment.terms if each.name == "gradients and their reduction")


@pytest.mark.parametrize("stage", [1, 2])
def test_a_bucket_with_gradients_of_several_ranks_is_copied_to_be_reduced(stage: int) -> None:
    # two buckets, of which one fills while the other is reduced, and the flat copy of all gradients
    assert reducing(ALL, stage=stage, dp=2) == BF16 * 3 * ALL


@pytest.mark.parametrize("stage", [1, 2])
def test_the_embeddings_gradient_waits_for_a_bucket_it_does_not_fit_into(stage: int) -> None:
    bucket = ALL - TABLE // 2
    assert reducing(bucket, stage=stage, dp=2) == BF16 * (2 * bucket + (ALL - TABLE) + TABLE)


def test_stage_1_keeps_gradients_that_no_bucket_has_room_for() -> None:
    bucket = max(each.num_elements for each in SHAPE.layer) - 2
    kept = sum(each.num_elements for each in SHAPE.layer if each.num_elements > bucket) * SHAPE.num_layers
    first, second = (reducing(bucket, stage=stage, dp=4) for stage in (1, 2))
    assert first - second == BF16 * (kept + TABLE)  # the untied head is as large as the embedding


def test_autocast_has_buckets_in_two_formats_and_sends_another_copy() -> None:
    found = reducing(ALL, stage=1, dp=2, precision=Precision.AUTOCAST_BF16)
    assert found == (2 * 2 * 4 + 4 + 2) * ALL


def test_one_rank_copies_nothing_to_reduce_it() -> None:
    assert reducing(ALL, stage=2, dp=1) == BF16 * 2 * ALL  # the bucket, and the partition it leaves for


def test_a_tensor_is_made_fp32_beside_the_copy_where_micro_batches_are_summed_so() -> None:
    found = reducing(ALL, stage=2, dp=4, accumulation=2)
    assert found == pytest.approx(BF16 * 3 * ALL + 4 * min(TABLE, ALL / 4), abs=8)


@pytest.mark.parametrize("dp", [1, 8])
def test_stage_3_reduces_a_copy_on_any_number_of_ranks(dp: int) -> None:
    assert reducing(ALL, stage=3, dp=dp) == BF16 * ALL


def of_card(found: MemoryTable, capability: str | None) -> tuple[int, int]:
    on = found.on_card(capability)
    return int(on.peak_bytes[0]), int(on.required_bytes[0])


def test_a_hopper_card_has_larger_workspaces_in_its_peak_and_a_larger_context_beside_it() -> None:
    found = predict_memory(workload(1000), grid_of([(1, 1, 1, 1, 1, False)]), CALIBRATION)
    assert found is not None
    (peak, required), (unknown, _) = of_card(found, "8.0"), of_card(found, None)
    larger = 2 * (32 * 2**20 - (8 * 2**20 + 8 * 16 * 2**10))
    assert peak == unknown
    context = HOPPER_CONTEXT_BYTES - CONTEXT_BYTES
    assert of_card(found, "9.0") == of_card(found, "10.0") == (peak + larger, required + context)
    terms = found.on_card("9.0").prediction(0).terms
    assert sum(each.num_bytes for each in terms) == peak + larger
