"""The planner's answers to reports, beside what their threads did."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from frenzy.adapters.calibration_file import default_calibration
from tools.accuracy.report import DATA
from tools.accuracy.thread_remedies import ThreadRemedy, thread_remedies

REPORTS = DATA / "reports/public_reports.csv"


def answer(tmp_path: Path, **changed: str) -> ThreadRemedy:
    """Of the first report of which the thread tells what ended it, with other cells."""
    with REPORTS.open(encoding="utf-8", newline="") as file:
        row = next(each for each in csv.DictReader(file) if each["ended_settings"]) | changed
    path = tmp_path / "reports.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow(row)
    (found,) = thread_remedies(path, default_calibration())
    return found


def test_the_planner_that_offloads_as_the_thread_did_does_the_same(tmp_path: Path) -> None:
    tight = {"model": "Llama-3.2-3B", "gpu": "rtx-4090", "num_gpus": "1", "precision": "bf16"}
    found = answer(tmp_path, **tight, ended_settings="offload_optimizer=true")

    assert found.does_the_same
    assert "offload" in found.answer


def test_parameters_on_the_host_are_never_the_planners_answer(tmp_path: Path) -> None:
    assert not answer(tmp_path, ended_settings="offload_parameters=true").does_the_same


def test_a_change_of_the_plan_that_failed_is_named_though_a_new_job_has_another_plan(tmp_path: Path) -> None:
    found = answer(tmp_path, ended_settings="zero_stage=3")

    assert found.failed == "8xv100-32-z2-mb1-ckpt"
    assert "ZeRO stage: 2 -> 3" in found.alone
    assert (found.does_the_same, found.place) == (False, 1)


def test_a_smaller_step_than_the_threads_is_not_named(tmp_path: Path) -> None:
    wide = {"micro_batch": "4", "zero_stage": "3", "precision": "bf16", "gpu": "a100-40", "sequence_length": "4096"}
    found = answer(tmp_path, **wide, ended_settings="micro_batch=1")

    assert "micro-batch: 4 -> 2" in found.alone
    assert found.place is None


def test_fused_attention_is_named_where_the_change_to_it_mends_the_plan(tmp_path: Path) -> None:
    eager = {"precision": "bf16", "gpu": "a100-40", "zero_stage": "3", "checkpointing": "false", "attention": "eager"}
    found = answer(tmp_path, **eager, ended_settings="attention=flash_attention_2", sequence_length="2048")

    assert "training.attention: eager -> sdpa" in found.alone
    assert found.place == 1 + found.alone.index("training.attention: eager -> sdpa")


@pytest.mark.parametrize(("thread", "is_named"), [(1500, True), (400, False)])
def test_shorter_sequences_are_named_where_the_answer_is_no_longer_than_the_threads(
    tmp_path: Path, thread: int, *, is_named: bool
) -> None:
    long = {
        "precision": "bf16",
        "gpu": "a100-80",
        "sequence_length": "2048",
        "checkpointing": "false",
        "micro_batch": "4",
    }
    found = answer(tmp_path, **long, zero_stage="3", ended_settings=f"sequence_length={thread}")

    assert any(each.startswith("data.sequence_length: 2048 -> ") for each in found.alone), found.alone
    assert (found.place is not None) == is_named


def test_a_plan_that_has_the_threads_setting_already_does_not_name_it(tmp_path: Path) -> None:
    found = answer(tmp_path, ended_settings="zero_stage=2")
    before = answer(tmp_path, ended_settings="micro_batch=1")

    assert found.place == 1 + found.alone.index("ZeRO stage: 2 -> 3")
    assert before.failed.startswith("8xv100-32-z2-mb1")
    assert before.place is None


def test_offload_is_named_by_the_change_to_it_alone(tmp_path: Path) -> None:
    found = answer(tmp_path, ended_settings="offload_optimizer=true")

    assert found.place == 1 + found.alone.index("optimizer states: on the GPUs -> in host memory")


def test_what_was_only_advised_and_what_was_compared_later_is_told_apart() -> None:
    found = thread_remedies(REPORTS, default_calibration())

    assert {each.source.rsplit("/", 1)[-1] for each in found if each.is_advised} == {"6752", "4026", "2379"}
    assert [each.source.rsplit("/", 1)[-1] for each in found if each.is_of_length] == ["3708", "13"]


def test_replicas_are_stage_one_and_fsdp_is_stage_three(tmp_path: Path) -> None:
    stages = {each: answer(tmp_path, framework=each, zero_stage="").failed for each in ("torch", "fsdp")}

    assert stages == {"torch": "8xv100-32-z1-mb1-ckpt", "fsdp": "8xv100-32-z3-mb1-ckpt"}


def test_only_runs_out_of_memory_whose_thread_tells_settings_are_compared() -> None:
    with REPORTS.open(encoding="utf-8", newline="") as file:
        told = [row for row in csv.DictReader(file) if row["ended_settings"]]

    assert {row["outcome"] for row in told} == {"out of memory"}
    assert len(thread_remedies(REPORTS, default_calibration())) == len(told)
