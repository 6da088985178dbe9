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
from frenzy.core.values.gpu_catalogue import CATALOGUE
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
TORCH = {**RUN, "framework": "torch", "zero_stage": "", "optimizer": "adamw"}
MIXED = {**TORCH, "precision": "autocast-bf16"}


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
        ({"model": "nobody/knows"}, "model 'nobody/knows': its configuration is not at hand"),
        ({"framework": "megatron"}, "framework 'megatron'"),
        ({"zero_stage": "0"}, "zero_stage '0'"),
        ({"gpu": "abacus"}, "gpu 'abacus'"),
        ({"gpu": "A100"}, "gpu 'A100' may be a100-40, a100-40-pcie, a100-80, a100-80-pcie: name one"),
        ({"gpu": "a100-80", "capacity_gib": "40"}, "gpu 'a100-80' does not have capacity_gib '40'"),
        ({"capacity_gib": "0"}, "capacity_gib '0' is not a number above 0"),
        ({"peak_gib": ""}, "peak_gib is not recorded"),
        ({"peak_gib": "1e308"}, "peak_gib '1e308' is more than 1e+18"),
        ({"peak_gib": "0"}, "peak_gib '0' is not a number above 0"),
        ({"peak_mib": "20"}, "peak_mib '20' and peak_gib '20.4' are not the same"),
        ({"micro_batch": "half"}, "micro_batch 'half'"),
        ({"micro_batch": "-2"}, "micro_batch '-2' is not a whole number of at least 1"),
        ({"checkpointing": "Perhaps"}, "checkpointing 'Perhaps'"),
        ({"torch": "2.x"}, "torch '2.x' is not a release"),
        ({"optimizer": "Lamb"}, "optimizer 'Lamb'"),
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


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        (TORCH, {"zero_stage": "3"}),
        (TORCH, {"zero_stage": "Banana"}),
        (TORCH, {"tensor_parallel": "2"}),
        (TORCH, {"offload_optimizer": "true|false"}),
        (TORCH, {"offload_parameters": "true"}),
        (TORCH, {"overlap_comm": "true"}),
        (TORCH, {"gradients": "fp8"}),
        (TORCH, {"reduce_bucket": "5e8"}),
        (TORCH, {"prefetch_bucket": "1"}),
        (TORCH, {"persistence_threshold": "1"}),
        (TORCH, {"max_live_parameters": "1"}),
        (TORCH, {"held_logits_bytes": "4"}),
        (TORCH, {"zero_init": "false"}),
        (TORCH, {"saves_on_card": "true"}),
        (TORCH, {"lora_targets": "q_proj"}),
        (TORCH, {"lora_dropout": "0.1"}),
        (TORCH, {"storage": "nf4"}),
        ({**MIXED, "framework": "fsdp"}, {"zero_stage": "1"}),
        ({**MIXED, "framework": "fsdp"}, {"offload_optimizer": "true"}),
        ({**MIXED, "framework": "fsdp", "num_gpus": "1"}, {"saves_on_card": "true"}),
        (RUN, {"saves_on_card": "true"}),
        (RUN, {"lora_dropout": "0.1"}),
        (RUN, {"storage": "nf4"}),
    ],
)
def test_a_cell_that_nothing_of_the_run_uses_refuses_its_row(
    tmp_path: Path, row: dict[str, str], changed: dict[str, str]
) -> None:
    ((column, value),) = changed.items()
    refused, without = rows_of(tmp_path, {**row, **changed}, {**row, column: ""})

    assert without.run is not None
    assert refused.run is None
    assert refused.refusal.startswith(f"{column} {value!r} ")
    assert "leave it empty" in refused.refusal


def test_a_cell_that_says_what_holds_anyway_is_taken(tmp_path: Path) -> None:
    anyway = {
        "zero_stage": "0",
        "tensor_parallel": "1.0",
        "offload_optimizer": "False",
        "held_logits_bytes": "0",
        "saves_on_card": "false",
        "lora_dropout": "0.0",
        "storage": "plain",
        "load_best_model_at_end": "true",
    }
    (row,) = rows_of(tmp_path, {**TORCH, **anyway})

    assert peak(row) == peak(rows_of(tmp_path, TORCH)[0])
    assert "ZeRO" not in row.label


def test_a_cell_that_one_of_the_possible_runs_uses_is_taken(tmp_path: Path) -> None:
    adapters = {"lora_rank": "8", "lora_targets": "q_proj v_proj", "micro_batch": "64"}
    (row,) = rows_of(tmp_path, {**MIXED, **adapters, "framework": "fsdp|torch", "saves_on_card": "true"})

    assert row.refusal == ""


@pytest.mark.parametrize("garbage", [{"load_best_model_at_end": "banana"}, {"torch": "banana"}])
@pytest.mark.parametrize("row", [RUN, TORCH])
def test_settings_that_every_framework_may_have_are_read_whatever_it_is(
    tmp_path: Path, row: dict[str, str], garbage: dict[str, str]
) -> None:
    assert "'banana'" in rows_of(tmp_path, {**row, **garbage})[0].refusal


@pytest.mark.parametrize(
    ("written", "name"), [("RTX4090", "rtx-4090"), ("A100-SXM4-80GB", "a100-80"), ("A800", "a800-80-pcie")]
)
def test_cards_are_known_as_people_write_them(tmp_path: Path, written: str, name: str) -> None:
    (row,) = rows_of(tmp_path, {**RUN, "gpu": written})
    assert row.capacity_bytes == CATALOGUE[name].gpu.memory_bytes


def test_a_measurement_in_two_units_is_one(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, {**RUN, "peak_gib": "20.4", "peak_mib": "20890"})
    assert (row.refusal, row.peak_bytes) == ("", 20890 * 2**20)


def test_a_row_with_more_cells_than_columns_is_refused_and_the_next_keeps_its_line(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    columns = "model,framework,gpu,micro_batch,sequence_length,peak_gib,note\n"
    row = "Llama-2-7b-hf,torch,a100-80,2,4096,70,"
    file.write_text(f'{columns}{row}"a\nb"\n\n{row},99\n{row},,\n{row}\n', encoding="utf-8")
    several, beyond, empty, last = read_dataset(file, CALIBRATIONS)

    assert beyond.refusal == "it has 1 cell beyond the columns: quote a cell that has a comma"
    assert (several.refusal, empty.refusal, last.refusal) == ("", "", "")
    assert [each.line for each in (several, beyond, empty, last)] == [2, 5, 6, 7]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model,framework,micro_batch,sequence_length,peak_gib,peak_gib\n", "several columns of one name: peak_gib"),
        ("model;framework;micro_batch;sequence_length\n", "parted by semicolons"),
        ("model\tframework\tmicro_batch\tsequence_length\n", "parted by tabs"),
    ],
)
def test_a_file_that_cannot_be_read_for_sure_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PermanentError) as refused:
        read_dataset(file, CALIBRATIONS)
    assert words in refused.value.reason.detail


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
    given = {"deepspeed": {**RUN, "optimizer": "adamw"}, "torch": TORCH}[framework]
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
    stage = "3" if framework == "deepspeed" else ""
    given = {**TORCH, "framework": framework, "zero_stage": stage}
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
    alone, sharded = (each.run for each in rows_of(tmp_path, MIXED, {**MIXED, "framework": "fsdp"}))

    assert isinstance(alone, TorchRun)
    assert isinstance(sharded, TorchRun)
    assert (alone.layer_bytes, alone.coefficients.precision) == (4, Precision.AUTOCAST_BF16)
    assert (sharded.layer_bytes, sharded.coefficients.precision) == (4, Precision.BF16)


def test_trainers_of_4_30_and_4_31_keep_what_is_trained_whole_on_each_rank_of_fsdp(tmp_path: Path) -> None:
    mixed = {**MIXED, "framework": "fsdp", "attention": "eager"}
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
    mixed = {**MIXED, "framework": "fsdp", "micro_batch": "1"}
    saving = {**mixed, "saves_on_card": "true"}
    steps, saved, older = rows_of(tmp_path, mixed, saving, {**saving, "torch": "1.13.1"})

    assert peak(older) - peak(saved) == pytest.approx(4 * 6_738_415_616 / 8, abs=1)
    assert peak(saved) > peak(steps)


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
    rows = rows_of(tmp_path, own, {**TORCH, "model": str(tmp_path), "framework": "fsdp", "transformers": "4.48.1"})

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
