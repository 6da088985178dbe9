"""The time model of real GPUs: what makes a step longer or shorter, and what it may never do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.models.flops import FlopsShape
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.models.trainable import trained_part
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.step_work import model_work
from frenzy.core.planning.throughput import Link, StepParts, StepWork, step_parts, step_seconds
from frenzy.core.values.gpu_catalogue import CATALOGUE, CatalogueEntry
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.core.values.utilisation import ARCHITECTURES, TRAINER, architecture_of, utilisation

WORK = StepWork(
    flops=FlopsShape(num_parameters=7_000_000_000, num_trainable=7_000_000_000, num_layers=32, attention_width=4096),
    hidden_size=4096,
    vocab_size=32000,
    sequence_length=4096,
    precision=Precision.BF16,
    weight_bytes=2.0,
    gradient_bytes=2.0,
)
LINK = Link(gpus_per_node=8, inside_bytes_per_s=300e9, between_bytes_per_s=100e9)
Plan = tuple[int, int, int, int, int, bool]


def seconds(plan: Plan, card: str = "a100-80", work: StepWork = WORK, link: Link = LINK) -> float:
    gpu = CATALOGUE[card].gpu
    return float(step_seconds(step_parts(work, grid_of([plan]), gpu, link), utilisation(gpu))[0])


@given(
    accumulation=st.integers(1, 8),
    micro_batch=st.integers(1, 16),
    dp=st.sampled_from([1, 2, 8, 64]),
    ckpt=st.booleans(),
)
def test_a_step_is_never_faster_than_the_datasheet(accumulation: int, micro_batch: int, dp: int, ckpt: bool) -> None:
    tokens = accumulation * micro_batch * WORK.sequence_length
    least_s = tokens * 6 * WORK.flops.num_parameters / CATALOGUE["a100-80"].gpu.flops_per_s
    assert seconds((dp, 1, 3, micro_batch, accumulation, ckpt)) > least_s


@given(micro_batch=st.integers(1, 16), dp=st.sampled_from([1, 2, 8, 64]), stage=st.sampled_from([1, 2, 3]))
def test_more_tokens_and_checkpointing_take_longer(micro_batch: int, dp: int, stage: int) -> None:
    plan = (dp, 1, stage, micro_batch, 2, False)
    assert seconds((dp, 1, stage, micro_batch + 1, 2, False)) > seconds(plan)
    assert seconds((dp, 1, stage, micro_batch, 2, True)) >= seconds(plan)


@given(dp=st.sampled_from([2, 8, 16, 64]), stage=st.sampled_from([1, 2, 3]))
def test_a_faster_network_never_slows_a_step(dp: int, stage: int) -> None:
    plan = (dp, 1, stage, 1, 4, False)
    faster = replace(LINK, inside_bytes_per_s=600e9, between_bytes_per_s=400e9)
    assert seconds(plan, link=faster) <= seconds(plan)


def test_higher_stages_communicate_more_when_gradients_accumulate() -> None:
    slow = replace(LINK, inside_bytes_per_s=5e9)
    stages = [seconds((8, 1, stage, 1, 4, False), link=slow) for stage in (1, 2, 3)]
    assert stages == sorted(stages) and len(set(stages)) == 3


def test_tensor_parallel_groups_share_the_network_of_their_node() -> None:
    one_node, two_nodes = (1, 8, 1, 1, 1, False), (2, 8, 1, 1, 1, False)
    slow = replace(LINK, between_bytes_per_s=1e9)
    weights_s = 2 * WORK.flops.num_parameters * (2 + 1) / 2 / 1e9
    waits_s = seconds(two_nodes, link=slow) - seconds(one_node, link=slow)
    assert waits_s == pytest.approx(weights_s / TRAINER.between, rel=0.05)


def test_small_micro_batches_are_held_up_by_launching_kernels() -> None:
    short = replace(WORK, sequence_length=64)
    many, few = seconds((1, 1, 1, 1, 16, False), work=short), seconds((1, 1, 1, 16, 1, False), work=short)
    assert many > 4 * few


def test_a_newer_card_is_faster_and_an_older_one_slower_in_bf16() -> None:
    plan = (8, 1, 1, 2, 1, False)
    assert seconds(plan, "h100") < seconds(plan, "a100-80") < seconds(plan, "l4") < seconds(plan, "t4")


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_every_card_has_an_architecture_that_was_measured(entry: CatalogueEntry) -> None:
    assert architecture_of(entry.gpu) in ARCHITECTURES


def llama_shape() -> ModelShape:
    return model_shape(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32000,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        }
    )


def llama(lora: LoraSpec | None = None, storage: WeightStorage = WeightStorage.PLAIN) -> StepWork:
    shape = llama_shape()
    return model_work(shape, trained_part(shape, lora), storage, 4096)


def test_tables_are_looked_up_and_first_layers_that_count_with_them_are_multiplied_with() -> None:
    shape = llama_shape()
    first = replace(shape, num_layers=31, embeddings=(*shape.embeddings, *shape.layer))
    like_others, own = (
        model_work(each, trained_part(each, None), WeightStorage.PLAIN, 4096) for each in (shape, first)
    )
    norms = sum(each.num_elements for each in shape.layer if not each.is_linear)
    assert like_others.flops.num_inactive == 32000 * 4096
    assert own.flops.num_inactive == like_others.flops.num_inactive + norms


ADAPTERS = LoraSpec(rank=16, target_modules=("q_proj", "v_proj"))


def test_adapters_take_time_for_each_map_that_has_one() -> None:
    plan = (1, 1, 1, 4, 1, True)
    more = replace(ADAPTERS, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    assert seconds(plan, work=llama(ADAPTERS)) < seconds(plan, work=llama(more)) < seconds(plan, work=llama())


def test_unpacking_4_bit_weights_takes_longest_where_the_micro_batch_is_small() -> None:
    def slower(micro_batch: int) -> float:
        plan = (1, 1, 1, micro_batch, 1, True)
        return seconds(plan, work=llama(ADAPTERS, WeightStorage.NF4)) / seconds(plan, work=llama(ADAPTERS))

    assert slower(1) > slower(8) > 1.0


def test_embeddings_that_are_looked_up_cost_no_products() -> None:
    work = llama()
    assert work.flops.num_parameters - work.flops.num_active == 32000 * 4096


# Waits for its kernels' launches.
SMALL = replace(
    WORK,
    sequence_length=128,
    hidden_size=512,
    flops=replace(WORK.flops, num_parameters=10**8, num_trainable=10**8, attention_width=512),
)


def test_the_hooks_of_stage_3_hold_up_small_micro_batches_of_deepspeed_alone() -> None:
    stage_2, stage_3 = ((1, 1, stage, 1, 4, False) for stage in (2, 3))
    assert seconds(stage_3, work=SMALL) > seconds(stage_2, work=SMALL)
    gpu = CATALOGUE["a100-80"].gpu
    parts = step_parts(SMALL, grid_of([stage_2, stage_3]), gpu, LINK)
    alike = step_seconds(parts, utilisation(gpu, replace(TRAINER, hook_s_per_layer=0.0)))
    assert alike[0] == pytest.approx(alike[1])


def test_a_step_that_waits_for_launches_waits_for_recomputed_ones_too() -> None:
    plain, repeated = (seconds((1, 1, 1, 1, 4, ckpt), work=SMALL) for ckpt in (False, True))
    assert 1.3 < repeated / plain < 2.0


def test_larger_micro_batches_move_gradients_less_often() -> None:
    one, two, four = (seconds((1, 1, 1, size, 8 // size, False)) for size in (1, 2, 4))
    assert one - two == pytest.approx(2 * (two - four))
    adapters = (seconds((1, 1, 1, size, 8 // size, False), work=llama(ADAPTERS)) for size in (1, 2))
    assert next(adapters) == pytest.approx(next(adapters), rel=0.01)


def test_the_head_is_not_recomputed() -> None:
    wide = replace(WORK, vocab_size=256000)
    gpu = CATALOGUE["a100-80"].gpu

    def repeated(work: StepWork) -> float:
        plain, again = step_parts(work, grid_of([(1, 1, 1, 1, 1, ckpt) for ckpt in (False, True)]), gpu, LINK).matmul
        return float(again - plain)

    assert repeated(wide) < repeated(WORK)


def parts(plan: Plan, work: StepWork = WORK) -> StepParts:
    return step_parts(work, grid_of([plan]), CATALOGUE["h100"].gpu, LINK)


def test_rings_take_longer_over_more_ranks_and_for_more_collectives() -> None:
    inside, two_nodes = (float(parts((dp, 1, 1, 1, 4, False)).hops[0]) for dp in (8, 16))
    assert inside == pytest.approx(2 * 7 * 3.4e-6)
    assert two_nodes == pytest.approx(2 * (14 * 3.4e-6 + 14e-6))
    split = parts((2, 8, 1, 1, 4, False), replace(WORK, reductions=5))
    assert float(split.hops[0]) == pytest.approx(5 * 2 * 14e-6)
    assert float(parts((8, 1, 3, 1, 4, False)).hops[0]) == pytest.approx(3 * 32 * 4 * 7 * 3.4e-6)


def test_below_stage_2_only_the_last_micro_batch_hides_communication() -> None:
    assert [float(parts((8, 1, stage, 1, 4, False)).hiding[0]) for stage in (0, 1, 2, 3)] == [0.25, 0.25, 1.0, 1.0]


def test_updated_weights_are_gathered_in_stages_1_and_2() -> None:
    shares = [float(parts((8, 1, stage, 1, 1, False)).gathered[0]) for stage in (0, 1, 2, 3)]
    assert shares == pytest.approx([0.0, 1 / 3, 1 / 3, 0.0])
    assert float(parts((1, 1, 1, 1, 1, False)).gathered[0]) == 0.0


def test_hidden_states_are_divided_among_tensor_parallel_ranks_that_split_them() -> None:
    plan = (1, 4, 1, 1, 1, False)
    whole, split = (float(parts(plan, replace(WORK, splits_hidden=each)).hidden[0]) for each in (False, True))
    assert whole == pytest.approx(4 * split)
