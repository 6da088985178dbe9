"""A table of one's own runs: what it needs, what has defaults, and what nobody recorded."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frenzy.core.memory.cuda_memory import COMMUNICATOR_BYTES, CONTEXT_BYTES, OUTSIDE_ON_SEVERAL_CARDS_BYTES
from frenzy.core.memory.torch_kernels import TorchRun
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.job import Precision
from frenzy.core.values.units import GIB
from frenzy.evaluation.datasets import read_dataset, release_calibrations
from frenzy.evaluation.deepspeed_run import DeepSpeedRun
from frenzy.evaluation.margin import Margin, is_fitted
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import PublishedRow
from frenzy.evaluation.score import scored_rows
from tools.accuracy.report import DATA

CALIBRATIONS = release_calibrations()
RUN = {
    "model": "meta-llama/Llama-2-7b-hf",
    "framework": "deepspeed",
    "gpu": "a100-80",
    "num_gpus": "8",
    "zero_stage": "3",
    "micro_batch": "2",
    "sequence_length": "4096",
    "checkpointing": "true",
    "optimizer": "fused-adam",
    "peak_gib": "20.4",
}


def rows_of(folder: Path, *rows: dict[str, str]) -> tuple[PublishedRow, ...]:
    file = folder / "runs.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, sorted({name for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)
    return read_dataset(file, CALIBRATIONS)


def peak(row: PublishedRow) -> int:
    assert row.run is not None, row.refusal
    return predict(row.run).peak_allocated_bytes


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "nobody/knows"}, "knows"),
        ({"framework": "megatron"}, "framework 'megatron'"),
        ({"zero_stage": "0"}, "zero_stage '0'"),
        ({"gpu": "abacus"}, "gpu 'abacus'"),
        ({"peak_gib": ""}, "peak_gib is not recorded"),
        ({"micro_batch": "half"}, "micro_batch 'half'"),
        ({"optimizer": "lamb"}, "optimizer 'lamb'"),
        ({"offload_parameters": "true"}, "offload_parameters"),
        ({"lora_rank": "8"}, "lora_targets is not recorded"),
        ({"sequence_length": "512|8192"}, "not recorded: sequence_length"),
    ],
)
def test_what_is_unknown_refuses_the_row_by_the_columns_name(
    tmp_path: Path, changed: dict[str, str], words: str
) -> None:
    (row,) = rows_of(tmp_path, {**RUN, **changed})

    assert row.run is None
    assert words in row.refusal


def test_what_nobody_recorded_is_a_range_and_the_error_the_distance_to_it(tmp_path: Path) -> None:
    likely = {**RUN, "held_logits_bytes": "0|4"}
    low = peak(rows_of(tmp_path, {**RUN, "held_logits_bytes": "0"})[0])
    high = peak(rows_of(tmp_path, {**RUN, "held_logits_bytes": "4"})[0])
    cells = [str(low - low // 10), str((low + high) // 2), str(high + high // 10)]

    rows = rows_of(tmp_path, *({**likely, "peak_gib": "", "peak_bytes": each} for each in cells))
    below, within, above = (each.error for each in scored_rows(rows, Margin()))

    assert low < high
    assert within == 0.0
    assert below == pytest.approx(1 / 0.9 - 1, rel=1e-6)
    assert above == pytest.approx(1 / 1.1 - 1, rel=1e-6)


def test_deepspeeds_own_adam_takes_no_temporaries(tmp_path: Path) -> None:
    at_the_step = {**RUN, "micro_batch": "1", "sequence_length": "256"}
    own, torchs = rows_of(tmp_path, at_the_step, {**at_the_step, "optimizer": "adamw"})

    assert peak(own) < peak(torchs)


@pytest.mark.parametrize(
    ("column", "less", "more"),
    [
        ("reduce_bucket", "100000000", "500000000"),
        ("max_live_parameters", "0", "1000000000"),
        ("micro_batch", "1", "2"),
        ("held_logits_bytes", "0", "4"),
    ],
)
def test_larger_buffers_take_more(tmp_path: Path, column: str, less: str, more: str) -> None:
    first, second = rows_of(tmp_path, {**RUN, column: less}, {**RUN, column: more})

    assert peak(first) < peak(second)


@pytest.mark.parametrize("framework", ["deepspeed", "torch"])
def test_lengths_that_vary_require_more_where_segments_do_not_grow(tmp_path: Path, framework: str) -> None:
    given = {**RUN, "framework": framework, "optimizer": "adamw"}
    vary = {**given, "lengths": "vary"}
    rows = rows_of(tmp_path, given, vary, {**vary, "expandable_segments": "true"})
    fixed, varied, grows = (Margin().required_bytes(each.run, predict(each.run)) for each in rows if each.run)

    assert varied - fixed == 3 * 4 * 32_000 * 2 * 4096 // 2
    assert grows == fixed


@pytest.mark.parametrize(
    ("framework", "more"),
    [
        ("deepspeed", COMMUNICATOR_BYTES),
        ("torch", OUTSIDE_ON_SEVERAL_CARDS_BYTES - CONTEXT_BYTES),
        ("fsdp", OUTSIDE_ON_SEVERAL_CARDS_BYTES - CONTEXT_BYTES),
    ],
)
def test_several_gpus_require_more_outside_of_torch_whatever_the_framework(
    tmp_path: Path, framework: str, more: int
) -> None:
    given = {**RUN, "framework": framework, "optimizer": "adamw"}
    rows = rows_of(tmp_path, {**given, "num_gpus": "1"}, {**given, "num_gpus": "2"})
    one, two = (Margin().required_bytes(each.run, predict(each.run)) - 1.07 * peak(each) for each in rows if each.run)

    assert two - one == pytest.approx(more, abs=2)


def test_what_is_required_outside_of_torch_on_several_gpus_is_the_most_that_logs_show() -> None:
    with (DATA / "reports/outside_torch.csv").open(encoding="utf-8", newline="") as file:
        outside = [
            float(row["total_gib"]) - float(row["reserved_gib"]) - float(row["free_gib"])
            for row in csv.DictReader(file)
        ]

    assert 0 <= OUTSIDE_ON_SEVERAL_CARDS_BYTES / GIB - max(outside) < 0.02
    assert min(outside) > 0


def test_under_fsdp_hidden_states_are_in_the_16_bits_of_the_weights_that_it_gathers(tmp_path: Path) -> None:
    mixed = {**RUN, "framework": "torch", "optimizer": "adamw", "precision": "autocast-bf16"}
    alone, sharded = (each.run for each in rows_of(tmp_path, mixed, {**mixed, "framework": "fsdp"}))

    assert isinstance(alone, TorchRun)
    assert isinstance(sharded, TorchRun)
    assert (alone.layer_bytes, alone.coefficients.precision) == (4, Precision.AUTOCAST_BF16)
    assert (sharded.layer_bytes, sharded.coefficients.precision) == (4, Precision.BF16)


def test_trainers_of_4_30_and_4_31_keep_what_is_trained_whole_on_each_rank_of_fsdp(tmp_path: Path) -> None:
    mixed = {**RUN, "framework": "fsdp", "optimizer": "adamw", "precision": "autocast-bf16", "attention": "eager"}
    releases = ("4.28.1", "4.29.2", "4.30.2", "4.31.0", "4.32.1")
    before, wrapped, late, later, first = (
        peak(each) for each in rows_of(tmp_path, *({**mixed, "transformers": release} for release in releases))
    )
    (replicas,) = rows_of(tmp_path, {**mixed, "framework": "torch", "transformers": "4.31.0"})

    assert before == wrapped == first
    assert late == later == wrapped + 4 * 6_738_415_616
    assert isinstance(replicas.run, TorchRun)
    assert not replicas.run.keeps_unsharded


def test_fsdp_that_saves_on_the_card_needs_the_model_beside_its_shards(tmp_path: Path) -> None:
    mixed = {**RUN, "framework": "fsdp", "optimizer": "adamw", "precision": "autocast-bf16", "micro_batch": "1"}
    saving = {**mixed, "saves_on_card": "true"}
    steps, saved, older = rows_of(tmp_path, mixed, saving, {**saving, "torch": "1.13.1"})

    assert peak(older) - peak(saved) == pytest.approx(4 * 6_738_415_616 / 8, abs=1)
    assert peak(saved) > peak(steps)
    (whole,) = rows_of(tmp_path, {**saving, "framework": "torch", "lora_rank": "8", "lora_targets": "q_proj v_proj"})
    assert whole.run is not None
    assert predict(whole.run).at != "saving"


def test_overlapping_reductions_hold_a_second_bucket(tmp_path: Path) -> None:
    stage2 = {**RUN, "zero_stage": "2", "offload_optimizer": "true", "micro_batch": "1"}
    alone, overlapping = rows_of(tmp_path, stage2, {**stage2, "overlap_comm": "true"})

    assert peak(overlapping) - peak(alone) == 2 * 500_000_000


def test_a_model_not_made_under_zero_init_keeps_its_gathered_weights_without_checkpointing(tmp_path: Path) -> None:
    plain = {**RUN, "checkpointing": "false"}
    made, not_made, checkpointed = rows_of(
        tmp_path, plain, {**plain, "zero_init": "false"}, {**RUN, "zero_init": "false"}
    )

    assert made.run is not None
    gathered = sum(each.num_bytes for each in predict(made.run).terms if each.name == "gathered weights")
    assert gathered > 0
    assert peak(not_made) - peak(made) == 2 * 6_738_415_616 - gathered, "each weight once"
    assert peak(checkpointed) == peak(rows_of(tmp_path, RUN)[0])


def test_a_model_not_made_under_zero_init_passes_the_card_whole(tmp_path: Path) -> None:
    """The engine moves it there before stage 3 divides it: 13.5 GB, more than a step of adapters takes."""
    small = {**RUN, "micro_batch": "1", "sequence_length": "128", "lora_rank": "8", "lora_targets": "q_proj v_proj"}
    divided, whole, stage2 = rows_of(
        tmp_path, small, {**small, "zero_init": "false"}, {**small, "zero_stage": "2", "zero_init": "false"}
    )

    assert peak(divided) < peak(whole) == 2 * 6_738_415_616
    assert stage2.run is not None
    assert predict(stage2.run).at != "start"


def test_loading_the_best_checkpoint_in_stage_3_has_the_states_twice(tmp_path: Path) -> None:
    small = {**RUN, "micro_batch": "1", "sequence_length": "128"}
    best = {**small, "load_best_model_at_end": "true"}
    plain, loads, stage2, offloaded = rows_of(
        tmp_path, small, best, {**best, "zero_stage": "2"}, {**best, "offload_optimizer": "true"}
    )

    assert peak(loads) == round((2 + 2 + 4 + 8 + 8) * 6_738_415_616 / 8) > peak(plain)
    assert loads.run is not None
    assert predict(loads.run).at == "loading the best checkpoint"
    for row in (stage2, offloaded):
        assert row.run is not None
        assert predict(row.run).at != "loading the best checkpoint"


def test_offloaded_parameters_leave_the_card_what_is_gathered(tmp_path: Path) -> None:
    offloaded = {**RUN, "offload_optimizer": "true"}
    kept, moved = rows_of(tmp_path, offloaded, {**offloaded, "offload_parameters": "true"})
    assert kept.run is not None
    assert moved.run is not None
    before, after = predict(kept.run), predict(moved.run)

    share = 2 * 6_738_415_616 // 8
    assert before.peak_allocated_bytes - after.peak_allocated_bytes == share
    assert before.required_bytes - after.required_bytes == pytest.approx(1.07 * share, abs=1)
    assert sum(each.num_bytes for each in after.terms) == after.peak_allocated_bytes


def test_a_reason_beside_a_row_leaves_it_out(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, {**RUN, "left_out": "recorded before the first update"})

    assert (row.run, row.refusal) == (None, "recorded before the first update")


def test_every_row_of_ones_own_file_is_scored(tmp_path: Path) -> None:
    assert not any(is_fitted(row) for row in rows_of(tmp_path, *[RUN] * 4))


def test_the_three_frameworks_and_a_folder_of_ones_own_are_read(tmp_path: Path) -> None:
    config = '{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, '
    (tmp_path / "config.json").write_text(config + '"intermediate_size": 1376, "vocab_size": 32000}', encoding="utf-8")
    own = {**RUN, "model": str(tmp_path)}
    rows = rows_of(tmp_path, own, {**own, "framework": "fsdp", "optimizer": "adamw", "transformers": "4.48.1"})

    assert all(row.run is not None for row in rows), [row.refusal for row in rows]
    assert isinstance(rows[0].run, DeepSpeedRun)


CELLS = st.one_of(
    st.text(max_size=10), st.integers().map(str), st.floats().map(str), st.sampled_from(["a|b", "|", "1|2"])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(
    changed=st.dictionaries(
        st.sampled_from([*RUN, "lora_rank", "lora_targets", "reduce_bucket", "transformers", "grade", "outcome"]),
        CELLS,
        max_size=3,
    )
)
def test_whatever_a_cell_says_its_row_is_read_or_refused_with_words(tmp_path: Path, changed: dict[str, str]) -> None:
    try:
        rows = rows_of(tmp_path, {**RUN, **changed}, RUN)
    except PermanentError as error:
        assert "Error" not in error.reason.detail
        return
    assert rows[1].run is not None
    assert (rows[0].run is None) == bool(rows[0].refusal)
