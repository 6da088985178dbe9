"""Each single change that makes a job fit, or that mends a plan which ran out of memory: alone, enough, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.core.marp_values import CALIBRATION, job, llama_config, request

from frenzy.core.models.shape import model_shape
from frenzy.core.planning.asked_cards import nodes_of_cards, plan_asked_for
from frenzy.core.planning.grid import divisors
from frenzy.core.planning.job_remedies import Effect
from frenzy.core.planning.marp import changes_of_plan, failed_plan, mending_changes, plan_candidates
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.single_changes import SingleChange
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import Checkpointing, LoraSpec, ModelSpec, Precision
from frenzy.core.values.resource_plan import PlanShape
from frenzy.core.values.units import GIB, format_bytes
from frenzy.core.values.workload import WorkloadSpec

EIGHT = model_shape(
    llama_config(4096, 32, 32, 128256, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=8192)
)


def asked(length: int = 2048, global_batch: int = 16, **training: Any) -> PlanRequest:
    """Of 8B weights that there are already."""
    of = job(global_batch=global_batch, sequence_length=length, precision=Precision.BF16, **training)
    return request(EIGHT, replace(of, model=ModelSpec(hub_id="a/model")))


def named(plan: str) -> tuple[Cluster, PlanShape]:
    found = plan_asked_for(plan)
    assert found is not None
    return found


def changes_of(plan: str, of: PlanRequest) -> tuple[SingleChange, ...]:
    there, failed = named(plan)
    plan = failed_plan(failed, of, there, CALIBRATION)
    return changes_of_plan(plan, there, CALIBRATION)


def mended(plan: str, of: PlanRequest) -> dict[str, SingleChange]:
    """By what they change."""
    return {each.changes[0].field: each for each in changes_of(plan, of)}


def fits(shape: PlanShape, of: PlanRequest, there: Cluster) -> bool:
    return any(each.feasible for each in plan_candidates(replace(of, only_shapes=(shape,)), there, CALIBRATION))


SETTINGS = {
    "ZeRO stage": "zero_stage",
    "micro-batch": "micro_batch_size",
    "activation checkpointing": "activation_checkpointing",
    "optimizer states": "offload_optimizer",
    "tensor parallel": "tp",
    "GPUs": "num_gpus",
}


@pytest.mark.parametrize(
    "plan",
    [
        "8xa100-40-z2-mb1",
        "4xa100-80-z3-mb2",
        "1xa100-80-z1-mb1-ckpt",
        "2xh100-z1-mb4-tp2",
        "1xh100-z1-mb4",
        "4xh100-z1-mb1",
    ],
)
def test_each_change_of_a_plan_tells_every_setting_that_differs_and_has_room_for_what_the_plan_took(plan: str) -> None:
    of = asked(length=4096)
    there, failed = named(plan)
    extra = failed_plan(failed, of, there, CALIBRATION).after.extra_bytes_per_gpu
    found = mended(plan, of)

    assert found
    for each in found.values():
        before, after = vars_of(failed), vars_of(each.plan.shape)
        told = {SETTINGS[change.field] for change in each.changes if change.field in SETTINGS}
        assert {key for key in before if before[key] != after[key]} == told
        assert len(told) <= 1 or each.changes[0].field == "GPUs"
        assert each.plan.memory.required_bytes + extra <= each.plan.gpu_memory_bytes


@pytest.mark.parametrize(
    ("plan", "cards", "besides"),
    [
        ("1xa100-80-z1-mb2-ckpt", "8", []),  # four would do with stage 2
        ("1xh100-z1-mb4", "8", ["micro-batch: 4 -> 2"]),
        ("8xa100-40-z2-mb1", "16", ["tensor parallel: 1 -> 2"]),
    ],
)
def test_more_gpus_are_used_in_another_way_only_where_none_would_do_without(
    plan: str, cards: str, besides: list[str]
) -> None:
    (gpus, *others) = mended(plan, asked())["GPUs"].changes

    assert gpus.after == cards
    assert [str(each) for each in others] == besides


def test_more_gpus_are_not_told_beside_a_setting_that_alone_would_do() -> None:
    found = mended("4xh100-z1-mb1", asked())

    assert found["tensor parallel"].plan.tp == 2
    assert "GPUs" not in found


def test_more_gpus_that_wait_for_the_network_are_told_only_where_none_do_without() -> None:
    inside = mended("7xa100-80-z1-mb1", asked(global_batch=28))["GPUs"]  # the 14 of two nodes would do as they are
    beyond = mended("8xa100-40-z2-mb1", asked())["GPUs"]

    assert [str(each) for each in inside.changes] == ["GPUs: 7 -> 8", "tensor parallel: 1 -> 2"]
    assert (inside.leaves_node, beyond.leaves_node) == (False, True)


@pytest.mark.parametrize(("plan", "leaves_node"), [("4xgb200-z3-mb1", True), ("4xb200-z3-mb1", False)])
def test_more_gpus_are_in_a_node_as_far_as_servers_are_sold_with_them(plan: str, *, leaves_node: bool) -> None:
    assert mended(plan, asked(length=8192))["GPUs"].leaves_node is leaves_node


def vars_of(shape: PlanShape) -> dict[str, object]:
    return {name: getattr(shape, name) for name in PlanShape.__dataclass_fields__}


@settings(max_examples=4)
@given(st.sampled_from(["a100-40", "a100-80", "rtx-4090"]), st.sampled_from([1, 4, 8]), st.sampled_from([1, 2, 3]))
def test_stage_micro_batch_and_gpus_are_no_further_from_the_plan_than_needed(card: str, gpus: int, stage: int) -> None:
    assume(stage == 1 or gpus > 1)
    of, (there, failed) = asked(global_batch=8 * gpus), named(f"{gpus}x{card}-z{stage}-mb8")
    after = failed_plan(failed, of, there, CALIBRATION).after
    found = mended(failed.plan_id, of)
    if "micro-batch" in found:
        size = found["micro-batch"].plan.micro_batch_size
        larger = [each for each in divisors(8, 7) if each > size]
        assert not any(fits(replace(failed, micro_batch_size=each), after, there) for each in larger)
    if "ZeRO stage" in found:
        lower = range(stage + 1, found["ZeRO stage"].plan.zero_stage)
        assert not any(fits(replace(failed, zero_stage=each), after, there) for each in lower)
    if "GPUs" in found:
        assert found["GPUs"].plan.num_gpus > gpus
        for fewer in range(gpus + 1, found["GPUs"].plan.num_gpus):
            wider, shape = named(f"{fewer}x{card}-z{stage}-mb8")
            assert not fits(shape, after, wider)


def test_sequences_are_shortened_by_as_little_as_the_plan_needs() -> None:
    of, (there, failed) = asked(), named("8xa100-40-z2-mb1")
    after = failed_plan(failed, of, there, CALIBRATION).after
    length = int(mended(failed.plan_id, of)["data.sequence_length"].changes[0].after)

    def with_length(length: int) -> PlanRequest:
        changed = replace(after.job, data=replace(after.job.data, sequence_length=length))
        return replace(after, job=changed, excluded_shapes=())

    assert fits(failed, with_length(length), there)
    assert not fits(failed, with_length(length + 8), there)


@pytest.mark.parametrize(("host_gib", "beside"), [(400, []), (180, ["checkpoint.background"]), (64, ["host memory"])])
def test_offload_is_told_with_what_it_takes_of_the_host(host_gib: int, beside: list[str]) -> None:
    there, failed = named("1xa100-80-z1-mb1-ckpt")
    machine = replace(there, nodes=(replace(there.nodes[0], host_memory_bytes=host_gib * GIB),))
    of = asked()
    often = replace(of, job=replace(of.job, checkpoint=replace(of.job.checkpoint, every_steps=10)))
    plan = failed_plan(failed, often, machine, CALIBRATION)
    found = changes_of_plan(plan, machine, CALIBRATION)

    (offload,) = [each for each in found if each.changes[0].field == "optimizer states"]
    assert [each.field for each in offload.changes[1:]] == [
        f"{each} of a node of a100-80" if each.startswith("host") else each for each in beside
    ]
    assert offload.effect is (Effect.HARDWARE if beside == ["host memory"] else Effect.SAME_RESULT)


def test_what_a_plan_has_already_is_no_change_of_it() -> None:
    there, failed = named("1xa100-80-z1-mb1-ckpt-offload")
    small = replace(there, nodes=(replace(there.nodes[0], host_memory_bytes=64 * GIB),))
    plan = failed_plan(failed, asked(), small, CALIBRATION)
    found = changes_of_plan(plan, small, CALIBRATION)

    assert "host memory of a node of a100-80" in {each.changes[0].field for each in found}
    assert all(change.before != change.after for each in found for change in each.changes)


def test_changes_come_by_their_effect_on_the_result_then_by_time() -> None:
    found = changes_of("8xa100-40-z2-mb1", asked())
    order = [(each.effect, each.plan.predicted_run_s) for each in found]

    assert order == sorted(order)
    assert {Effect.SAME_RESULT, Effect.HARDWARE, Effect.OTHER_METHOD} <= {each.effect for each in found}


def test_a_plan_that_is_predicted_to_fit_is_believed_to_have_failed() -> None:
    of, (there, failed) = asked(), named("8xa100-80-z2-mb2")
    assert fits(failed, of, there)
    (plan,) = [each.plan for each in plan_candidates(replace(of, only_shapes=(failed,)), there, CALIBRATION)]
    found = mended(failed.plan_id, of)

    assert found["micro-batch"].plan.micro_batch_size == 1
    assert all(each.plan.memory.required_bytes < plan.memory.required_bytes for each in found.values())


def test_no_larger_card_is_told_where_only_the_least_is_known_that_the_plan_lacked() -> None:
    there, failed = named("8xa100-80-z2-mb2")
    plan = failed_plan(failed, asked(), there, CALIBRATION)
    known = {each: {of.effect for of in changes_of(each, asked())} for each in ("8xa100-80-z2-mb2", "8xa100-40-z2-mb1")}

    assert [plan for plan, effects in known.items() if Effect.OTHER_HARDWARE in effects] == ["8xa100-40-z2-mb1"]
    assert f"{format_bytes(plan.after.extra_bytes_per_gpu)} more, which is the least" in plan.assumed


def test_no_card_is_told_that_is_larger_than_any_of_the_catalogue() -> None:
    there, largest = nodes_of_cards("1xrtx4090"), max(each.gpu.memory_bytes for each in CATALOGUE.values())
    of = asked()
    larger_model = replace(of, shape=replace(EIGHT, num_layers=4 * EIGHT.num_layers))
    larger, none = (
        [each.plan for each in mending_changes(each, there, CALIBRATION) if each.effect is Effect.OTHER_HARDWARE]
        for each in (of, larger_model)
    )

    assert [plan.gpu_memory_bytes <= largest for plan in larger] == [True]
    assert none == []


def test_a_plan_that_lacks_memory_of_its_card_and_of_its_host_is_mended() -> None:
    found = mended("1xrtx4090-z1-mb1-ckpt-offload", asked())

    assert "training.lora" in found
    assert [each.field for each in found["memory of each rtx-4090"].changes[1:]] == [
        "host memory of a node of rtx-4090"
    ]


def test_a_plan_that_failed_is_not_the_planners_own_choice_after_it() -> None:
    of, (there, failed) = asked(), named("8xa100-80-z2-mb2")
    after = failed_plan(failed, of, there, CALIBRATION).after

    assert all(each.plan.shape != failed for each in plan_candidates(after, there, CALIBRATION) if each.feasible)


def test_a_plan_that_failed_may_be_taken_again_by_a_job_that_changed() -> None:
    of, (there, failed) = asked(), named("8xa100-80-z2-mb2")
    after = failed_plan(failed, of, there, CALIBRATION).after
    lighter = replace(after.job, training=replace(after.job.training, lora=LoraSpec()))

    assert fits(failed, replace(after, job=lighter), there)


def test_of_a_plan_that_would_not_be_run_it_is_said_and_a_stage_that_would_be_is_told() -> None:
    of, (there, failed) = asked(lora=LoraSpec(quantization="nf4")), named("8xh100-z3-mb1-ckpt")

    assert "4-bit weights under ZeRO stage 3" in failed_plan(failed, of, there, CALIBRATION).assumed
    assert mended(failed.plan_id, of)["ZeRO stage"].plan.zero_stage == 1


@pytest.mark.parametrize("setting", Checkpointing)
@pytest.mark.parametrize("plan", ["8xa100-40-z2-mb1", "8xa100-40-z2-mb1-ckpt"])
def test_of_a_plan_that_the_jobs_own_checkpointing_rules_out_it_is_said(plan: str, setting: Checkpointing) -> None:
    there, failed = named(plan)
    said = failed_plan(failed, asked(gradient_checkpointing=setting), there, CALIBRATION).never_chosen

    if setting is (Checkpointing.OFF if failed.activation_checkpointing else Checkpointing.ON):
        other = plan.removesuffix("-ckpt") if failed.activation_checkpointing else f"{plan}-ckpt"
        assert f"is {setting}, with which the job never runs {plan}: name {other} if" in said
    else:
        assert said == ""


@pytest.mark.parametrize(
    ("plan", "rule", "remedy"),
    [
        ("8xa100-80-z2-mb3", "8 x 3 does not divide the global batch size 16", "Write mb1 or mb2."),
        ("8xa100-80-z1-mb4", "8 x 4 does not divide the global batch size 16", "Write mb1 or mb2."),
        (
            "7xa100-80-z2-mb1",
            "7 replicas do not divide the global batch size 16",
            "tensor parallel degree: 1, 2, 4 or 8.",
        ),
        ("1xa100-80-z3-mb1", "a single replica has ZeRO stage 1, not 3", "Write z1"),
        ("9xa100-80-z1-mb4-tp3", "degree 3 does not divide 32 attention heads and 8 key-value heads", "tp4 or tp8."),
        ("9xa100-80-z1-mb1-tp2", "9 GPUs are not whole groups of 2", "a multiple of 2"),
        ("16xa100-80-z1-mb1-tp16", "beyond the 8 GPUs of a node", "tp4 or tp8."),
    ],
)
def test_a_plan_that_the_job_has_not_is_refused_by_the_rule_that_it_breaks(plan: str, rule: str, remedy: str) -> None:
    there, failed = named(plan)
    with pytest.raises(PermanentError, match=f"no plan {plan}: .*{rule}") as refused:
        failed_plan(failed, asked(global_batch=16), there, CALIBRATION)
    assert remedy in (refused.value.reason.remedy or "")


def test_a_plan_with_a_setting_that_its_script_does_not_honour_is_refused_for_that() -> None:
    there, failed = named("8xa100-80-z2-mb1")
    of = asked(global_batch=16)
    script = WorkloadSpec(command=("train",), honours=("micro_batch", "world_size"))
    with pytest.raises(PermanentError, match="script does not honour"):
        failed_plan(failed, replace(of, job=replace(of.job, workload=script)), there, CALIBRATION)


def test_a_zero_stage_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(PermanentError, match="ZeRO stage 0, and the trainer has 1, 2 or 3"):
        named("8xa100-80-z0-mb1")


def test_only_plans_that_the_closed_form_predicts_can_be_mended() -> None:
    there, failed = named("8xa100-80-z2-mb2")
    with pytest.raises(PermanentError, match="closed form"):
        failed_plan(failed, asked(), there, CALIBRATION, "paper")


def test_a_script_is_offered_no_setting_that_it_does_not_take() -> None:
    of = asked(global_batch=32)
    script = WorkloadSpec(command=("train",), honours=("micro_batch", "world_size"))
    changed = replace(of, job=replace(of.job, workload=script))

    assert (
        not {"ZeRO stage", "activation checkpointing", "optimizer states", "tensor parallel"}
        & mended("2xh100-z1-mb4", changed).keys()
    )


@pytest.mark.parametrize(("cards", "length"), [("1xA100-40", 2048), ("2xA100-80", 8192)])
def test_a_job_that_does_not_fit_is_offered_one_change_of_each_kind_that_does(cards: str, length: int) -> None:
    of, there = asked(length=length, gradient_checkpointing=Checkpointing.OFF), nodes_of_cards(cards)
    found = mending_changes(of, there, CALIBRATION)

    assert len(found) == len({each.changes for each in found}) > 1
    assert all(len(each.changes) == 1 for each in found if each.effect is not Effect.OTHER_HARDWARE)
    assert all(each.plan.memory.required_bytes <= each.plan.gpu_memory_bytes for each in found)


def test_gpus_that_would_do_are_named_beside_what_changes_the_job() -> None:
    found = mending_changes(asked(), nodes_of_cards("1xA100-80"), CALIBRATION)

    assert {"GPUs", "training.lora"} <= {each.changes[0].field for each in found}


@pytest.mark.parametrize(
    ("text", "plan_id"),
    [
        ("8xa100-80-z2-mb1", "8xa100-80-z2-mb1"),
        ("8 x A100-80-z3-mb16-tp2-ckpt-offload", "8xa100-80-z3-mb16-tp2-ckpt-offload"),
        ("1xRTX4090-z1-mb4-ckpt", "1xrtx-4090-z1-mb4-ckpt"),
    ],
)
def test_a_plans_name_is_read_back(text: str, plan_id: str) -> None:
    assert named(text)[1].plan_id == plan_id


@pytest.mark.parametrize("text", ["8xa100-80", "rtx-4090", "8xa100-80-mb1", "8xa100-80-z1-mb0"])
def test_a_text_that_names_no_settings_is_no_plan(text: str) -> None:
    assert plan_asked_for(text) is None


@pytest.mark.parametrize("end", ["z2-mb1-offload-ckpt", "z0-mb1", "z4-mb1", "mb1", "z2", "Z2-MB1-TP0"])
def test_a_slip_in_a_plans_name_is_told_with_the_order_of_its_parts(end: str) -> None:
    with pytest.raises(PermanentError, match="neither a card nor a plan") as refused:
        nodes_of_cards(f"8xa100-80-{end}")
    assert "8xa100-80-z2-mb1-tp2-ckpt-offload, in this order" in (refused.value.reason.remedy or "")
