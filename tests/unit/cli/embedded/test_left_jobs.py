"""What a stop leaves is told from the ledger, with nothing running."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.scenarios.evidence import good

from frenzy.adapters.ledger_sql.schema import migrate
from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger
from frenzy.cli.embedded.left_jobs import left_jobs
from frenzy.cli.embedded.stack import Stack
from frenzy.cli.main import run
from frenzy.core.runs.ledger import JobState
from frenzy.settings import load_settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose Airflow was started once; in its ledger a job that waits, and one that is done."""
    (tmp_path / "airflow").mkdir()
    (tmp_path / "stack.json").write_text(json.dumps({"port": 1}), encoding="utf-8")
    url = f"sqlite:///{tmp_path / 'airflow/airflow.db'}"
    migrate(url)
    done = good().view.run
    waiting = replace(done, run_key="other", state=JobState.QUEUED, job=replace(done.job, name="nightly"))
    ledger = SqlLedger.at(url)
    with ledger.transaction() as tx:
        tx.put_run(done)
        tx.put_run(waiting)
    ledger.close()
    return tmp_path


def test_a_job_that_has_not_ended_is_named_and_one_that_has_is_not(home: Path) -> None:
    assert left_jobs(Stack(load_settings({"FRENZY_HOME": str(home)}), {})) == ("nightly: waits",)


def test_down_says_what_it_leaves_and_how_that_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRENZY_HOME", str(home))
    assert run(["down"]) == 0
    said = capsys.readouterr().out
    assert "nightly: waits" in said
    assert "frenzy up" in said


def test_down_in_a_home_that_never_ran_speaks_of_no_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRENZY_HOME", str(tmp_path / "never"))
    assert run(["down"]) == 0
    assert "frenzy up" not in capsys.readouterr().out
