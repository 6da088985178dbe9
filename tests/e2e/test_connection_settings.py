"""What Airflow's Connection says reaches tasks, the triggerer and the pages of a running Airflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.together import Together
from tests.e2e.walker import Walker

pytestmark = pytest.mark.thorough


def test_tasks_the_triggerer_and_the_pages_of_one_airflow_take_them(walker: Walker, together: Together) -> None:
    """The shared Airflow is started with its Connection alone (see conftest)."""
    variables = walker.stack.environment()
    extras = json.loads(json.loads(variables["AIRFLOW_CONN_FRENZY_DEFAULT"])["extra"])
    assert not set(extras) & set(variables), "nothing but the Connection says it"
    view = walker.succeed(*together.plain[0])
    folder = Path(extras["FRENZY_RUN_ROOT"]) / view.run.run_key
    assert list(folder.rglob("result.json")), "the task launched the workers there, and the triggerer saw them end"
    assert not list((walker.stack.settings.home / "runs").glob("*"))
    assert {row.gpu_type for row in walker.gpus().types} >= {"t-small", "t-slow"}, "the API server's cluster"
    assert walker.http.get(f"/frenzy/api/v1/runs/{view.run.run_key}/logs").is_success, "the API server reads there"
