"""Whichever way a job comes in, its relative paths become the same absolute ones, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frenzy.adapters.spec.job_form import job_params
from frenzy.adapters.spec.job_spec import job_from_yaml, job_to_document
from frenzy.adapters.spec.spec_file import checked_spec
from frenzy.airflow.dags.train_form import job_of_form
from frenzy.airflow.tasks.profile import job_of
from frenzy.core.values.job import TrainingJob

TEXT = """
name: example
data: {path: data/a.txt}
model: {config: {model_type: gpt2}, tokenizer: tokenizer.json}
training: {global_batch_size: 8, max_steps: 10}
checkpoint: {warm_start: models/*.bin}
"""
FILES = ("data/a.txt", "tokenizer.json", "models/one.bin")
WANTED = ("data/a.txt", "tokenizer.json", "models/*.bin")


def form(_: Path) -> Any:
    document = job_to_document(job_from_yaml(TEXT), full=True)
    params = {
        each.name: document[each.path[0]] if len(each.path) == 1 else document[each.path[0]][each.path[1]]
        for each in job_params()
    }
    return job_of_form(params, Path())


ENTRANCES: dict[str, Callable[[Path], Any]] = {
    "a file of a DAG's include folder": str,
    "a stored job, from the API": lambda file: job_from_yaml(file.read_text()),
    "a mapping of a DAG": lambda file: job_to_document(job_from_yaml(file.read_text())),
    "the form": form,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with DAGs and data side by side, and a file of its include folder."""
    for name in (*FILES, "dags/one.py", "include/jobs/example.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TEXT)
    monkeypatch.setenv("FRENZY_DAGS", str(tmp_path / "dags"))
    monkeypatch.chdir("/")
    return tmp_path


def paths(job: TrainingJob) -> tuple[str | None, ...]:
    return job.data.path, job.model.tokenizer, job.checkpoint.warm_start


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_paths_are_taken_from_beside_the_dags(entrance: str, project: Path) -> None:
    job = job_of(ENTRANCES[entrance](project / "include/jobs/example.yaml"))
    assert paths(job) == tuple(str(project / each) for each in WANTED)


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_only_the_author_of_a_file_leads_out_of_the_folder(entrance: str, project: Path) -> None:
    file = project / "include/jobs/example.yaml"
    file.write_text(TEXT.replace("data/a.txt", "../../data/a.txt"))
    is_author = ENTRANCES[entrance] is str
    given = job_of(ENTRANCES[entrance](file) if entrance != "the form" else job_from_yaml(file.read_text()))
    assert given.data.path == (f"{file.parent}/../../data/a.txt" if is_author else "../../data/a.txt")


def test_a_file_of_a_dag_is_first_asked_for_what_lies_beside_it(project: Path) -> None:
    own = project / "include/jobs/data/a.txt"
    own.parent.mkdir()
    own.touch()
    assert paths(job_of(own.parents[1] / "example.yaml"))[0] == str(own)


def test_what_the_command_line_handed_in_is_not_anchored_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = project / "mine"
    for name in FILES:
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).touch()
    monkeypatch.chdir(elsewhere)
    handed_in = checked_spec(project / "include/jobs/example.yaml")
    assert paths(handed_in.job) == tuple(str(elsewhere / each) for each in WANTED)
    assert job_of(job_from_yaml(handed_in.text)) == handed_in.job


def test_the_newest_model_is_no_file_even_where_one_is_called_so(project: Path) -> None:
    (project / "newest").write_text("")
    file = project / "include/jobs/example.yaml"
    file.write_text(TEXT.replace("models/*.bin", "newest"))
    assert job_of(str(file)).checkpoint.warm_start == "newest"
