"""The search over random models, clusters and batches, against a slow one that tries every plan by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.marp_strategies import candidates, clusters, configs, requests
from tests.unit.core.marp_values import (
    CALIBRATION,
    card,
    job,
    llama_config,
    node,
    request,
)

from frenzy.core.lifecycle.reschedule import room_bytes
from frenzy.core.memory.closed_form import PlanRow, predict_memory
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import TypeFacts, gpu_facts
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Checkpointing, LoraSpec, Objective, Precision
from frenzy.core.values.resource_plan import Candidate, ResourcePlan


def every_plan(of: PlanRequest, facts: TypeFacts, most_gpus: int) -> list[ResourcePlan]:
    """Every plan on a type, from plain loops."""
    grid = grid_of(list(every_row(of, facts, most_gpus)))
    memory = predict_memory(facts.workload, grid, CALIBRATION)
    assert memory is not None
    return [
        facts.plan(row, memory.prediction(index, min(row.dp * row.tp, facts.gpus_per_node)), float(seconds))
        for index, (row, seconds) in enumerate(zip(grid.rows(), facts.step_times_s(grid), strict=True))
    ]


def every_row(of: PlanRequest, facts: TypeFacts, most_gpus: int) -> Iterator[PlanRow]:
    choice, batch = of.job.training.gradient_checkpointing, of.global_batch_size
    switches = {Checkpointing.ON: (True,), Checkpointing.OFF: (False,)}.get(choice, (False, True))
    offload = (False,) if facts.gpu.kind is DeviceKind.VIRTUAL else (False, True)
    for tp, dp, micro in product(range(1, of.shape.num_heads + 1), range(1, most_gpus + 1), range(1, batch + 1)):
        fits = of.shape.num_heads % tp == 0 and of.shape.num_key_value_heads % tp == 0 and dp * tp <= most_gpus
        if not fits or batch % (dp * micro):
            continue
        for stage, checkpointing, to_host in product((1, 2, 3) if dp > 1 else (1,), switches, offload):
            yield PlanRow(dp, tp, stage, micro, batch // dp // micro, checkpointing, to_host)


def has_memory(of: PlanRequest, facts: TypeFacts, plan: ResourcePlan) -> bool:
    fits = plan.memory.required_bytes + of.extra_bytes_per_gpu <= facts.gpu.memory_bytes
    return fits and plan.memory.host_bytes <= facts.host_bytes_per_node


def runnable(of: PlanRequest, there: Cluster) -> list[ResourcePlan]:
    """All plans that could run; those that offload only where no other one of their width could."""
    found = []
    for facts in gpu_facts(of, there, CALIBRATION):
        plans = [
            plan
            for plan in every_plan(of, facts, facts.num_gpus)
            if has_memory(of, facts, plan) and facts.refusal(plan) is None
        ]
        without = {plan.num_gpus for plan in plans if not plan.offload_optimizer}
        found += [plan for plan in plans if not (plan.offload_optimizer and plan.num_gpus in without)]
    return found


@settings(max_examples=60, deadline=None)
@given(requests(), clusters())
def test_no_plan_outside_the_list_beats_the_first_and_none_in_it_is_refused(of: PlanRequest, there: Cluster) -> None:
    listed = [each.plan for each in candidates(of, there) if each.feasible]
    slow = runnable(of, there)
    assert bool(listed) == bool(slow)
    by_cost = of.job.objective is Objective.COST
    for plan in slow:
        best = listed[0]
        score, first = (
            (plan.cost_order, best.cost_order)
            if by_cost
            else ((False, plan.predicted_run_s), (False, best.predicted_run_s))
        )
        assert score >= (first[0], first[1] * (1 - 1e-9))
    assert {each.shape for each in listed} <= {each.shape for each in slow}


@settings(max_examples=40, deadline=None)
@given(requests(), clusters())
def test_every_plan_that_could_run_is_listed_where_all_are_asked_for(of: PlanRequest, there: Cluster) -> None:
    usual, everything = candidates(of, there), candidates(dataclasses.replace(of, every_plan=True), there)

    fitting = [each.plan.shape for each in everything if each.feasible]
    assert sorted(fitting, key=str) == sorted((each.shape for each in runnable(of, there)), key=str)
    if fitting:
        assert everything[0].plan == usual[0].plan
    refused = [each.plan.shape for each in everything if not each.feasible]
    assert len(set(refused)) == len(refused)
    inside = {each.plan.shape for each in usual if not each.feasible and each.plan.num_gpus <= most_of(each, there)}
    assert inside <= set(refused)


def test_a_kernel_that_one_card_lacks_keeps_that_type_out_and_no_other() -> None:
    old, new = (
        dataclasses.replace(card(name, 24), compute_capability=capability)
        for name, capability in (("old", "7.5"), ("new", "9.0"))
    )
    there = Cluster(gpu_types=(old, new), nodes=(node("a", "old", 2), node("b", "new", 2)))
    asked = job(sequence_length=128, precision=Precision.BF16, attention="flash_attention_2")
    of = dataclasses.replace(request(model_shape(llama_config()), asked), every_plan=True)

    found = candidates(of, there)
    assert {each.plan.gpu_type for each in found if each.feasible} == {"new"}
    assert [each.plan.shape for each in found if each.feasible] != []
    refused = {each.reason.code for each in found if each.plan.gpu_type == "old"}
    assert refused == {ReasonCode.PREDICTED_NOT_LAUNCHABLE}
    for facts in gpu_facts(of, there, CALIBRATION):
        plans = [each.plan for each in found if each.plan.gpu_type == facts.gpu.name and each.feasible]
        assert all(facts.refusal(plan) is None for plan in plans)


def most_of(each: Candidate, there: Cluster) -> int:
    """GPUs of the candidate's type."""
    return sum(node.num_gpus for node in there.nodes if node.gpu_type == each.plan.gpu_type)


@settings(max_examples=40, deadline=None)
@given(requests(), clusters())
def test_what_is_left_out_is_no_better_in_anything_than_something_listed(of: PlanRequest, there: Cluster) -> None:
    listed = [each.plan for each in candidates(of, there) if each.feasible]
    for plan in runnable(of, there):
        assert any(
            each.gpu_type == plan.gpu_type
            and each.num_gpus <= plan.num_gpus
            and plan.tp % each.tp == 0
            and each.step_time_s <= plan.step_time_s * (1 + 1e-9)
            and each.memory.host_bytes <= plan.memory.host_bytes
            for each in listed
        )


@settings(max_examples=40, deadline=None)
@given(requests(), clusters(), st.data())
def test_after_a_shortage_no_plan_with_clearly_more_room_is_left_out(
    of: PlanRequest, there: Cluster, data: st.DataObject
) -> None:
    first = [each.plan for each in candidates(of, there) if each.feasible]
    if not first:
        return
    failed = data.draw(st.sampled_from(first))
    again = dataclasses.replace(of, excluded_shapes=(failed.shape,))
    listed = [each.plan for each in candidates(again, there) if each.feasible]
    assert failed.shape not in {each.shape for each in listed}
    for plan in runnable(again, there):
        if (plan.gpu_type, plan.num_gpus, plan.tp) == (failed.gpu_type, failed.num_gpus, failed.tp):
            assert plan in listed
            continue
        clearly = plan.gpu_memory_bytes / 32
        assert any(
            each.gpu_type == plan.gpu_type
            and each.num_gpus <= plan.num_gpus
            and room_bytes(each) + each.memory.peak_allocated_bytes - each.memory.required_bytes + clearly
            >= room_bytes(plan) + plan.memory.peak_allocated_bytes - plan.memory.required_bytes
            for each in listed
        )


@settings(max_examples=60, deadline=None)
@given(requests(), clusters())
def test_every_type_and_count_has_a_plan_or_the_reason_why_not(of: PlanRequest, there: Cluster) -> None:
    """Or a plan of fewer GPUs on that type is at least as good."""
    found = candidates(of, there)
    told = {(each.plan.gpu_type, each.plan.num_gpus) for each in found}
    narrowest = {
        gpu.name: min(
            (each.plan.num_gpus for each in found if each.feasible and each.plan.gpu_type == gpu.name), default=0
        )
        for gpu in there.gpu_types
    }
    for facts in gpu_facts(of, there, CALIBRATION):
        plans = (plan for plan in every_plan(of, facts, facts.num_gpus) if plan.tp <= facts.gpus_per_node)
        for width in {plan.num_gpus for plan in plans}:
            covered = 0 < narrowest[facts.gpu.name] < width
            assert covered or (facts.gpu.name, width) in told


@settings(max_examples=60, deadline=None)
@given(requests(), clusters())
def test_each_refusal_is_the_plans_own(of: PlanRequest, there: Cluster) -> None:
    by_name = {each.gpu.name: each for each in gpu_facts(of, there, CALIBRATION)}
    for each in candidates(of, there):
        facts, plan = by_name[each.plan.gpu_type], each.plan
        assert plan.global_batch_size == of.global_batch_size
        assert sum(term.num_bytes for term in plan.memory.terms) == plan.memory.peak_allocated_bytes
        if each.feasible:
            assert facts.refusal(plan) is None
            assert has_memory(of, facts, plan)
            continue
        assert each.reason.detail
        by_memory = each.reason.code in (ReasonCode.INSUFFICIENT_GPU_MEMORY, ReasonCode.INSUFFICIENT_HOST_MEMORY)
        assert by_memory != (facts.refusal(plan) is not None)
        assert not (by_memory and has_memory(of, facts, plan))


@settings(max_examples=20, deadline=None)
@given(configs, st.sampled_from([8, 24]), clusters())
def test_adapters_are_searched_like_whole_models(config: dict[str, object], batch: int, there: Cluster) -> None:
    of = request(model_shape(config), job(global_batch=batch, lora=LoraSpec(rank=4)))
    listed = [each.plan for each in candidates(of, there) if each.feasible]
    slow = runnable(of, there)
    assert bool(listed) == bool(slow)
    assert all(each.predicted_run_s >= listed[0].predicted_run_s * (1 - 1e-9) for each in slow)
