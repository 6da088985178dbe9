"""What a job would change to fit given cards: the least effect on its result first, and nothing that is not needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core.marp_values import CALIBRATION, job, llama_config, node, request

from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.planning.asked_cards import nodes_of_cards
from frenzy.core.planning.job_remedies import Effect
from frenzy.core.planning.marp import Remedy, mending_changes, plan_candidates, remedies
from frenzy.core.planning.plan_remedies import first_remedy
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import Checkpointing, LoraSpec, ModelSpec, Precision
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.units import GIB
from frenzy.core.values.workload import WorkloadSpec

SEVEN = model_shape(
    llama_config(4096, 32, 32, 32000, intermediate_size=11008, num_key_value_heads=32, max_position_embeddings=8192)
)
EIGHT = model_shape(
    llama_config(4096, 32, 32, 128256, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=8192)
)
ONE = model_shape(llama_config(2048, 16, 32, 128256, intermediate_size=8192, max_position_embeddings=8192))


def asked(shape: ModelShape, length: int = 2048, **training: Any) -> PlanRequest:
    """Of a model that has weights already."""
    of = job(global_batch=8, sequence_length=length, precision=Precision.BF16, **training)
    return request(shape, replace(of, model=ModelSpec(hub_id="a/model")))


def in_fp32(of: PlanRequest) -> PlanRequest:
    return replace(of, job=replace(of.job, training=replace(of.job.training, precision=Precision.FP32)))


def remedy_on(cards: str, of: PlanRequest) -> Remedy:
    there = nodes_of_cards(cards)
    assert not any(each.feasible for each in plan_candidates(of, there, CALIBRATION))
    found = remedies(of, there, CALIBRATION, within=True)
    assert found is not None
    assert found.cluster == there
    assert any(each.feasible for each in plan_candidates(found.request, there, CALIBRATION))
    return found


def changed(found: Remedy) -> dict[str, str]:
    return {each.field: each.after for each in found.changes}


def test_what_leaves_the_result_alone_is_tried_first() -> None:
    of = asked(ONE, length=8192, gradient_checkpointing=Checkpointing.OFF, attention="eager")

    assert set(changed(remedy_on("1xa100-40", of))) <= {
        "training.gradient_checkpointing",
        "training.attention",
        "training.loss",
    }


def test_the_fused_loss_is_tried_where_logits_weigh_most() -> None:
    lora = LoraSpec(target_modules=("q_proj", "v_proj"))

    assert changed(remedy_on("1xA2", asked(ONE, length=8192, lora=lora))) == {"training.loss": "fused"}


def test_a_large_model_on_a_small_card_becomes_adapters_and_on_a_smaller_one_adapters_over_four_bits() -> None:
    assert changed(remedy_on("1xRTX4090", asked(SEVEN))) == {"training.lora": "rank 16"}
    assert changed(remedy_on("1xT4", asked(SEVEN))) == {"training.lora": "rank 16, nf4"}


def test_a_mixture_of_experts_becomes_adapters_over_four_bits() -> None:
    mixtral = {
        **llama_config(4096, 32, 32, 32000, intermediate_size=14336, num_key_value_heads=8),
        "num_local_experts": 8,
    }
    shape = model_shape({**mixtral, "model_type": "mixtral", "num_experts_per_tok": 2, "max_position_embeddings": 8192})
    assert changed(remedy_on("1xA100-40", asked(shape))) == {"training.lora": "rank 16, nf4"}


def test_adapters_on_random_weights_are_no_remedy_but_on_those_of_a_warm_start_they_are() -> None:
    of = asked(SEVEN)
    untrained = replace(of, job=replace(of.job, model=ModelSpec(config={"model_type": "llama"})))
    assert remedies(untrained, nodes_of_cards("1xRTX4090"), CALIBRATION, within=True) is None

    warm = replace(untrained.job, checkpoint=replace(of.job.checkpoint, warm_start="/models/first"))
    assert changed(remedy_on("1xRTX4090", replace(of, job=warm))) == {"training.lora": "rank 16"}


def test_four_bits_are_never_taken_back_to_fit_a_small_card() -> None:
    lora = LoraSpec(quantization="nf4")
    found = remedy_on("1xT4", asked(EIGHT, length=8192, lora=lora))

    assert "training.lora.quantization" not in changed(found)


def test_no_context_is_given_up_that_another_way_to_the_same_numbers_would_save() -> None:
    of = asked(replace(EIGHT, max_positions=131072), length=131072, lora=LoraSpec(quantization="nf4"))
    found = remedy_on("1xRTX4090", of)
    length = int(changed(found)["data.sequence_length"])

    assert changed(found) == {"data.sequence_length": str(length), "training.loss": "fused"}
    shorter = replace(of.job, data=replace(of.job.data, sequence_length=length // 2))
    without = plan_candidates(replace(of, job=shorter), found.cluster, CALIBRATION)
    assert not any(each.feasible for each in without), "the other loss leaves less than half of it"


def test_adapters_and_shorter_sequences_are_tried_together_where_neither_is_enough() -> None:
    longest = replace(EIGHT, max_positions=131072)
    found = changed(remedy_on("1xRTX4090", asked(longest, length=131072)))

    assert found.keys() >= {"training.lora", "data.sequence_length"}
    assert int(found["data.sequence_length"]) > 8192


@pytest.mark.parametrize(("cards", "format"), [("1xRTX4090", "bf16"), ("1xV100-16", "fp16")])
def test_adapters_in_fp32_are_first_tried_in_the_16_bits_that_the_card_has_attention_for(
    cards: str, format: str
) -> None:
    of = in_fp32(asked(SEVEN, lora=LoraSpec()))

    assert changed(remedy_on(cards, of)) == {"training.precision": format}
    alone = mending_changes(of, nodes_of_cards(cards), CALIBRATION)
    assert [each.effect for each in alone if each.changes[0].field == "training.precision"] == [Effect.APPROXIMATION]


def test_fp32_is_kept_where_states_in_8_bits_would_do_as_well() -> None:
    of = in_fp32(asked(replace(ONE, num_layers=8), length=512))

    assert changed(remedy_on("1xA2", of)) == {"training.optimizer": "adamw-8bit"}


def test_fp32_is_given_up_before_most_of_the_context() -> None:
    of = in_fp32(asked(replace(ONE, max_positions=131072), length=131072))
    found = changed(remedy_on("1xRTX4090", of))

    assert found["training.precision"] == "bf16"
    assert int(found["data.sequence_length"]) > 65536


def test_a_script_that_keeps_activations_is_told_to_recompute_them_before_it_sees_less_context() -> None:
    of = asked(SEVEN, lora=LoraSpec())
    script = WorkloadSpec(command=("train",), honours=("micro_batch", "world_size"))
    found = remedy_on("1xRTX4090", replace(of, job=replace(of.job, workload=script)))

    assert changed(found) == {"training.gradient_checkpointing": "on"}


def test_a_choice_that_cannot_be_run_is_given_up_even_where_other_changes_spoil_it() -> None:
    of, there = asked(EIGHT, attention="eager", lora=LoraSpec(quantization="nf4")), nodes_of_cards("1xH100")

    def solve(asked: PlanRequest, cluster: Cluster) -> tuple[Candidate, ...]:
        """As of a family whose experts are not quantised, and which has no other attention."""
        training = asked.job.training
        found = plan_candidates(asked, cluster, CALIBRATION)
        if training.attention == "eager" and training.lora and training.lora.quantization == "none":
            return found
        refused = Reason(code=ReasonCode.PREDICTED_NOT_LAUNCHABLE, detail="Not here.")
        return tuple(replace(each, rank=None, reason=refused) for each in found)

    found = first_remedy(of, there, solve(of, there), solve, within=True)
    assert found is not None and changed(found) == {"training.lora.quantization": "none"}


def test_no_change_is_found_where_nothing_fits() -> None:
    huge = model_shape(llama_config(16384, 126, 128, 128256, num_key_value_heads=8, max_position_embeddings=8192))

    assert remedies(asked(huge), nodes_of_cards("1xT4"), CALIBRATION, within=True) is None


def test_no_change_of_a_remedy_can_be_left_out() -> None:
    of = asked(ONE, length=8192, gradient_checkpointing=Checkpointing.OFF)
    found = remedy_on("1xA2", of)

    assert len(found.changes) == len({each.field for each in found.changes})
    for name in changed(found):
        field = name.removeprefix("training.")
        before = getattr(of.job.training, field, None)
        if name.startswith("training.") and "." not in field:
            training = replace(found.request.job.training, **{field: before})
            less = replace(found.request, job=replace(found.request.job, training=training))
            assert not any(each.feasible for each in plan_candidates(less, found.cluster, CALIBRATION))


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("1xRTX4090", "rtx-4090", 1),
        ("8 x A100-80", "a100-80", 8),
        ("T4", "t4", 1),
        ("2xNVIDIA GeForce RTX 3090", "rtx-3090", 2),
        ("4*h100", "h100", 4),
        ("1x4090", "rtx-4090", 1),
    ],
)
def test_cards_are_known_as_people_write_them(text: str, name: str, count: int) -> None:
    (node,) = nodes_of_cards(text).nodes

    assert (node.gpu_type, node.num_gpus) == (name, count)
    assert node.host_memory_bytes >= 2 * count * 14 * GIB


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("16xH100-80", [8, 8]), ("12xa100-80", [8, 4]), ("8xh100", [8]), ("3xT4", [3]), ("8xGB200", [4, 4])],
)
def test_a_node_has_as_many_cards_as_the_servers_that_are_sold(text: str, nodes: list[int]) -> None:
    found = nodes_of_cards(text).nodes

    assert [each.num_gpus for each in found] == nodes
    assert len({each.host_memory_bytes / each.num_gpus for each in found}) == 1
    assert len({each.name for each in found}) == len(nodes)


def test_a_node_has_as_many_cards_as_one_of_ones_own_and_its_host_memory() -> None:
    gpu = replace(CATALOGUE["h100"].gpu, name="h100-80")
    wide = replace(node("a", "h100-80", 16), host_memory_bytes=4096 * GIB)
    own = Cluster((gpu,), (wide, node("b", "h100-80", 4)))

    found = nodes_of_cards("24xH100", own).nodes

    assert [(each.gpu_type, each.num_gpus) for each in found] == [("h100-80", 16), ("h100-80", 8)]
    assert found[0].host_memory_bytes == 4096 * GIB


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0xT4", "asks for 0 cards; --fit takes from 1 to 16,384"),
        ("16385xT4", "16,385 cards; --fit takes from 1 to 16,384"),
        ("100000000xT4", "100,000,000 cards; --fit takes from 1 to 16,384"),
        ("-3xT4", "-3 cards; --fit takes from 1 to 16,384"),
        ("1xAbacus", "not known"),
        ("", "no number"),
        ("2xa100", "may be"),
        ("1xA", "not known"),
    ],
)
def test_cards_that_are_none_are_refused_with_words(text: str, words: str) -> None:
    with pytest.raises(PermanentError, match=words):
        nodes_of_cards(text)
