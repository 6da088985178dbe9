"""The optimizer in host memory: what leaves the card, what the host must have, when it is chosen, and the ladder."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.marp_values import CALIBRATION, card, job, llama_config, mixed_cluster, request

from frenzy.core.lifecycle.reschedule import Rung, ladder
from frenzy.core.memory.closed_form import MemoryTable, PlanRow, predict_memory
from frenzy.core.memory.host_offload import offload_times_s
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.marp import plan_candidates
from frenzy.core.planning.request import PlanRequest
from frenzy.core.runs.ledger import NextAttempt
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.resource_plan import Candidate, ResourcePlan
from frenzy.core.values.units import GIB

MODEL = model_shape(llama_config(2048, 16, 16, 32000, max_position_embeddings=4096))
SHORTAGE = Reason(code=ReasonCode.CUDA_OUT_OF_MEMORY, detail="out of memory")

rows = st.builds(
    PlanRow,
    dp=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2]),
    zero_stage=st.sampled_from([1, 2, 3]),
    micro_batch=st.integers(1, 8),
    accumulation=st.integers(1, 8),
    checkpointing=st.booleans(),
    offload=st.just(False),
)
precisions = st.sampled_from([Precision.FP32, Precision.BF16])


def asked(**training: Any) -> PlanRequest:
    return request(MODEL, job(global_batch=16, sequence_length=1024, **training))


def cluster(*, card_gib: float, host_gib: float = 512, nodes: int = 1) -> Cluster:
    node = Node(name="n", gpu_type="card", num_gpus=2, host_memory_bytes=round(host_gib * GIB), num_cpus=16)
    return Cluster((card("card", card_gib),), tuple(dataclasses.replace(node, name=f"n{i}") for i in range(nodes)))


def candidates(of: PlanRequest, there: Cluster) -> tuple[Candidate, ...]:
    return plan_candidates(of, there, CALIBRATION)


def feasible(found: tuple[Candidate, ...]) -> list[ResourcePlan]:
    return [each.plan for each in found if each.feasible]


def table(row: PlanRow, **workload: Any) -> MemoryTable:
    of = dataclasses.replace(workload_of(asked(), DeviceKind.CUDA), **workload)
    found = predict_memory(of, grid_of([row]), CALIBRATION)
    assert found is not None
    return found


def least_bytes(of: PlanRequest, there: Cluster, *, offload: bool) -> int:
    """Memory of the leanest plan on two GPUs."""
    workload = workload_of(of, DeviceKind.CUDA)
    plans = [PlanRow(2, 1, stage, 1, 8, True, offload) for stage in (1, 2, 3)]
    found = predict_memory(workload, grid_of(plans), CALIBRATION)
    assert found is not None
    return int(found.required_bytes.min())


@settings(max_examples=60)
@given(rows, precisions)
def test_offload_never_needs_more_of_the_card_and_moves_masters_and_states_to_the_host(
    row: PlanRow, precision: Precision
) -> None:
    kept, moved = table(row, precision=precision), table(row._replace(offload=True), precision=precision)
    assert moved.peak_bytes[0] <= kept.peak_bytes[0]
    masters_and_states = 12 * MODEL.parameters_per_rank(row.tp) / row.dp
    assert moved.host_bytes()[0] - kept.host_bytes()[0] >= masters_and_states
    on_card = {each.name: float(each.num_bytes[0]) for each in moved.moments[1].terms}
    assert on_card["fp32 master weights"] == on_card["optimizer states"] == 0.0


@given(rows)
def test_page_locked_buffers_take_powers_of_two(row: PlanRow) -> None:
    loose, locked = (table(row._replace(offload=True), pin_memory=pinned) for pinned in (False, True))
    assert loose.host_bytes()[0] <= locked.host_bytes()[0] <= 2 * loose.host_bytes()[0]


def test_the_host_holds_the_ranks_of_a_node_together() -> None:
    there = cluster(card_gib=2 * least_bytes(asked(), cluster(card_gib=1), offload=True) / GIB / 2)
    plans = [each for each in feasible(candidates(asked(), there)) if each.offload_optimizer]
    assert plans
    for plan in plans:
        row = PlanRow(plan.dp, plan.tp, plan.zero_stage, plan.micro_batch_size, plan.accumulation_steps,
                      plan.activation_checkpointing, offload=True)  # fmt: skip
        assert plan.memory.host_bytes == int(table(row).host_bytes(plan.num_gpus)[0])


def test_the_way_over_the_host_link_and_the_hosts_update_take_time_only_when_offloaded() -> None:
    workload = workload_of(asked(), DeviceKind.CUDA)
    plain, offloaded = PlanRow(2, 1, 2, 1, 8, False), PlanRow(2, 1, 2, 1, 8, False, offload=True)
    narrow, wide = offloaded, PlanRow(8, 1, 2, 1, 2, False, offload=True)
    trained = workload.trained.num_elements(workload.shape.num_layers)
    seconds = offload_times_s(trained, workload.weight_bytes, grid_of([plain, narrow, wide]), 8)
    assert seconds[0] == 0.0
    assert seconds[1] > seconds[2] > 0.0


def test_offload_is_listed_only_where_no_other_plan_of_that_width_fits() -> None:
    roomy = cluster(card_gib=79)
    assert not any(each.offload_optimizer for each in feasible(candidates(asked(), roomy)))
    tight = cluster(card_gib=1.02 * least_bytes(asked(), roomy, offload=True) / GIB)
    found = feasible(candidates(asked(), tight))
    assert found
    assert all(each.offload_optimizer for each in found)


def test_too_little_host_memory_refuses_with_what_a_node_must_have() -> None:
    card_gib = 1.02 * least_bytes(asked(), cluster(card_gib=1), offload=True) / GIB
    found = candidates(asked(), cluster(card_gib=card_gib, host_gib=4))
    assert not feasible(found)
    short = [each for each in found if each.reason.code is ReasonCode.INSUFFICIENT_HOST_MEMORY]
    assert short
    for each in short:
        assert each.plan.memory.host_bytes > 4 * GIB
        assert "host memory on each node" in each.reason.detail
        assert "its largest part" in each.reason.detail
        assert each.reason.remedy is not None
        assert "of host memory" in each.reason.remedy
    least = min(each.plan.memory.host_bytes for each in short) / GIB
    assert feasible(candidates(asked(), cluster(card_gib=card_gib, host_gib=least)))
    assert not feasible(candidates(asked(), cluster(card_gib=card_gib, host_gib=0.999 * least)))


def test_virtual_gpus_are_never_offered_offload() -> None:
    found = candidates(request(model_shape(llama_config(1024, 12, 8))), mixed_cluster())
    assert not any(each.plan.offload_optimizer for each in found)


def test_after_every_other_step_the_ladder_offloads_before_it_takes_other_gpus() -> None:
    """A plan in stage 3, checkpointed, one sequence at a time, runs short: only offload makes room on its GPUs."""
    with_room = cluster(card_gib=1.5 * least_bytes(asked(), cluster(card_gib=1), offload=False) / GIB, nodes=4)
    workload, row = workload_of(asked(), DeviceKind.CUDA), PlanRow(2, 1, 3, 1, 8, True)
    memory = predict_memory(workload, grid_of([row]), CALIBRATION)
    assert memory is not None
    previous = ResourcePlan(
        gpu_type="card",
        num_gpus=2,
        dp=2,
        tp=1,
        zero_stage=3,
        micro_batch_size=1,
        accumulation_steps=8,
        activation_checkpointing=True,
        memory=memory.prediction(0),
        gpu_memory_bytes=with_room.gpu_types[0].memory_bytes,
        step_time_s=1.0,
        samples_per_s=16.0,
        predicted_run_s=100.0,
        predicted_cost=0.0,
    )
    room = previous.gpu_memory_bytes - previous.memory.peak_allocated_bytes
    after = NextAttempt(
        attempt=2,
        reason=SHORTAGE,
        previous=previous,
        excluded_shapes=(previous.shape,),
        extra_bytes_per_gpu=room,
        forecast_extra_bytes_per_gpu=room,
    )
    again = dataclasses.replace(asked(), excluded_shapes=after.excluded_shapes, extra_bytes_per_gpu=room)
    rung = ladder(candidates(again, with_room), after)
    assert rung.rung is Rung.ZERO_STAGE
    assert all(each.offload_optimizer and each.num_gpus == 2 for each in rung.plans)


# other settings of DeepSpeed


def test_overlapped_reductions_take_a_second_bucket() -> None:
    row = PlanRow(4, 1, 2, 1, 1, True)
    plain, overlapped = table(row, overlap_comm=False), table(row)
    names = [each.name for each in plain.moments]
    backward = names.index("later backward layer")
    more = overlapped.moments[backward].total[0] - plain.moments[backward].total[0]
    bucket = workload_of(asked(), DeviceKind.CUDA).bucket_elements
    assert more == pytest.approx(2 * bucket, abs=8)


def test_gradients_of_micro_batches_are_summed_in_four_bytes_each() -> None:
    for stage, divided in ((1, 1), (2, 4), (3, 4)):
        row = PlanRow(4, 1, stage, 1, 2, True)
        moments = {each.name: each for each in table(row).moments}
        held = sum(
            float(each.num_bytes[0])
            for each in moments["loss"].terms
            if each.name in ("accumulated gradients", "gradient partition and bucket")
        )
        assert held >= 4 * MODEL.num_parameters / divided


@pytest.mark.parametrize("changes", [{"accumulation": 1}, {"offload": True}])
def test_what_is_not_summed_on_the_card_stays_in_two_bytes(changes: dict[str, Any]) -> None:
    of, rows = workload_of(asked(), DeviceKind.CUDA), [PlanRow(4, 1, 3, 1, 2, True)]
    assert of.gradient_bytes(grid_of(rows)).tolist() == [4.0]
    assert of.gradient_bytes(grid_of([row._replace(**changes) for row in rows])).tolist() == [2.0]


def test_gradients_of_a_given_width_have_it_whatever_the_accumulation() -> None:
    of = dataclasses.replace(workload_of(asked(), DeviceKind.CUDA), accumulation_bytes=4)
    rows = [PlanRow(4, 1, 3, 1, accumulation, offload) for accumulation in (1, 2) for offload in (False, True)]
    assert of.gradient_bytes(grid_of(rows)).tolist() == [4.0] * 4
