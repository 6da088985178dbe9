"""The smallest remedy: it works, over random jobs that fit nowhere, and less of it would not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.core.marp_strategies import candidates, clusters, configs, requests
from tests.unit.core.marp_values import CALIBRATION, card, job, llama_config, node, request, virtual

from frenzy.core.memory.residuals import Residual, ResidualGroup, Residuals
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.marp import plan_candidates, remedies, smallest_remedy
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Checkpointing, ConstraintsSpec, Precision
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.units import GIB, MIB, parse_bytes, round_up


def feasible(found: tuple[Candidate, ...]) -> bool:
    return any(each.feasible for each in found)


def limited(of: PlanRequest, **limits: object) -> PlanRequest:
    constraints = dataclasses.replace(of.job.constraints, **limits)  # type: ignore[arg-type]
    return dataclasses.replace(of, job=dataclasses.replace(of.job, constraints=constraints))


def trained(of: PlanRequest, **training: object) -> PlanRequest:
    changed = dataclasses.replace(of.job.training, **training)  # type: ignore[arg-type]
    return dataclasses.replace(of, job=dataclasses.replace(of.job, training=changed))


HARDER: Final[dict[str, Callable[[PlanRequest], PlanRequest]]] = {
    "as it is": lambda of: of,
    "too little money": lambda of: limited(of, max_cost=1e-7),
    "too few GPUs": lambda of: limited(of, max_gpus=1),
    "one type only": lambda of: limited(of, gpu_types=("type0",)),
    "too soon": lambda of: dataclasses.replace(of, seconds_to_deadline=0.01),
    "with its date": lambda of: limited(
        dataclasses.replace(of, seconds_to_deadline=0.01), deadline="2027-01-31T18:00:00+00:00"
    ),
    "no checkpointing": lambda of: trained(of, gradient_checkpointing=Checkpointing.OFF),
    "a format that may not run": lambda of: trained(of, precision=Precision.FP16),
    "all at once": lambda of: trained(
        limited(dataclasses.replace(of, seconds_to_deadline=0.01), max_cost=1e-7, max_gpus=1, gpu_types=("type0",)),
        gradient_checkpointing=Checkpointing.OFF,
    ),
    "an enormous model": lambda of: dataclasses.replace(of, shape=model_shape(llama_config(4096, 40, 32, 60_000))),
}


@settings(max_examples=20)
@given(requests(), clusters(), st.sampled_from(sorted(HARDER)))
def test_applying_the_remedy_of_any_job_that_fits_nowhere_makes_a_plan_feasible(
    of: PlanRequest, there: Cluster, how: str
) -> None:
    asked = HARDER[how](of)
    assume(not feasible(candidates(asked, there)))
    remedy = remedies(asked, there, CALIBRATION)
    assert remedy is not None
    assert feasible(candidates(remedy.request, remedy.cluster))
    told = smallest_remedy(asked, there, CALIBRATION)
    assert told.remedy == remedy.sentence
    assert all(str(each) in remedy.sentence for each in remedy.changes)


@settings(max_examples=12)
@given(requests(), clusters(), st.sampled_from(["too little money", "too few GPUs", "too soon"]))
def test_less_than_the_remedy_would_not_do(of: PlanRequest, there: Cluster, how: str) -> None:
    asked = HARDER[how](of)
    assume(not feasible(candidates(asked, there)))
    remedy = remedies(asked, there, CALIBRATION)
    assert remedy is not None
    assume(len(remedy.changes) == 1)
    after = remedy.request
    less = {
        "constraints.max_cost": lambda: limited(after, max_cost=0.98 * (after.job.constraints.max_cost or 0.0)),
        "constraints.max_gpus": lambda: limited(after, max_gpus=(after.job.constraints.max_gpus or 0) - 1),
        "constraints.deadline": lambda: dataclasses.replace(
            after, seconds_to_deadline=(after.seconds_to_deadline or 0.0) - 1.001
        ),
    }
    if remedy.field in less:
        assert not feasible(candidates(less[remedy.field](), remedy.cluster))


def test_changes_of_the_job_come_before_changes_of_the_cluster_and_one_before_two() -> None:
    there = Cluster((virtual("small", 150), virtual("large", 4000)), (node("s", "small", 2), node("l", "large", 2)))
    of = request(
        model_shape(llama_config(384, 6, 6, 2000)),
        job(global_batch=4, constraints=ConstraintsSpec(gpu_types=("small",), max_gpus=1)),
    )
    remedy = remedies(of, there, CALIBRATION)
    assert remedy is not None
    assert [each.field for each in remedy.changes] == ["constraints.gpu_types"]
    assert remedy.sentence == "constraints.gpu_types: small -> small, large would fit."


def test_two_changes_are_told_together_when_no_single_one_is_enough() -> None:
    there = Cluster((virtual("small", 150, price=1.0), virtual("large", 4000, price=1.0)), (node("l", "large", 2),))
    of = request(
        model_shape(llama_config(384, 6, 6, 2000)),
        job(global_batch=4, constraints=ConstraintsSpec(gpu_types=("small",), max_cost=1e-9)),
    )
    remedy = remedies(of, there, CALIBRATION)
    assert remedy is not None
    assert {each.field for each in remedy.changes} == {"constraints.gpu_types", "constraints.max_cost"}
    assert " and " in remedy.sentence


def test_a_deadline_is_moved_to_a_date_not_away() -> None:
    there = Cluster((virtual("a", 2000),), (node("n", "a", 1),))
    remedy = remedies(HARDER["with its date"](request()), there, CALIBRATION)
    assert remedy is not None
    assert remedy.field == "constraints.deadline"
    assert remedy.changes[0].before == "2027-01-31T18:00:00+00:00"
    assert remedy.changes[0].after.startswith("2027-01-31T18:")
    assert remedy.request.job.constraints.deadline == remedy.changes[0].after


def test_host_memory_is_asked_for_where_only_offload_fits_the_card() -> None:
    shape = model_shape(llama_config(2048, 16, 16, 32000, max_position_embeddings=4096))
    of = request(shape, job(global_batch=1, sequence_length=64, precision=Precision.BF16))
    there = Cluster((card("c", 8),), (dataclasses.replace(node("n", "c", 1), host_memory_bytes=4 * GIB),))
    found = candidates(of, there)
    assert {each.reason.code for each in found} == {
        ReasonCode.INSUFFICIENT_GPU_MEMORY,
        ReasonCode.INSUFFICIENT_HOST_MEMORY,
    }
    remedy = remedies(of, there, CALIBRATION)
    assert remedy is not None
    assert remedy.field == "host memory of a node of c"
    assert remedy.changes[0].before == "4.0 GiB"
    before, after = there.nodes[0], remedy.cluster.nodes[0]
    assert after == dataclasses.replace(before, host_memory_bytes=after.host_memory_bytes)
    assert parse_bytes(remedy.changes[0].after) >= after.host_memory_bytes


def test_more_host_memory_is_asked_for_beside_a_larger_card_where_the_node_lacks_both() -> None:
    small = dataclasses.replace(node("n", "c", 1), host_memory_bytes=GIB)
    there = Cluster((card("c", 1),), (small,))
    shape = model_shape(llama_config(1024, 12, 8, 8000))
    remedy = remedies(request(shape, job(global_batch=1, sequence_length=8)), there, CALIBRATION)
    assert remedy is not None
    assert [each.field for each in remedy.changes] == ["memory of each c", "host memory of a node of c"]


def test_no_card_is_named_that_is_larger_than_any_of_the_catalogue() -> None:
    there = Cluster((card("c", 24),), (dataclasses.replace(node("n", "c", 1), host_memory_bytes=4000 * GIB),))
    # One sequence and one head, which no more GPUs would share.
    large, too_large = (
        request(
            model_shape(llama_config(8192, layers, 1, 32_000, num_key_value_heads=1)),
            job(global_batch=1, precision=Precision.BF16),
        )
        for layers in (10, 200)
    )

    found = remedies(large, there, CALIBRATION)
    assert found is not None
    assert [each.field for each in found.changes] == ["memory of each c"]
    assert remedies(too_large, there, CALIBRATION) is None


def test_gpus_are_added_as_nodes_like_those_there_are() -> None:
    of = request(model_shape(llama_config(1024, 12, 8, 8000)), job(global_batch=16, sequence_length=8))
    enough = next(gpus for gpus in (2, 4, 8, 16) if feasible(candidates(of, one_type(gpus))))
    there = one_type(enough // 2)
    remedy = remedies(of, there, CALIBRATION)
    assert remedy is not None
    assert remedy.field == "a in the cluster"
    added = remedy.cluster.nodes[len(there.nodes) :]
    assert len(added) == enough - enough // 2
    assert all(each.num_gpus == 1 for each in added)
    assert len({each.name for each in remedy.cluster.nodes}) == len(remedy.cluster.nodes)


def one_type(gpus: int) -> Cluster:
    return Cluster((virtual("a", 700),), tuple(node(f"n{index}", "a", 1) for index in range(gpus)))


@settings(max_examples=10)
@given(configs, clusters())
def test_a_family_that_the_trainer_does_not_run_has_no_remedy(config: dict[str, object], there: Cluster) -> None:
    strange = dataclasses.replace(request(model_shape(config)), shape=model_shape(config))
    unknown = dataclasses.replace(strange.shape, family="unheard-of")
    taught = dataclasses.replace(
        CALIBRATION,
        activations=tuple(
            dataclasses.replace(each, family="unheard-of")
            for each in CALIBRATION.activations
            if each.family == strange.shape.family
        ),
    )
    assert remedies(dataclasses.replace(strange, shape=unknown), there, taught) is None


@given(st.floats(1e-9, 1e9))
def test_rounding_up_never_falls_below_and_stays_close(value: float) -> None:
    assert value <= round_up(value) <= value * 1.02


@pytest.mark.parametrize(("value", "rounded"), [(0.0, 0.0), (0.001234, 0.00124), (12.34, 12.4), (1000.0, 1000.0)])
def test_rounding_up_to_three_digits(value: float, rounded: float) -> None:
    assert round_up(value) == pytest.approx(rounded)


def test_the_nearest_plan_and_its_remedy_name_the_same_number_of_the_same_gpus() -> None:
    """Not the first by name, where 128 comes before 32; nor a plan that more GPUs alone would not make fit."""
    there = Cluster((card("large", 24.0), card("small", 16.0)), (node("l", "large", 1), node("s", "small", 1)))
    asked = request(model_shape(llama_config(2048, 12, 16, 5000)), job(global_batch=128, sequence_length=512))
    found = plan_candidates(asked, there, CALIBRATION, "paper")
    beyond = [each.plan for each in found if each.reason.code is ReasonCode.NOT_ENOUGH_GPUS]
    assert {32, 128} <= {each.num_gpus for each in beyond}
    assert all(each.memory.required_bytes <= each.gpu_memory_bytes for each in beyond)
    reason = smallest_remedy(asked, there, CALIBRATION, "paper")
    assert "the nearest: 32xsmall-z1-mb4 needs 32 small; the cluster has 1." in reason.detail
    assert reason.remedy == "small in the cluster: 1 -> 32 would fit."


@pytest.mark.parametrize(("size", "gpus"), [(1, 64), (2, 32), (8, 8)])
def test_plans_of_the_paper_that_neither_the_cards_nor_their_number_suffice_for_lack_memory(
    size: int, gpus: int
) -> None:
    there = Cluster((card("a", 2.0),), (node("n", "a", 4),))
    shape, of = model_shape(llama_config(4096, 32, 32, 32000)), job(global_batch=64, sequence_length=512)
    (found,) = plan_candidates(request(shape, of, micro_batch_size=size), there, CALIBRATION, "paper")
    assert (found.reason.code, found.plan.num_gpus, found.plan.tp) == (ReasonCode.INSUFFICIENT_GPU_MEMORY, gpus, 1)
    reason = smallest_remedy(request(shape, of, micro_batch_size=size), there, CALIBRATION, "paper")
    assert reason.code is ReasonCode.INSUFFICIENT_GPU_MEMORY
    assert reason.remedy == "No change that was tried makes it fit: take a smaller model."
    assert f"the nearest: {found.plan.plan_id} needs" in reason.detail


def test_what_one_run_of_another_job_took_changes_no_remedy() -> None:
    """More micro-batches were looked at once anything was learned, and the one that needs the least among them."""
    there = Cluster((virtual("mid", 300),), (node("a", "mid", 2),))
    asked = request(model_shape(llama_config(4096, 32, 32, 32_000)), job(global_batch=8, sequence_length=1024))
    group = ResidualGroup(kind=DeviceKind.VIRTUAL, family="gpt2", gpu_type="mid", zero_stage=1, checkpointing=False)
    other = Residuals((Residual(group=group, predicted_bytes=100 * MIB, measured_bytes=105 * MIB),))
    after = dataclasses.replace(asked, residuals=other)
    alone = smallest_remedy(asked, there, CALIBRATION)
    assert smallest_remedy(after, there, CALIBRATION) == alone
    assert "-mb4" in alone.sentence, "it accumulates no gradients"
