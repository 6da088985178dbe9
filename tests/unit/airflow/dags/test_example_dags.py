"""The complete example is a template: what it imports may not change, and nothing of it is elsewhere."""

from __future__ import annotations

import ast
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

import frenzy
from frenzy.adapters.spec.job_spec import job_from_document
from frenzy.core.runs.ledger import DataFacts
from frenzy.core.values.codec import decode
from frenzy.settings import CHECKOUT
from frenzy.trainer.data.data_facts import data_facts

EXAMPLE = CHECKOUT / "dags/example_etl_then_train.py"


def test_the_example_imports_public_names_alone() -> None:
    imports = [each for each in ast.walk(ast.parse(EXAMPLE.read_text("utf-8"))) if isinstance(each, ast.ImportFrom)]
    ours = [each for each in imports if (each.module or "").partition(".")[0] == "frenzy"]
    assert {each.module for each in ours} == {"frenzy"}
    assert {name.name for each in ours for name in each.names} <= set(frenzy.__all__)


def test_a_copy_of_it_writes_the_data_that_its_job_names_and_tells_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FRENZY_HOME", "~/home")
    copied = shutil.copy(EXAMPLE, tmp_path)
    dag: Any = runpy.run_path(copied)["dag"]
    found = dag.get_task("clean").python_callable(run_id="manual__2026-01-01T00:00:00+00:00")
    job = job_from_document(found["job"])
    assert Path(job.data.path).is_relative_to(tmp_path / "home/etl")
    assert decode(DataFacts, found["data_facts"]) == data_facts_without_vocabulary(job)


def data_facts_without_vocabulary(job: frenzy.TrainingJob) -> DataFacts:
    counted = data_facts(job)
    return DataFacts(
        num_rows=counted.num_rows,
        num_tokens=counted.num_tokens,
        longest_sequence_tokens=counted.longest_sequence_tokens,
    )
