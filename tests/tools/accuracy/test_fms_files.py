"""Files of the fms format that nobody published: a row is read, or refused by the setting's name."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frenzy.core.memory.torch_kernels import Sharding, TorchRun
from frenzy.core.values.errors import PermanentError
from frenzy.evaluation.datasets import read_dataset, release_calibrations
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import Grade, Outcome, PublishedRow
from tools.accuracy.report import DATA

CALIBRATIONS = release_calibrations()
LORA = {
    "framework_config": "none",
    "model_name_or_path": "mistralai/Mistral-7B-v0.1",
    "num_gpus": "1",
    "per_device_train_batch_size": "4",
    "peft_method": "lora",
    "r": "16",
    "lora_dropout": "0.1",
    "target_modules": "q_proj k_proj v_proj o_proj",
    "torch_dtype": "bfloat16",
    "mem_peak_torch_mem_alloc_in_bytes": "26704571904",
}
FULL = {**LORA, "peft_method": "", "r": "", "lora_dropout": "", "target_modules": ""}


@pytest.fixture
def read_one(tmp_path: Path) -> Callable[..., PublishedRow]:
    def read(cells: dict[str, str], name: str = "mine.csv", **changed: str) -> PublishedRow:
        return read_all(tmp_path / name, [{**cells, **changed}])[0]

    return read


def read_all(file: Path, rows: list[dict[str, str]]) -> tuple[PublishedRow, ...]:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, sorted({name for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)
    return read_dataset(file, CALIBRATIONS)


def run_of(row: PublishedRow) -> TorchRun:
    assert row.refusal == ""
    assert isinstance(row.run, TorchRun)
    return row.run


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"framework_config": "moe-scattermoe-granite-ep2"}, "framework_config 'moe-scattermoe-granite-ep2'"),
        ({"framework_config": "brand-new"}, "framework_config 'brand-new'"),
        ({"num_gpus": ""}, "num_gpus is not recorded"),
        ({"num_gpus": "two"}, "num_gpus 'two'"),
        ({"per_device_train_batch_size": "2.5"}, "per_device_train_batch_size '2.5'"),
        ({"peft_method": "pt"}, "peft_method 'pt'"),
        ({"r": ""}, "r is not recorded"),
        ({"model_name_or_path": ""}, "model_name_or_path is not recorded"),
        ({"train_tokens_per_second": "1934", "train_samples_per_second": "5"}, "max_seq_length is not recorded"),
        ({"target_modules": " , "}, "target_modules is not recorded"),
        ({"target_modules": "sideways"}, "sideways is no linear map of mistral's layers"),
        ({"torch_dtype": "int8"}, "torch_dtype 'int8'"),
        ({"torch_dtype": "float32"}, "torch_dtype 'float32'"),
        ({"bf16": "perhaps"}, "bf16 'perhaps'"),
        ({"optim": "sophia"}, "optim 'sophia'"),
        ({"model_name_or_path": "somebody/Unheard-1B"}, "model_name_or_path 'somebody/Unheard-1B': its configuration"),
        ({"transformers": "4.31.0"}, "transformers 4.31.0"),
        ({"transformers": "newest"}, "transformers 'newest'"),
        ({"mem_peak_torch_mem_alloc_in_bytes": "a lot"}, "mem_peak_torch_mem_alloc_in_bytes 'a lot'"),
        ({"mem_peak_torch_mem_alloc_in_bytes": "", "error_messages": "CUDA launch failure"}, "error_messages"),
        ({"mem_peak_torch_mem_alloc_in_bytes": ""}, "mem_peak_torch_mem_alloc_in_bytes is not recorded"),
        ({"mem_peak_torch_mem_alloc_in_bytes": "", "train_runtime": ""}, "nor that memory ran out"),
        ({"mem_peak_torch_mem_alloc_in_bytes": "", "mem_nvidia_mem_reserved": "80e3"}, "nor that memory ran out"),
        ({"framework_config": ""}, "framework_config is not recorded"),
        ({"framework_config": "accelerated-peft-bnb", "peft_method": ""}, "peft_method is not recorded"),
    ],
)
def test_an_unknown_setting_refuses_its_row_by_name(
    read_one: Callable[..., PublishedRow], changed: dict[str, str], words: str
) -> None:
    row = read_one(LORA, **changed)

    assert row.run is None
    assert words in row.refusal


def test_one_bad_row_leaves_the_others(tmp_path: Path) -> None:
    bad, good = read_all(tmp_path / "two.csv", [{**LORA, "num_gpus": "many"}, LORA])

    assert bad.run is None
    assert good.run is not None


@pytest.mark.parametrize("targets", ["q_proj,v_proj", "q_proj v_proj", "['q_proj', 'v_proj']", "q_proj, v_proj"])
def test_target_modules_are_split_however_they_are_written(read_one: Callable[..., PublishedRow], targets: str) -> None:
    assert run_of(read_one(LORA, target_modules=targets)).trained.adapted == ("q_proj", "v_proj")


def test_columns_that_are_missing_have_the_benchmarks_defaults(tmp_path: Path) -> None:
    least = ("framework_config", "model_name_or_path", "num_gpus", "per_device_train_batch_size")
    failed = {"error_messages": "torch.OutOfMemoryError: CUDA out of memory."}
    (row,) = read_all(tmp_path / "least.csv", [{**{name: FULL[name] for name in least}, **failed}])

    run = run_of(row)
    assert (run.sequence_length, run.accumulation, run.coefficients.checkpointing) == (4096, 1, True)
    assert (row.outcome, row.outcome_is_assumed) == (Outcome.OUT_OF_MEMORY, False)


def test_empty_results_beside_what_nvidia_smi_showed_are_taken_for_out_of_memory(
    read_one: Callable[..., PublishedRow],
) -> None:
    results = {"mem_peak_torch_mem_alloc_in_bytes": "", "train_runtime": "", "mem_nvidia_mem_reserved": "80882"}
    row = read_one(LORA, **results)

    assert (row.refusal, row.outcome, row.outcome_is_assumed) == ("", Outcome.OUT_OF_MEMORY, True)
    assert not read_one(LORA).outcome_is_assumed


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("meta-llama/Meta-Llama-3-8B", 8_030_261_248),
        ("TechxGenus/Meta-Llama-3-8B-GPTQ", 8_030_261_248),
        ("NousResearch/Llama-2-7b-hf", 6_738_415_616),
        ("meta-llama/Llama-2-7b", 6_738_415_616),
        ("/models/Mistral-7B-v0.1/", 7_241_732_096),
        ("ibm/PowerLM-3b", 3_510_819_072),
    ],
)
def test_models_are_known_under_the_names_of_their_packages(
    read_one: Callable[..., PublishedRow], model: str, known: int
) -> None:
    assert run_of(read_one(FULL, model_name_or_path=model, transformers="4.45.2")).shape.num_parameters == known


def test_mixed_precision_on_several_gpus_keeps_fp32_masters(read_one: Callable[..., PublishedRow]) -> None:
    alone = run_of(read_one(FULL, bf16="True"))
    sharded = run_of(read_one(FULL, bf16="True", num_gpus="4"))

    assert (alone.layer_bytes, alone.trained_bytes) == (2, 2)
    assert (sharded.layer_bytes, sharded.trained_bytes, sharded.sharding) == (4, 4, Sharding.FULL)


def test_ligers_loss_holds_no_logits(read_one: Callable[..., PublishedRow]) -> None:
    def peak(name: str) -> int:
        run = run_of(read_one(LORA, framework_config=name, model_name_or_path="meta-llama/Meta-Llama-3-8B"))
        return predict(run).peak_allocated_bytes

    saved = peak("foak-fast-kernels") - peak("foak-fast-kernels-liger")
    one_copy = 4 * 4 * 4096 * 128256
    assert one_copy < saved < 3 * one_copy


def test_gradients_of_earlier_micro_batches_are_held(read_one: Callable[..., PublishedRow]) -> None:
    batch = {"per_device_train_batch_size": "16", "transformers": "4.48.1"}
    once = predict(run_of(read_one(FULL, **batch))).peak_allocated_bytes
    summed = predict(run_of(read_one(FULL, **batch, gradient_accumulation_steps="4"))).peak_allocated_bytes

    assert summed > once


def test_padding_free_runs_have_lengths_that_vary_hence_a_lower_grade(read_one: Callable[..., PublishedRow]) -> None:
    assert read_one(LORA).grade is Grade.A
    assert read_one(LORA, framework_config="aadp-padding-free").grade is Grade.A_MINUS


def test_the_release_is_told_by_column_requirements_name_and_default_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "fms_a100_80gb_liger.csv"
    assert read_all(file, [LORA])[0].release.startswith("4.45.2 (the requirements published")
    (tmp_path / "requirements_liger.txt").write_text("torch==2.4.1\ntransformers==4.48.1\n", encoding="utf-8")
    assert read_all(file, [LORA])[0].release == "4.48.1 (requirements_liger.txt)"
    assert read_all(file, [{**LORA, "transformers": "4.46.0"}])[0].release == "4.46.0 (column transformers)"
    assert read_all(tmp_path / "mine.csv", [LORA])[0].release == "4.48 (not recorded, assumed)"


CELLS = st.one_of(
    st.text(max_size=12),
    st.integers(-10, 10**12).map(str),
    st.floats().map(str),
    st.sampled_from(["", "True", "none", "nan", "inf", "1e400", "q_proj,,", "lora", "foak-fast-kernels-liger-foak"]),
)
COLUMNS = sorted({*LORA, "bf16", "fp16", "optim", "gradient_accumulation_steps", "max_seq_length", "packing",
                  "mem_nvidia_mem_reserved", "train_tokens_per_second", "train_samples_per_second", "transformers",
                  "gradient_checkpointing", "use_flash_attn", "error_messages"})  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(changed=st.dictionaries(st.sampled_from(COLUMNS), CELLS, max_size=4), dropped=st.sets(st.sampled_from(COLUMNS)))
def test_whatever_a_file_says_its_rows_are_read_or_refused_with_words(
    tmp_path: Path, changed: dict[str, str], dropped: set[str]
) -> None:
    cells = {name: cell for name, cell in {**LORA, **changed}.items() if name not in dropped}
    try:
        rows = read_all(tmp_path / "fuzz.csv", [cells, LORA] if cells else [LORA])
    except PermanentError as error:
        assert "Error" not in error.reason.detail
        return
    for row in rows:
        assert (row.run is None) == bool(row.refusal)
        assert row.run is None or predict(row.run).peak_allocated_bytes > 0
        assert not re.search(r"KeyError|Traceback", row.refusal)


def test_every_published_row_of_the_benchmark_is_read() -> None:
    rows = [row for file in sorted(DATA.glob("fms_*.csv")) for row in read_dataset(file, CALIBRATIONS)]

    assert len(rows) >= 124 + 192
    assert {row.refusal for row in rows} == {""}
