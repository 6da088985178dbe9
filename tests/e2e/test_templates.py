"""On a live stack: no template in a job's text is rendered, and what an author's own fetches only the workers see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import create_engine, inspect, text
from tests.e2e.walker import MODEL, Walker, job_text

from frenzy.cli.embedded.airflow_env import CONNECTION_VARIABLE
from frenzy.core.runs.ledger import JobState

pytestmark = pytest.mark.thorough

STOLEN = ("canary-of-the-attacked-a1", "canary-of-the-attacked-b2", "canary-of-the-attacked-c3")
OWN = ("canary-of-the-author-a1", "canary-of-the-author-b2", "canary-of-the-author-c3")
ATTACK = (
    "{{ conn.attacked.password }} {{ conn.attacked.extra_dejson.word }} {{ var.value.attacked }} "
    "{{ conn.frenzy_default.password }}"
)
AUTHORS_DAG = """
from airflow.sdk import DAG

from frenzy.airflow.operators.task_group import frenzy_evaluation, frenzy_training

with DAG("authors", schedule=None):
    frenzy_training({job!r}) >> frenzy_evaluation()
"""


def seed(walker: Walker, name: str, canaries: tuple[str, str, str]) -> None:
    password, word, value = canaries
    extra = json.dumps({"word": word})
    walker.airflow(
        "POST", "/connections", {"connection_id": name, "conn_type": "http", "password": password, "extra": extra}
    )
    walker.airflow("POST", "/variables", {"key": name, "value": value})


def attacking(name: str, walker: Walker) -> str:
    return job_text(
        name,
        walker.corpus,
        description=ATTACK,
        training={"max_steps": 2},
        evaluation={"enabled": True, "prompt": ATTACK, "max_new_tokens": 4, "max_sequences": 2},
        env={"STOLEN": ATTACK},
    )


def attacked_form(walker: Walker) -> tuple[str, str]:
    """A run of the form whose text fields are templates."""
    conf = {
        "name": "attack-form",
        "preset": "none",
        "model__config": MODEL,
        "data__path": str(walker.corpus),
        "data__sequence_length": 64,
        "training__max_steps": 2,
        "training__precision": "fp32",
        "training__global_batch_size": 4,
        "evaluation__prompt": ATTACK,
        "evaluation__max_new_tokens": 4,
        "description": ATTACK,
        "env": {"STOLEN": ATTACK},
    }
    walker.airflow("PATCH", "/dags/frenzy_train", {"is_paused": False})
    made = walker.airflow("POST", "/dags/frenzy_train/dagRuns", {"logical_date": None, "conf": conf})
    return "frenzy_train", str(made["dag_run_id"])


def _document(walker: Walker) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(attacking("any", walker))
    return document


def authors_run(walker: Walker) -> tuple[str, str]:
    """A run of a DAG file whose author takes texts from a Connection and a Variable."""
    job = _document(walker) | {
        "name": "authors",
        "description": "{{ run_id }}",
        "evaluation": {"enabled": True, "prompt": "{{ var.value.own }}", "max_new_tokens": 4, "max_sequences": 2},
        "env": {"TOKEN": "{{ conn.own.password }}", "WORD": "{{ conn.own.extra_dejson.word }}"},
    }
    path = walker.stack.settings.jobs_folder / "authors.py"
    path.write_text(AUTHORS_DAG.format(job=job), encoding="utf-8")
    walker.eventually("the DAG authors", lambda: walker.http.get("/api/v2/dags/authors").is_success)
    return "authors", walker.trigger("authors")


def shown(walker: Walker, dag_id: str, run_id: str) -> Iterator[tuple[str, str]]:
    """Every answer of both APIs about one DAG run to administrator and service, and what asks for it."""
    view = walker.view(dag_id, run_id)
    assert view is not None
    run, of_dag = f"/frenzy/api/v1/runs/{view.run.run_key}", f"/api/v2/dags/{dag_id}"
    of_run = f"{of_dag}/dagRuns/{run_id}"
    paths = [f"{run}{each}" for each in ("", "/place", "/memory", "/explain", "/logs")]
    paths += ["/frenzy/api/v1/runs", f"/frenzy/api/v1/runs/by-dag/{dag_id}/{run_id}", "/frenzy/api/v1/queue/snapshot"]
    paths += [of_dag, f"{of_dag}/details", f"{of_dag}/tasks", f"/api/v2/dagSources/{dag_id}", of_run]
    for task in walker.airflow("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]:
        of_task = f"{of_run}/taskInstances/{task['task_id']}"
        paths += [of_task, f"{of_task}/xcomEntries/return_value", f"{of_task}/logs/{max(1, task['try_number'])}"]
    for user in ("admin", "frenzy"):
        headers = walker.stack.headers(user)
        for path in paths:
            answer = walker.http.get(path, headers=headers)
            assert answer.status_code in (200, 403, 404), (path, answer.text)
            yield f"{path} for {user}", answer.text


def database(walker: Walker) -> Iterator[tuple[str, str]]:
    """Every row of Airflow's database, and of the ledger in it, by table; Airflow encrypts what it keeps of secrets."""
    engine = create_engine(walker.database)
    with engine.connect() as reader:
        for table in inspect(engine).get_table_names():
            # A row of SQLAlchemy shows no more than the ends of long texts.
            yield table, str([tuple(row) for row in reader.execute(text(f'SELECT * FROM "{table}"'))])
    engine.dispose()


def folder_of(walker: Walker, dag_id: str, run_id: str) -> Path:
    """The run directory."""
    view = walker.view(dag_id, run_id)
    assert view is not None
    extras = json.loads(json.loads(walker.stack.environment()[CONNECTION_VARIABLE])["extra"])
    return Path(extras["FRENZY_RUN_ROOT"]) / view.run.run_key


def files_below(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix not in (".db", ".db-wal", ".db-shm"):
            yield str(path), path.read_text(encoding="utf-8", errors="replace")


def places_of(canaries: tuple[str, ...], looked_at: Iterator[tuple[str, str]]) -> set[str]:
    return {place for place, text in looked_at if any(each in text for each in canaries)}


@pytest.fixture(scope="module")
def runs(walker: Walker) -> list[tuple[str, str]]:
    """A stored job's run, the form's and an author's, ended well."""
    seed(walker, "attacked", STOLEN)
    seed(walker, "own", OWN)
    stored = walker.store(attacking("attack-stored", walker))
    found = [(stored, walker.trigger(stored)), attacked_form(walker), authors_run(walker)]
    for dag_id, run_id in found:
        assert walker.wait_for_end(dag_id, run_id).run.state is JobState.SUCCEEDED, walker.summary()
    return found


def test_no_answer_row_log_or_file_holds_what_a_jobs_templates_asked_for(
    walker: Walker, runs: list[tuple[str, str]]
) -> None:
    stolen = (*STOLEN, walker.stack.password())
    for dag_id, run_id in runs:
        assert places_of(stolen, shown(walker, dag_id, run_id)) == set()
        assert places_of(stolen, files_below(folder_of(walker, dag_id, run_id))) == set()
    assert places_of(stolen, database(walker)) == set()
    assert places_of(STOLEN, files_below(walker.stack.settings.home)) == set()


def test_what_an_authors_template_fetched_only_the_ledger_and_the_workers_have(
    walker: Walker, runs: list[tuple[str, str]]
) -> None:
    dag_id, run_id = runs[-1]
    assert places_of(OWN, shown(walker, dag_id, run_id)) == set()
    assert places_of(OWN, database(walker)) == {"frenzy_run"}
    view = walker.view(dag_id, run_id)
    assert view is not None
    assert set(view.run.job.env.values()) == {"***"}
    holding = {Path(each).name for each in places_of(OWN, files_below(folder_of(walker, dag_id, run_id)))}
    assert holding == {"spec.json", "evaluation.json"}, "the second has the prompt"
