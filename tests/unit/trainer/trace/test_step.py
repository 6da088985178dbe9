"""Traces of small models: figures that can be computed by hand, and agreement with real tensors."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.memory.cuda_memory import CUBLAS_WORKSPACES_BYTES
from frenzy.core.values.errors import PermanentError, ReasonCode
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.trainer.trace.step import TraceChoices, prepared_model, traced_run
from frenzy.trainer.trace.storages import StorageLog
from frenzy.trainer.trace.traced_moments import TraceResult

HIDDEN, LAYERS, INNER, VOCABULARY = 256, 3, 512, 1024
LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
}
# Four square maps of attention, three of the MLP, two norms; embedding and head; the last norm.
LARGEST = max(HIDDEN * INNER, VOCABULARY * HIDDEN)
PARAMETERS = LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * INNER + 2 * HIDDEN) + 2 * VOCABULARY * HIDDEN + HIDDEN
SHORT = TraceChoices(batch=1, sequence_length=8)


def part(result: TraceResult, moment: str, category: str) -> int:
    return sum(each.num_bytes for each in result.moment(moment).by_category if each.name == category)


@pytest.mark.parametrize(
    ("optimizer", "state_bytes", "temporary_bytes"), [("adamw", 4, 2), ("adamw-fused", 4, 0), ("sgd", 2, 0)]
)
def test_the_optimizer_step_of_a_bf16_model_holds_what_is_known(
    optimizer: str, state_bytes: int, temporary_bytes: int
) -> None:
    result = traced_run(LLAMA, replace(SHORT, optimizer=optimizer))
    step = "optimizer step"
    assert part(result, step, "weights") == pytest.approx(2 * PARAMETERS, rel=1e-3)
    assert part(result, step, "gradients") == 2 * PARAMETERS
    # The fused kernel counts its steps on the card, in a block of 512 bytes for each tensor.
    assert part(result, step, "optimizer states") == pytest.approx(state_bytes * PARAMETERS, rel=0.01)
    assert part(result, step, "temporaries") == pytest.approx(temporary_bytes * PARAMETERS, abs=64 * 1024)
    assert part(result, step, "kernel workspaces") == CUBLAS_WORKSPACES_BYTES


def test_the_parts_add_up_to_the_peak_and_the_peak_is_the_highest_moment() -> None:
    result = traced_run(LLAMA, replace(SHORT, sequence_length=512))
    assert sum(each.num_bytes for each in result.by_category) == result.peak_bytes
    assert result.peak_bytes == max(each.peak_bytes for each in result.by_moment)
    assert [each.name for each in result.by_moment] == [
        "start",
        "forward",
        "loss",
        "backward",
        "optimizer step",
        "between steps",
    ]
    assert result.resident_bytes < result.peak_bytes


def test_between_steps_weights_and_states_remain() -> None:
    result = traced_run(LLAMA, SHORT)
    assert result.resident_bytes - CUBLAS_WORKSPACES_BYTES == pytest.approx(6 * PARAMETERS, rel=1e-3)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.AUTOCAST_BF16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_without_data_the_same_is_kept_as_with_data(precision: Precision, checkpointing: bool) -> None:
    choices = TraceChoices(batch=2, sequence_length=32, precision=precision, checkpointing=checkpointing, device="cpu")
    real = prepared_model(LLAMA, choices)
    tokens = torch.zeros((2, 32), dtype=torch.long)
    log = StorageLog()
    log.ignore([*real.parameters(), *real.buffers(), tokens])
    with log:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is Precision.AUTOCAST_BF16):
            loss = real(input_ids=tokens, labels=tokens).loss
        kept_bytes = log.live_bytes
    result = traced_run(LLAMA, choices)
    assert loss.isfinite()
    assert result.kept_bytes == kept_bytes + tokens.nbytes


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_keeps_one_input_for_each_layer(reentrant: bool) -> None:
    choices = replace(SHORT, sequence_length=1024, checkpointing=True, reentrant=reentrant)
    plain, checkpointed = (
        part(traced_run(LLAMA, each), "forward", "activations")
        for each in (replace(choices, checkpointing=False), choices)
    )
    inputs = LAYERS * 1024 * HIDDEN * 2
    assert inputs <= checkpointed <= 2 * inputs
    assert plain > 8 * inputs


@pytest.mark.parametrize(("attention", "squared"), [("eager", True), ("sdpa", False), ("flash_attention_2", False)])
def test_only_plain_attention_holds_its_scores(attention: str, squared: bool) -> None:
    lengths = (512, 1024, 2048)
    kept = [
        part(traced_run(LLAMA, replace(SHORT, sequence_length=each, attention=attention)), "forward", "activations")
        for each in lengths
    ]
    growth = [later / earlier for earlier, later in pairwise(kept)]
    assert (growth[1] > 2.1) is squared
    assert growth[0] >= 1.99


def test_autocast_hands_attention_16_bits_so_that_shared_heads_hold_no_scores() -> None:
    shared = {**LLAMA, "num_key_value_heads": 2}
    choices = replace(SHORT, attention="sdpa", precision=Precision.AUTOCAST_BF16)
    kept = [
        part(traced_run(shared, replace(choices, sequence_length=each)), "forward", "activations")
        for each in (512, 1024, 2048)
    ]
    assert kept[2] - kept[1] == pytest.approx(2 * (kept[1] - kept[0]), rel=0.01)


def test_flash_attention_keeps_its_output_and_a_log_sum_for_each_head() -> None:
    first, second = (
        part(
            traced_run({**LLAMA, "num_hidden_layers": layers}, replace(SHORT, sequence_length=1024, attention="sdpa")),
            "forward",
            "activations",
        )
        for layers in (1, 2)
    )
    hidden, inner = 1024 * HIDDEN, 1024 * INNER
    norms = 2 * (4 * hidden + 2 * hidden + 2 * hidden + 4 * 1024)  # fp32 copy, normed, scaled; the root in fp32
    attention = 2 * 4 * hidden + 4 * 4 * 1024  # q, k after rotation, v, the output; log-sum-exp of four heads
    mlp = 2 * 4 * inner  # gate, its activation, up, their product
    residuals = 2 * 2 * hidden
    assert second - first == pytest.approx(norms + attention + mlp + residuals, rel=0.1)


def test_adapters_alone_have_gradients_and_states() -> None:
    lora = LoraSpec(rank=8, target_modules=("q_proj", "v_proj"))
    result = traced_run(LLAMA, replace(SHORT, lora=lora))
    adapters = LAYERS * 2 * 8 * 2 * HIDDEN
    assert part(result, "optimizer step", "gradients") == 4 * adapters
    assert part(result, "optimizer step", "optimizer states") == 8 * adapters
    assert part(result, "optimizer step", "weights") == pytest.approx(2 * PARAMETERS + 4 * adapters, rel=1e-3)


def test_dropout_keeps_a_byte_for_each_element_on_a_card() -> None:
    gpt2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": 512}
    none = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    choices = replace(SHORT, sequence_length=512)
    without = part(traced_run({**gpt2, **none}, choices), "loss", "activations")
    with_one = part(traced_run({**gpt2, **none, "resid_pdrop": 0.1}, choices), "loss", "activations")
    masks = 2 * 2 * 512 * 256  # two in each layer
    assert with_one - without == masks


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("attention", "ring", "flash_attention_2"), ("optimizer", "lion", "adamw-fused")],
)
def test_an_unknown_choice_is_refused_by_name(name: str, value: str, allowed: str) -> None:
    choices: dict[str, Any] = {"batch": 1, "sequence_length": 8, name: value}
    with pytest.raises(PermanentError, match=f"{name} '{value}' is refused.*{allowed}"):
        traced_run(LLAMA, TraceChoices(**choices))


def test_an_unknown_family_is_refused_with_a_sentence() -> None:
    with pytest.raises(PermanentError, match="family 'no-such-family'") as caught:
        traced_run({"model_type": "no-such-family"}, TraceChoices(batch=1, sequence_length=8))
    assert caught.value.reason.code is ReasonCode.BAD_CONFIG_OR_DATA


def test_what_depends_on_data_is_refused_by_the_operations_name() -> None:
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "experts_implementation": "eager"}
    with pytest.raises(PermanentError, match="aten.nonzero") as caught:
        traced_run(mixtral, TraceChoices(batch=1, sequence_length=8))
    assert caught.value.reason.code is ReasonCode.TRACE_UNSUPPORTED


def test_a_model_that_fails_in_its_own_code_is_quoted() -> None:
    more_shared_than_query_heads = {**LLAMA, "num_key_value_heads": 8}
    with pytest.raises(PermanentError, match="the model's own code: RuntimeError: The size of tensor") as caught:
        traced_run(more_shared_than_query_heads, TraceChoices(batch=1, sequence_length=8, attention="eager"))
    assert caught.value.reason.code is ReasonCode.TRACE_UNSUPPORTED


@given(st.lists(st.integers(min_value=1, max_value=10_000), max_size=20), st.sampled_from([1, 512]))
def test_storages_are_counted_once_and_leave_with_their_last_tensor(sizes: list[int], granule: int) -> None:
    log = StorageLog(granule=granule)
    with log:
        tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        views = [each[:1] for each in tensors]
        expected = sum(-(-size // granule) * granule for size in sizes)
        assert log.live_bytes == expected
        del tensors
        assert log.live_bytes == expected
        del views
    assert log.live_bytes == 0
    assert len(log.events) == 2 * len(sizes)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_deepspeed_between_steps_holds_what_its_partitioning_says(zero_stage: int) -> None:
    ranks, bucket = 8, 20_000
    result = traced_run(LLAMA, SHORT, zero_settings(zero_stage, ranks, bucket), num_ranks=ranks)
    partitioned = 12 * PARAMETERS / ranks
    expected = 2 * PARAMETERS + partitioned if zero_stage < 3 else 16 * PARAMETERS / ranks + 2 * bucket
    # Beside them: stage 3 keeps small tensors whole, and every storage takes a multiple of 512 bytes.
    assert result.resident_bytes - CUBLAS_WORKSPACES_BYTES == pytest.approx(expected, rel=0.02)
    assert part(result, "between steps", "optimizer states") == pytest.approx(partitioned * 8 / 12, rel=0.01)
    assert part(result, "between steps", "fp32 master weights") == pytest.approx(partitioned * 4 / 12, rel=0.01)


def test_a_trace_of_stage_three_leaves_nothing_that_changes_the_next_one() -> None:
    choices = replace(SHORT, precision=Precision.AUTOCAST_BF16)
    before = traced_run(LLAMA, choices)
    traced_run(LLAMA, SHORT, zero_settings(3, 8, 20_000), num_ranks=8)
    assert traced_run(LLAMA, choices) == before


def test_only_the_first_stage_holds_all_gradients_until_they_are_reduced() -> None:
    held = [
        part(traced_run(LLAMA, SHORT, zero_settings(stage, 8, 20_000), num_ranks=8), "reduction", "gradients")
        for stage in (1, 2)
    ]
    assert held[0] == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert held[1] < held[0] / 2


@pytest.mark.parametrize("sub_group", [10**9, 200_000, 40_000])
def test_stage_3_lays_the_gradients_of_a_sub_group_flat_and_makes_them_fp32(sub_group: int) -> None:
    """As much of the partition as ``moments._in_sub_group`` counts."""
    settings = zero_settings(3, 2, 20_000)
    settings["zero_optimization"]["sub_group_size"] = sub_group
    settings["optimizer"]["params"]["fused"] = True
    held = part(traced_run(LLAMA, SHORT, settings, num_ranks=2), "optimizer step", "temporaries")
    least, most = (max(6 * min(PARAMETERS / 2, sub_group + more), 8 * LARGEST / 2) for more in (0, LARGEST / 2))
    assert least * 0.99 < held < most * 1.01


def test_ranks_differ_where_a_tensor_lies_across_two_partitions() -> None:
    held = {
        rank: traced_run(LLAMA, SHORT, zero_settings(2, 3, 20_000), num_ranks=3, rank=rank)
        .moment("reduction")
        .peak_bytes
        for rank in (0, 1)
    }
    assert held[0] != held[1]


def zero_settings(stage: int, ranks: int, bucket: int) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": bucket // 10, "stage3_param_persistence_threshold": bucket // 100}
        zero |= {"stage3_max_live_parameters": 2 * bucket, "stage3_max_reuse_distance": 2 * bucket}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": ranks,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
    }


def test_the_fused_loss_never_holds_all_logits() -> None:
    choices = replace(SHORT, sequence_length=2048)
    wide = {**LLAMA, "vocab_size": 8 * VOCABULARY}
    plain, fused = (traced_run(wide, each).moment("loss") for each in (choices, replace(choices, fused_loss=True)))
    logits = 2048 * 8 * VOCABULARY * 4
    assert plain.peak_bytes - fused.peak_bytes > logits
