"""What a card must have beyond the peak where lengths vary and segments do not grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.marp_values import job, llama_config, request

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.memory.activation_coefficients import Attention, Loss
from frenzy.core.memory.closed_form import PlanRow, Workload, predict_memory
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.core.values.workload import Honour, WorkloadSpec

LENGTH, MICRO_BATCH, HEADS, VOCABULARY = 512, 2, 8, 32_000
SHAPE = model_shape(llama_config(1024, 4, HEADS, VOCABULARY))
PLAN = PlanRow(dp=2, tp=1, zero_stage=2, micro_batch=MICRO_BATCH, accumulation=1, checkpointing=True)
WHOLE_LOGITS = 4 * VOCABULARY * LENGTH * MICRO_BATCH


def workload(**env: str) -> Workload:
    script = WorkloadSpec(command=("python", "train.py"), honours=(Honour.ZERO,))
    asked = replace(job(sequence_length=LENGTH, precision=Precision.BF16), env=env)
    return workload_of(request(SHAPE, replace(asked, workload=script)), DeviceKind.CUDA)


def predicted(run: Workload, plan: PlanRow = PLAN) -> MemoryPrediction:
    table = predict_memory(run, grid_of([plan]), default_calibration())
    assert table is not None
    return table.prediction(0)


def lost(run: Workload, plan: PlanRow = PLAN) -> int:
    with_holes, without = (predicted(replace(run, segments_grow=each), plan) for each in (False, True))
    assert with_holes.peak_allocated_bytes == without.peak_allocated_bytes
    return with_holes.required_bytes - without.required_bytes


def test_one_and_a_half_of_the_whole_logits_in_fp32_may_be_lost() -> None:
    assert lost(workload()) == 3 * WHOLE_LOGITS // 2


def test_ranks_that_split_the_vocabulary_lose_their_part() -> None:
    assert lost(workload(), PLAN._replace(dp=1, tp=2)) == 3 * WHOLE_LOGITS // 4


def test_more_is_lost_beside_scores() -> None:
    assert lost(replace(workload(), attention=Attention.EAGER)) == 5 * WHOLE_LOGITS // 2


def test_scores_count_where_they_are_larger_than_logits() -> None:
    eager = replace(workload(), attention=Attention.EAGER, sequence_length=2 * VOCABULARY // HEADS)

    assert lost(eager) == 5 * 4 * HEADS * eager.sequence_length**2 * MICRO_BATCH // 2


def test_a_loss_in_chunks_leaves_holes_of_what_is_between_two_maps_of_a_layer_where_lengths_vary() -> None:
    in_chunks = replace(workload(), loss=Loss.FUSED)

    assert lost(in_chunks) == 9 * SHAPE.intermediate_size * LENGTH * MICRO_BATCH
    assert lost(replace(in_chunks, lengths_vary=False)) == 0


@pytest.mark.parametrize(("attention", "halves"), [(Attention.SDPA, 0), (Attention.EAGER, 5)])
def test_equal_lengths_lose_as_much_beside_scores_and_nothing_without(attention: Attention, halves: int) -> None:
    assert lost(replace(workload(), lengths_vary=False, attention=attention)) == halves * WHOLE_LOGITS // 2


@pytest.mark.parametrize(
    ("env", "grow"),
    [
        ({}, True),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128, expandable_segments:True"}, True),
    ],
)
def test_segments_of_a_run_grow_unless_its_job_takes_that_away(env: dict[str, str], grow: bool) -> None:
    assert workload(**env).segments_grow is grow


def test_lengths_vary_in_scripts_and_are_equal_in_the_built_in_trainer() -> None:
    trainer = workload_of(request(SHAPE, job(sequence_length=LENGTH)), DeviceKind.CUDA)

    assert workload().lengths_vary
    assert not trainer.lengths_vary


def test_a_virtual_gpu_has_no_such_allocator() -> None:
    asked = replace(job(sequence_length=LENGTH), env={"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"})

    assert workload_of(request(SHAPE, asked), DeviceKind.VIRTUAL).segments_grow
