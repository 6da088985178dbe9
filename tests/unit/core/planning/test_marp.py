"""MARP's promises: the global batch kept, nothing over budget, complete, deterministic, explained."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.marp_values import (
    CALIBRATION,
    card,
    gpt2_config,
    job,
    llama_config,
    mixed_cluster,
    node,
    request,
    virtual,
)

from frenzy.adapters.k8s.inventory.products import cards_sold_as
from frenzy.core.memory.activation_coefficients import Attention
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.marp import plan_candidates, remedies, smallest_remedy
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError, ReasonCode
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.job import Checkpointing, ConstraintsSpec, ModelSpec, Objective, Precision
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.units import format_bytes

batches = st.sampled_from([1, 2, 6, 7, 16, 24, 60])
lengths = st.sampled_from([32, 128, 512])
objectives = st.sampled_from(list(Objective))
shapes = st.sampled_from([model_shape(each) for each in (gpt2_config(), llama_config(), llama_config(256, 6, 8))])


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    of = job(
        global_batch=draw(batches),
        sequence_length=draw(lengths),
        objective=draw(objectives),
        precision=draw(st.sampled_from([Precision.FP32, Precision.BF16])),
        gradient_checkpointing=draw(st.sampled_from(list(Checkpointing))),
    )
    return request(draw(shapes), of)


def candidates_of(asked: PlanRequest, cluster: Cluster | None = None, policy: str = "closed-form") -> list[Candidate]:
    return list(plan_candidates(asked, cluster or mixed_cluster(), CALIBRATION, policy))


def feasible(candidates: list[Candidate]) -> list[Candidate]:
    return [each for each in candidates if each.feasible]


@settings(max_examples=40, deadline=None)
@given(requests())
def test_every_plan_keeps_the_global_batch_exactly(asked: PlanRequest) -> None:
    for each in candidates_of(asked):
        assert each.plan.global_batch_size == asked.global_batch_size
        assert each.plan.num_gpus == each.plan.dp * each.plan.tp
        assert each.plan.zero_stage in (1, 2, 3)


@settings(max_examples=40, deadline=None)
@given(requests())
def test_no_feasible_plan_needs_more_than_its_gpu_has_or_more_gpus_than_there_are(asked: PlanRequest) -> None:
    cluster = mixed_cluster()
    for each in feasible(candidates_of(asked, cluster)):
        assert each.plan.memory.required_bytes <= cluster.types_by_name[each.plan.gpu_type].memory_bytes
        assert each.plan.num_gpus <= cluster.num_gpus_by_type[each.plan.gpu_type]


@settings(max_examples=20, deadline=None)
@given(requests())
def test_the_same_question_has_the_same_answer(asked: PlanRequest) -> None:
    assert candidates_of(asked) == candidates_of(asked)


@settings(max_examples=40, deadline=None)
@given(requests())
def test_ranks_are_consecutive_and_in_the_objectives_order_and_all_have_a_reason(asked: PlanRequest) -> None:
    found = candidates_of(asked)
    ranked = feasible(found)
    assert [each.rank for each in ranked] == list(range(1, len(ranked) + 1))
    assert found[: len(ranked)] == ranked
    by_cost = asked.job.objective is Objective.COST
    scores = [each.plan.cost_order if by_cost else (False, each.plan.predicted_run_s) for each in ranked]
    assert scores == sorted(scores)
    assert all(each.reason.detail for each in found)
    assert [each.reason.code for each in ranked[:1]] == [ReasonCode.BEST_PLAN][: len(ranked)]


@settings(max_examples=40, deadline=None)
@given(requests())
def test_no_plan_is_listed_twice(asked: PlanRequest) -> None:
    ids = [each.plan.plan_id for each in feasible(candidates_of(asked))]
    assert len(ids) == len(set(ids))


def test_a_refused_plan_says_by_how_much_and_which_term_weighs_most() -> None:
    found = candidates_of(request(model_shape(llama_config(1024, 12, 8))))
    refused = [each for each in found if each.reason.code is ReasonCode.INSUFFICIENT_GPU_MEMORY]
    assert refused
    for each in refused:
        assert f"more than the {format_bytes(each.plan.gpu_memory_bytes)} of" in each.reason.sentence
        assert each.plan.memory.terms[0].name in each.reason.sentence
        assert each.reason.remedy is not None
        assert each.rank is None


def test_a_network_that_nobody_described_is_named_where_a_plan_could_cross_it() -> None:
    gpu, nodes = card("h", 80), tuple(node(f"h{i}", "h", 2) for i in range(2))
    said = "Nodes are taken to be joined by 10 Gbit/s: node_link of h is not given."
    asked = request(model_shape(llama_config()))
    assert said in candidates_of(asked, Cluster((gpu,), nodes))[0].reason.detail
    one_node = candidates_of(asked, Cluster((gpu,), nodes[:1]))
    described = candidates_of(asked, Cluster((replace(gpu, node_link_bytes_per_s=50e9),), nodes))
    virtual_ones = candidates_of(asked)
    for each in (*one_node, *described, *virtual_ones):
        assert "node_link" not in each.reason.detail


def test_memory_seen_to_grow_must_have_room() -> None:
    asked = request()
    extra = 120 * 1024**2
    for each in feasible(candidates_of(dataclasses.replace(asked, extra_bytes_per_gpu=extra))):
        assert each.plan.memory.required_bytes + extra <= each.plan.gpu_memory_bytes


def test_a_failed_plan_is_never_offered_again_but_smaller_micro_batches_of_its_width_are() -> None:
    asked = request()
    first = feasible(candidates_of(asked))[0].plan
    again = candidates_of(dataclasses.replace(asked, excluded_shapes=(first.shape,)))
    assert first.shape not in {each.plan.shape for each in feasible(again)}
    codes = {each.plan.shape: each.reason.code for each in again}
    assert codes[first.shape] is ReasonCode.EXCLUDED_AFTER_FAILURE
    same_width = [
        each.plan
        for each in feasible(again)
        if (each.plan.gpu_type, each.plan.num_gpus, each.plan.tp) == (first.gpu_type, first.num_gpus, first.tp)
    ]
    sizes = {each.micro_batch_size for each in same_width if each.zero_stage == first.zero_stage}
    assert sizes >= {size for size in (1, 2) if size < first.micro_batch_size}
    assert {each.activation_checkpointing for each in same_width} == {False, True}


def test_constraints_leave_types_and_counts_out_with_their_names() -> None:
    limits = ConstraintsSpec(gpu_types=("a",), max_gpus=2)
    found = candidates_of(request(of=job(constraints=limits)))
    assert {(each.plan.gpu_type, each.plan.num_gpus) for each in feasible(found)} <= {("a", 1), ("a", 2)}
    assert feasible(found)
    refused = {each.reason.code for each in found if not each.feasible}
    assert ReasonCode.GPU_TYPE_NOT_ALLOWED in refused


def test_a_type_that_the_cluster_does_not_have_is_told_beside_those_it_has() -> None:
    cluster = mixed_cluster()
    asked = request(of=job(constraints=ConstraintsSpec(gpu_types=("a100",))))
    refusal = smallest_remedy(asked, cluster, CALIBRATION)
    assert refusal.code is ReasonCode.GPU_TYPE_NOT_ALLOWED
    assert f"The cluster has {', '.join(cluster.types_by_name)}, and no a100." in refusal.detail


@pytest.mark.parametrize("policy", ["closed-form", "paper"])
@pytest.mark.parametrize(
    ("written", "meant"), [("RTX4090", "rtx-4090"), ("NVIDIA H100 80GB HBM3", "h100-80"), ("A100-SXM4-80GB", "a100-80")]
)
def test_a_type_may_be_written_as_people_and_drivers_write_cards(policy: str, written: str, meant: str) -> None:
    names = ("rtx-4090", "h100-80", "a100-80", "t4")
    types = tuple(dataclasses.replace(virtual("c", 700, 60, 0.5), name=name) for name in names)
    cluster = Cluster(types, tuple(node(name, name, 2) for name in names))
    asked = request(of=job(constraints=ConstraintsSpec(gpu_types=(written,))))
    asked = dataclasses.replace(asked, sold_as=cards_sold_as)

    found = plan_candidates(asked, cluster, CALIBRATION, policy)

    assert {each.plan.gpu_type for each in feasible(found)} == {meant}
    assert smallest_remedy(asked, cluster, CALIBRATION, policy).code is ReasonCode.BEST_PLAN


def test_gpus_that_cannot_work_together_are_offered_one_by_one() -> None:
    alone = dataclasses.replace(virtual("slice", 700), max_gpus_per_job=1)
    found = candidates_of(request(), Cluster((alone,), (node("n", "slice", 8),)))
    assert {each.plan.num_gpus for each in feasible(found)} == {1}
    refused = [each.reason for each in found if each.plan.num_gpus == 2]
    assert {each.code for each in refused} == {ReasonCode.PREDICTED_NOT_LAUNCHABLE}
    assert all("only 1 can work together" in each.sentence for each in refused)


def test_cost_and_deadline_limits_refuse_with_what_would_do() -> None:
    costly = candidates_of(request(of=job(constraints=ConstraintsSpec(max_cost=1e-9))))
    assert not feasible(costly)
    assert {each.reason.code for each in costly} >= {ReasonCode.OVER_MAX_COST}
    late = candidates_of(request(seconds_to_deadline=0.001))
    assert not feasible(late)
    assert {each.reason.code for each in late} >= {ReasonCode.OVER_DEADLINE}


def cluster_of(*types: GpuType) -> Cluster:
    return Cluster(types, tuple(node(f"n{index}", each.name, 2) for index, each in enumerate(types)))


def by_cost(**constraints: Any) -> PlanRequest:
    return request(of=job(objective=Objective.COST, constraints=ConstraintsSpec(**constraints)))


def test_by_cost_a_type_without_a_price_comes_after_all_whose_cost_is_known() -> None:
    free, dear, unknown = (
        virtual("free", 700, price=0.0),
        virtual("dear", 700, price=9.0),
        virtual("new", 700, price=None),
    )
    ranked = feasible(candidates_of(by_cost(), cluster_of(unknown, dear, free)))
    assert list(dict.fromkeys(each.plan.gpu_type for each in ranked)) == ["free", "dear", "new"]
    assert "unknown cost come last: the cluster file has no price_per_hour of new." in ranked[0].reason.detail
    last = ranked[-1]
    assert (last.plan.predicted_cost, last.reason.code) == (None, ReasonCode.NO_PRICE)
    assert {each.plan.predicted_cost for each in ranked if each.plan.gpu_type == "free"} == {0.0}


def test_without_any_price_plans_rank_by_gpu_hours_and_say_so() -> None:
    ranked = feasible(candidates_of(by_cost(), cluster_of(virtual("a", 700, price=None), virtual("b", 700, 60, None))))
    hours = [each.plan.gpu_hours for each in ranked]
    assert hours == sorted(hours)
    assert ranked[0].reason.detail.startswith("Fewest GPU-hours of ")
    assert "Ranked by GPU-hours: the cluster file has no price_per_hour of b, a." in ranked[0].reason.detail
    assert {each.reason.code for each in ranked[1:]} <= {ReasonCode.COSTLIER_PLAN, ReasonCode.SLOWER_PLAN}
    assert "cost" not in ranked[0].reason.detail


def test_a_limit_of_cost_refuses_plans_whose_cost_nobody_knows() -> None:
    there = cluster_of(virtual("a", 700, price=0.1), virtual("new", 700, price=None))
    found = candidates_of(by_cost(max_cost=1e6), there)
    assert {each.plan.gpu_type for each in feasible(found)} == {"a"}
    refused = [each for each in found if each.plan.gpu_type == "new" and not each.feasible]
    assert {each.reason.code for each in refused} >= {ReasonCode.NO_PRICE}
    remedy = next(each.reason.remedy for each in refused if each.reason.code is ReasonCode.NO_PRICE)
    assert remedy == "Give new its price_per_hour, 0 if it is free."


def test_a_limit_of_cost_goes_where_no_price_is_known() -> None:
    there = cluster_of(virtual("new", 700, price=None))
    remedy = smallest_remedy(by_cost(max_cost=5.0), there, CALIBRATION).remedy
    assert remedy is not None
    assert "constraints.max_cost: 5 -> none" in remedy


def test_tensor_parallel_is_offered_only_where_the_trainer_can_split_the_family() -> None:
    cluster = Cluster((virtual("a", 400),), (node("a0", "a", 4),))
    llama = feasible(candidates_of(request(model_shape(llama_config())), cluster))
    gpt2 = candidates_of(request(model_shape(gpt2_config())), cluster)
    assert all(each.plan.tp == 1 for each in feasible(gpt2))
    assert all(each.plan.tp in (1, 2) for each in llama)


def test_half_precision_is_not_offered_on_virtual_gpus() -> None:
    found = candidates_of(request(of=job(precision=Precision.FP16)))
    assert not feasible(found)
    assert {each.reason.code for each in found} == {ReasonCode.PREDICTED_NOT_LAUNCHABLE}


def test_a_model_without_coefficients_is_refused_not_guessed() -> None:
    bare = dataclasses.replace(CALIBRATION, activations=())
    with pytest.raises(PermanentError) as caught:
        plan_candidates(request(), mixed_cluster(), bare)
    assert caught.value.reason.code is ReasonCode.MODEL_NOT_SUPPORTED


def test_a_family_without_coefficients_for_the_attention_asked_is_refused_with_the_one_that_has_them() -> None:
    eager = tuple(each for each in CALIBRATION.activations if each.attention == "eager")
    sets = (*eager, *(dataclasses.replace(each, attention=Attention.FLASH_3) for each in eager))
    with pytest.raises(PermanentError) as caught:
        plan_candidates(request(), mixed_cluster(), dataclasses.replace(CALIBRATION, activations=sets))
    assert caught.value.reason.remedy == "training.attention: sdpa -> eager, which is covered."


def test_sequences_longer_than_the_models_positions_are_refused_with_the_length_that_would_do() -> None:
    with pytest.raises(PermanentError, match="1024 positions") as caught:
        plan_candidates(request(of=job(sequence_length=2048)), mixed_cluster(), CALIBRATION)
    assert "2048 -> 1024" in (caught.value.reason.remedy or "")


@pytest.mark.parametrize(
    ("tokenizer", "known_tokens", "tokens"),
    [("byte", None, 257), ("byte", 50_257, 257), ("train", None, 4096), ("a-folder", 300, 300)],
)
def test_a_vocabulary_without_all_tokens_of_the_tokenizer_is_refused(
    tokenizer: str, known_tokens: int | None, tokens: int
) -> None:
    given = replace(job(), model=ModelSpec(path="m", tokenizer=tokenizer))
    enough, short = (model_shape(gpt2_config(vocab=each)) for each in (tokens, tokens - 1))
    with pytest.raises(PermanentError, match=f"is {tokens - 1}, but model.tokenizer '{tokenizer}'") as caught:
        plan_candidates(request(short, given, known_tokens=known_tokens), mixed_cluster(), CALIBRATION)
    assert f"{tokens - 1} -> {tokens}" in (caught.value.reason.remedy or "")
    assert plan_candidates(request(enough, given, known_tokens=known_tokens), mixed_cluster(), CALIBRATION)


@pytest.mark.parametrize("tokenizer", ["model", "a-folder"])
def test_a_tokenizer_of_unknown_size_is_left_to_the_workers(tokenizer: str) -> None:
    given = replace(job(), model=ModelSpec(path="m", tokenizer=tokenizer))
    assert plan_candidates(request(model_shape(gpt2_config(vocab=10)), given), mixed_cluster(), CALIBRATION)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PermanentError, match="closed-form, paper"):
        plan_candidates(request(), mixed_cluster(), CALIBRATION, "guess")


# the paper's policy


def test_the_papers_formula_by_hand() -> None:
    """GPT-2 small, t = 1: W = 50257*768 + 12*(12*768^2 + 13*768) = 123.65M; 20 W + s b h l (34 + 5 a s / h)."""
    shape = model_shape(gpt2_config(768, 12, 12, 50257))
    asked = request(shape, job(global_batch=8, sequence_length=1024))
    cluster = Cluster((virtual("big", 10**7),), (node("n", "big", 8),))
    found = {each.plan.plan_id: each.plan for each in feasible(candidates_of(asked, cluster, "paper"))}
    weights = 50257 * 768 + 12 * (12 * 768**2 + 13 * 768)
    for dp in (1, 2, 4, 8):
        activations = 1024 * (8 / dp) * 768 * 12 * (10 + 24 + 5 * 12 * 1024 / 768)
        plan = found[f"{dp}xbig-z1-mb{8 // dp}"]
        assert plan.memory.peak_allocated_bytes == round(20 * weights + activations)


def test_the_papers_order_is_by_gpus_then_memory() -> None:
    plans = [each.plan for each in feasible(candidates_of(request(), policy="paper"))]
    keys = [(plan.num_gpus, plan.memory.peak_allocated_bytes) for plan in plans]
    assert keys == sorted(keys)
    assert {plan.dp for plan in plans} <= {1, 2, 4, 8, 16}
    assert {plan.accumulation_steps for plan in plans} == {1}


# remedies


LONG = model_shape(llama_config(layers=12, max_position_embeddings=100_000))
IMPOSSIBLE = {
    "the sequence is too long": (
        request(LONG, job(sequence_length=90_000, global_batch=1)),
        "data.sequence_length",
    ),
    "the user allows too few GPUs": (
        request(
            model_shape(llama_config(384, 6, 6, 2000)),
            job(global_batch=4, constraints=ConstraintsSpec(gpu_types=("a",), max_gpus=1)),
        ),
        "constraints",
    ),
    "checkpointing is off": (
        request(
            LONG,
            job(global_batch=1, sequence_length=8000, gradient_checkpointing=Checkpointing.OFF),
        ),
        "training.gradient_checkpointing",
    ),
    "the model is too large for any card": (
        request(model_shape(llama_config(2048, 24, 16, 32000)), job(global_batch=1)),
        "memory of each",
    ),
    "too little money": (request(of=job(constraints=ConstraintsSpec(max_cost=1e-6))), "constraints.max_cost"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_applying_the_smallest_remedy_makes_a_plan_feasible(case: str) -> None:
    asked, field = IMPOSSIBLE[case]
    cluster = mixed_cluster()
    assert not feasible(candidates_of(asked, cluster))
    remedy = remedies(asked, cluster, CALIBRATION)
    assert remedy is not None
    assert remedy.field.startswith(field)
    assert feasible(candidates_of(remedy.request, remedy.cluster))
    reason = smallest_remedy(asked, cluster, CALIBRATION)
    assert reason.remedy == remedy.sentence
    assert reason.detail.startswith("No plan fits")


def test_a_longer_sequence_than_the_remedys_does_not_fit() -> None:
    asked, _ = IMPOSSIBLE["the sequence is too long"]
    remedy = remedies(asked, mixed_cluster(), CALIBRATION)
    assert remedy is not None
    longer = remedy.request.sequence_length + 8
    data = dataclasses.replace(asked.job.data, sequence_length=longer)
    assert not feasible(candidates_of(dataclasses.replace(asked, job=dataclasses.replace(asked.job, data=data))))


def test_a_cluster_without_gpus_says_so() -> None:
    reason = smallest_remedy(request(), Cluster((), ()), CALIBRATION)
    assert reason.code is ReasonCode.NEVER_FITS


def test_plan_ids_of_all_policies_are_unique_among_feasible_plans() -> None:
    for policy, asked in itertools.product(("closed-form", "paper"), (request(), request(model_shape(llama_config())))):
        ids = [each.plan.plan_id for each in feasible(candidates_of(asked, policy=policy))]
        assert len(ids) == len(set(ids))
