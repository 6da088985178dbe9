"""What a script's folder holds, as a digest: code and settings count, what runs leave behind does not."""

from __future__ import annotations

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
