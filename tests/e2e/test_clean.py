"""Cleaning a run that really trained: its model stays usable, all else goes, and Airflow shows it as before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.together import Together
from tests.e2e.walker import Walker

from frenzy.cli.embedded.airflow_env import CONNECTION_VARIABLE
from frenzy.core.runs.protocol import CleanedRun, CleanRun
from frenzy.core.values.codec import encode

pytestmark = pytest.mark.thorough


def test_of_a_cleaned_run_the_model_is_left(walker: Walker, together: Together) -> None:
    dag_id, run_id = together.plain[-1]
    view = walker.succeed(dag_id, run_id)
    variables = walker.stack.environment()
    extras = json.loads(json.loads(variables[CONNECTION_VARIABLE])["extra"])
    folder = Path(extras["FRENZY_RUN_ROOT"]) / view.run.run_key
    model = {path.name for path in (folder / "model").iterdir()}
    assert "config.json" in model
    wish = CleanRun(older_than_s=0.0)
    cleaned = walker.frenzy("POST", f"/runs/{view.run.run_key}/clean", CleanedRun, encode(wish))
    assert cleaned.num_bytes > 0
    assert [path.name for path in folder.iterdir()] == ["model"]
    assert {path.name for path in (folder / "model").iterdir()} == model
    for page in ("memory", "explain"):
        assert walker.http.get(f"/frenzy/api/v1/runs/{view.run.run_key}/{page}").is_success
    after = walker.view(dag_id, run_id)
    assert after is not None and (after.run, after.attempts) == (view.run, view.attempts)
