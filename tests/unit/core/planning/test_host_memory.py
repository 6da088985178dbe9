"""Host memory of a node: one term for each thing that takes it, what a node must have, and what is said of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.marp_values import CALIBRATION, card, job, llama_config, node, request, virtual

from frenzy.core.memory.closed_form import PlanRow, predict_memory
from frenzy.core.memory.host_memory import loading_bytes, staging_bytes
from frenzy.core.memory.model_inputs import Workload
from frenzy.core.memory.model_states import StateRequest, state_elements
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.marp import plan_candidates, smallest_remedy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.core.values.units import GIB, MIB
from frenzy.core.values.workload import WorkloadSpec

MODEL = model_shape(llama_config(2048, 16, 16, 32000, max_position_embeddings=4096))
rows = st.builds(
    PlanRow,
    dp=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2]),
    zero_stage=st.sampled_from([1, 2, 3]),
    micro_batch=st.integers(1, 8),
    accumulation=st.integers(1, 8),
    checkpointing=st.booleans(),
    offload=st.booleans(),
)


def workload(kind: DeviceKind = DeviceKind.CUDA, **changes: Any) -> Workload:
    return dataclasses.replace(workload_of(request(MODEL, job(sequence_length=1024)), kind), **changes)


def predicted(row: PlanRow, num_ranks: int = 1, **changes: Any) -> MemoryPrediction:
    found = predict_memory(workload(**changes), grid_of([row]), CALIBRATION)
    assert found is not None
    return found.prediction(0, num_ranks)


@settings(max_examples=60)
@given(rows, st.booleans(), st.integers(1, 8))
def test_the_terms_sum_to_the_host_memory_of_any_number_of_ranks(row: PlanRow, pinned: bool, num_ranks: int) -> None:
    memory = predicted(row, num_ranks, pin_memory=pinned)
    assert memory.host_bytes == memory.host_bytes_of(num_ranks) == sum(t.bytes_of(num_ranks) for t in memory.host_terms)
    assert [each.num_bytes for each in memory.host_terms] == sorted(
        (each.num_bytes for each in memory.host_terms), reverse=True
    )


def test_there_is_a_term_for_each_thing_that_takes_host_memory() -> None:
    memory = predicted(PlanRow(2, 1, 2, 1, 4, True, offload=True), pin_memory=True)
    assert {each.name for each in memory.host_terms if not each.of_each_rank} == {
        "loading",
        "launcher and shared libraries",
    }
    assert {"process of the rank", "data workers", "optimizer states", "pinned buffers", "checkpoint staging"} <= {
        each.name for each in memory.host_terms if each.of_each_rank
    }


def test_without_offload_the_host_holds_nothing_of_the_optimizer() -> None:
    kept = predicted(PlanRow(2, 1, 2, 1, 4, True), pin_memory=True)
    assert {each.name for each in kept.host_terms} == {
        "process of the rank",
        "launcher and shared libraries",
        "loading",
        "data workers",
        "checkpoint staging",
    }


def test_a_script_gathers_what_it_trains_at_stage_3_to_save_its_model() -> None:
    script = dataclasses.replace(job(), workload=WorkloadSpec(command=("python",), framework="deepspeed"))
    asked = workload_of(request(MODEL, script), DeviceKind.CUDA)
    terms = [
        [
            each
            for each in predicted(PlanRow(8, 1, stage, 1, 1, True), gathers_model=of.gathers_model).host_terms
            if each.name == "model gathered to be saved"
        ]
        for of in (asked, workload())
        for stage in (2, 3)
    ]
    at_2, [at_3], trainers_at_2, trainers_at_3 = terms
    assert (at_2, trainers_at_2, trainers_at_3) == ([], [], [])
    assert not at_3.of_each_rank
    assert at_3.num_bytes == workload().weight_bytes * MODEL.num_parameters


def test_loading_takes_one_shard_and_buffers_however_many_ranks_read_it() -> None:
    assert loading_bytes(workload(largest_shard_bytes=2 * GIB)) == 2.5 * GIB
    assert loading_bytes(workload(largest_shard_bytes=0)) == 0
    small = 4 * MODEL.num_parameters
    assert small < 5e9
    assert loading_bytes(workload()) == small + GIB // 2
    large = model_shape(llama_config(4096, 32, 32, 32000))
    assert loading_bytes(workload(shape=large)) == 5e9 + GIB // 2


def test_random_weights_of_a_virtual_gpu_are_made_in_its_own_memory() -> None:
    assert workload(DeviceKind.VIRTUAL).largest_shard_bytes == 0
    assert workload(DeviceKind.CUDA).largest_shard_bytes is None


@given(rows)
def test_a_snapshot_of_a_checkpoint_holds_the_ranks_partition_once_more(row: PlanRow) -> None:
    grid, asked = grid_of([row]), workload()
    states = state_elements(StateRequest(MODEL, asked.trained, 0, 1000), grid.dp, grid.tp)
    written, copied = (
        staging_bytes(dataclasses.replace(asked, copies_checkpoints=each), grid, states)[0] for each in (False, True)
    )
    assert written == 8 * MIB
    assert copied - written == 12 * states.partition[0]


@given(rows)
def test_a_plan_says_what_its_ranks_save_without_a_copy_too(row: PlanRow) -> None:
    copied, uncopied = (predicted(row, copies_checkpoints=each) for each in (True, False))
    staged = next(each.num_bytes for each in copied.host_terms if each.name == "checkpoint staging")
    assert (copied.uncopied_bytes, uncopied.uncopied_bytes) == (0, staged - 8 * MIB)


def test_a_node_with_too_little_host_memory_is_refused_with_both_figures_and_the_largest_term() -> None:
    small = dataclasses.replace(node("n", "card", 2), host_memory_bytes=2 * GIB)
    there = Cluster((card("card", 80),), (small,))
    asked = request(MODEL, job(sequence_length=1024))
    short = [
        each
        for each in plan_candidates(asked, there, CALIBRATION)
        if each.reason.code is ReasonCode.INSUFFICIENT_HOST_MEMORY
    ]
    assert short
    assert not any(each.feasible for each in plan_candidates(asked, there, CALIBRATION))
    for each in short:
        assert "host memory on each node for its" in each.reason.detail
        assert "(2.0 GiB); its largest part loading" in each.reason.detail
    remedy = smallest_remedy(asked, there, CALIBRATION).remedy
    assert remedy is not None
    assert "host memory of a node of card" in remedy


def test_a_node_too_small_for_copies_of_checkpoints_is_offered_to_wait_for_them() -> None:
    of = job(sequence_length=1024)
    waiting = dataclasses.replace(of, checkpoint=dataclasses.replace(of.checkpoint, every_steps=10, background=False))
    copying = dataclasses.replace(waiting, checkpoint=dataclasses.replace(waiting.checkpoint, background=True))

    def there(host_bytes: int) -> Cluster:
        return Cluster((card("card", 80),), (dataclasses.replace(node("n", "card", 1), host_memory_bytes=host_bytes),))

    plans = plan_candidates(request(MODEL, waiting), there(1024 * GIB), CALIBRATION)
    least = there(min(each.plan.memory.host_bytes_of(1) for each in plans if each.feasible) + 64 * MIB)
    assert not any(each.feasible for each in plan_candidates(request(MODEL, copying), least, CALIBRATION))
    remedy = smallest_remedy(request(MODEL, copying), least, CALIBRATION).remedy
    assert remedy == "checkpoint.background: true -> false would fit."


@pytest.mark.parametrize("policy", ["closed-form", "paper"])
def test_each_plan_says_what_a_node_must_have_for_the_ranks_it_gets(policy: str) -> None:
    there = Cluster(
        (virtual("v", 6000), card("card", 80)), (node("a", "v", 2), node("b", "v", 2), node("c", "card", 2))
    )
    for each in plan_candidates(request(), there, CALIBRATION, policy):
        memory = each.plan.memory
        assert memory.host_bytes == memory.host_bytes_of(min(2, each.plan.num_gpus)) > 128 * MIB
