"""What a script's folder holds, as a digest: code and settings count, what runs leave behind does not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.app.playing import make_job

from frenzy.adapters.spec.script_content import script_content
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.workload import WorkloadSpec


@pytest.fixture
def job(tmp_path: Path) -> TrainingJob:
    (tmp_path / "train.py").write_text("print(1)")
    return replace(make_job(), workload=WorkloadSpec(command=("python", "train.py"), folder=str(tmp_path)))


def test_another_line_of_code_or_another_name_is_another_script(job: TrainingJob, tmp_path: Path) -> None:
    before = script_content(job)
    assert before
    (tmp_path / "train.py").write_text("print(2)")
    changed = script_content(job)
    (tmp_path / "train.py").rename(tmp_path / "other.py")
    assert len({before, changed, script_content(job)}) == 3


@pytest.mark.parametrize("name", ["checkpoint-3/trainer_state.json", ".git/config.ini", "__pycache__/a.py", "data.txt"])
def test_what_runs_leave_behind_changes_nothing(job: TrainingJob, tmp_path: Path, name: str) -> None:
    before = script_content(job)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    assert script_content(job) == before


def test_a_folder_that_cannot_be_read_has_no_digest(job: TrainingJob) -> None:
    assert job.workload is not None
    assert script_content(replace(job, workload=replace(job.workload, folder="/no/such/folder"))) == ""
    assert script_content(replace(job, workload=replace(job.workload, folder=None))) == ""
    assert script_content(make_job()) == ""


def test_a_folder_named_almost_like_one_of_runs_is_code(job: TrainingJob, tmp_path: Path) -> None:
    before = script_content(job)
    (tmp_path / "checkpointing").mkdir()
    (tmp_path / "checkpointing/keep.py").write_text("ON = True")
    assert script_content(job) != before


def test_names_of_any_bytes_links_to_nothing_and_environments_do_no_harm(job: TrainingJob, tmp_path: Path) -> None:
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr")
    before = script_content(job)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/not-utf8-\xff.py")).write_text("1")
    assert len({before, script_content(job)}) == 2


def test_of_a_folder_of_data_little_is_read(job: TrainingJob, tmp_path: Path) -> None:
    for number in range(70):
        with (tmp_path / f"rows-{number:02}.json").open("wb") as file:
            file.truncate(2**20)
    before = script_content(job)
    (tmp_path / "rows-69.json").write_text("changed")
    assert script_content(job) == before
