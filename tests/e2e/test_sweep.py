"""A mapped training group on a live stack: runs of their own, none of which waits for another or falls with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.growing import check_moves, growing, plans_of, rungs_of
from tests.e2e.walker import Walker, job_text

from frenzy.core.lifecycle.reschedule import Rung
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.codec import decode

pytestmark = pytest.mark.thorough

GOOD = ("swept-lr1e-4", "swept-lr1e-2", "swept-growing")
# Mapped over what a task returns, as Airflow expands it while the DAG runs.
DAG_FILE = """
from airflow.sdk import DAG, task

from frenzy import combinations, frenzy_comparison, frenzy_training

with DAG("swept", schedule=None):

    @task
    def jobs():
        good = combinations({job!r}, {{"training.learning_rate": [1e-4, 1e-2]}})
        return [*good, {growing!r}, {broken!r}]

    frenzy_training.partial(evaluate=True).expand(job=jobs()) >> frenzy_comparison()
"""


@pytest.fixture(scope="module")
def swept(walker: Walker) -> str:
    """A run of the DAG, ended: three good jobs, of which one has to move, and one without its data."""
    short = {"prompt": "Line", "max_new_tokens": 4, "max_sequences": 2, "enabled": True}

    def document(name: str, **sections: Any) -> Any:
        return yaml.safe_load(job_text(name, walker.corpus, evaluation=short, **sections))

    text = DAG_FILE.format(
        job=document("swept"),
        # A batch that can be cut: half of it leaves room for all snapshots.
        growing=document(
            "swept-growing",
            training=growing(40, max_steps=26, global_batch_size=16),
            constraints={"gpu_types": ["t-small"], "max_gpus": 1},
        ),
        broken=document("swept-broken", data={"path": str(walker.corpus.parent / "absent.txt")}),
    )
    (walker.stack.settings.jobs_folder / "swept.py").write_text(text, encoding="utf-8")
    walker.eventually("the DAG swept", lambda: walker.http.get("/api/v2/dags/swept").is_success)
    run_id = walker.trigger("swept")
    walker.eventually("the end", lambda: walker.dag_run_state("swept", run_id) in ("success", "failed"), 540)
    return run_id


def runs(walker: Walker, run_id: str) -> dict[str, RunView]:
    """The runs of the DAG run by the names of their jobs."""
    answer = walker.http.get(f"/frenzy/api/v1/runs/by-dag/swept/{run_id}")
    answer.raise_for_status()
    return {view.run.job.name: view for view in (decode(RunView, each) for each in answer.json())}


def test_every_mapped_instance_is_a_run_that_ends_by_itself(walker: Walker, swept: str) -> None:
    assert walker.dag_run_state("swept", swept) == "success"
    views = runs(walker, swept)
    assert {name: view.run.state for name, view in views.items()} == dict.fromkeys(GOOD, JobState.SUCCEEDED)
    assert {name: view.run.identity.map_index for name, view in views.items()} == {
        "swept-lr1e-4": 0,
        "swept-lr1e-2": 1,
        "swept-growing": 2,
    }
    assert len({view.run.run_key for view in views.values()}) == 3
    check_moves(views["swept-growing"])
    assert all(view.lease is None for view in views.values())


def test_the_lowest_rung_of_the_ladder_is_a_smaller_micro_batch(walker: Walker, swept: str) -> None:
    view = runs(walker, swept)["swept-growing"]
    assert rungs_of(view)[0] is Rung.MICRO_BATCH, plans_of(view)


def test_the_comparison_has_the_best_run_first(walker: Walker, swept: str) -> None:
    path = f"/dags/swept/dagRuns/{swept}/taskInstances/compare/xcomEntries/return_value"
    value = walker.airflow("GET", path)["value"]
    found = json.loads(value) if isinstance(value, str) else value
    assert [each["rank"] for each in found] == [1, 2, 3]
    assert [each["loss"] for each in found] == sorted(each["loss"] for each in found)
    assert {each["settings"]["training.learning_rate"] for each in found} == {1e-4, 1e-3, 1e-2}
    assert all(each["perplexity"] for each in found)
    assert len({each["model"] for each in found}) == 3
    assert all(Path(each["model"], "config.json").is_file() for each in found)
