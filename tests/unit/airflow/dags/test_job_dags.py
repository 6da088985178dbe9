"""Specifications become DAGs; a bad one shows itself and harms no other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, task

from frenzy.adapters.files.job_store import FolderJobStore
from frenzy.airflow.dags import (
    RefusedSpecsError,
    ensure_loaders,
    job_dags_of_folder,
    job_dags_of_shard,
    loader_of,
    reconcile_dag,
)
from frenzy.airflow.operators.task_group import frenzy_evaluation, frenzy_training
from frenzy.settings import CHECKOUT

SPEC = """
name: {name}
description: What it is for.
team: words
model: {{config: {{model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 2, vocab_size: 264}}}}
data: {{path: words.txt, sequence_length: 32}}
training: {{max_steps: 10}}
{more}
"""
TASKS = ["profile", "prepare", "place", "launch", "monitor", "decide", "publish"]


def write(folder: Path, name: str, more: str = "") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, more=more), encoding="utf-8")
    return path


def only(dags: dict[str, DAG]) -> DAG:
    (dag,) = dags.values()
    return dag


def test_a_job_trains_evaluates_and_documents_itself(tmp_path: Path) -> None:
    write(tmp_path, "words")
    dag = only(job_dags_of_folder(tmp_path, "loader.py"))
    assert dag.dag_id == "job_words"
    assert dag.task_ids == [*(f"train.{each}" for each in TASKS), "evaluate"]
    assert "sequence_length" in (dag.doc_md or "")
    assert dag.description == "What it is for."
    assert dag.fileloc == "loader.py"
    assert {"frenzy", "team:words", "queue:default"} <= set(dag.tags)
    assert not dag.catchup


def test_evaluation_is_left_out_when_it_is_off(tmp_path: Path) -> None:
    write(tmp_path, "words", "evaluation: {enabled: false}")
    assert "evaluate" not in only(job_dags_of_folder(tmp_path, "loader.py")).task_ids


@pytest.mark.parametrize(
    ("start", "trigger", "at_once"),
    [("newest", "", 1), ("newest:again", "", 1), ("newest", "max_active_runs: 3", 3), ("newest:other", "", 4)],
)
def test_runs_that_start_from_the_jobs_newest_model_go_one_at_a_time_unless_told(
    tmp_path: Path, start: str, trigger: str, at_once: int
) -> None:
    write(tmp_path, "again", f"checkpoint: {{warm_start: '{start}'}}\ntrigger: {{cron: '@daily', {trigger}}}")
    assert only(job_dags_of_folder(tmp_path, "loader.py")).max_active_runs == at_once


def test_a_cron_or_asset_trigger_is_the_dags_schedule(tmp_path: Path) -> None:
    write(tmp_path, "nightly", "trigger: {cron: '0 3 * * *', max_active_runs: 2}")
    write(tmp_path, "after", "trigger: {assets: ['frenzy://models/nightly']}")
    dags = job_dags_of_folder(tmp_path, "loader.py")
    assert dags["job_nightly"].timetable.expression == "0 3 * * *"
    assert dags["job_nightly"].max_active_runs == 2
    assert [each.uri for each in dags["job_after"].timetable.asset_condition.objects] == ["frenzy://models/nightly"]


def test_a_refused_spec_names_its_path_and_reason_and_its_neighbours_load(tmp_path: Path) -> None:
    write(tmp_path, "good")
    bad = write(tmp_path, "bad", "priorty: 3")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [", encoding="utf-8")
    other = write(tmp_path, "other").rename(tmp_path / "renamed.yaml")
    dags = job_dags_of_folder(tmp_path, "loader.py")
    assert "job_good" in dags
    with pytest.raises(RefusedSpecsError) as caught:
        dags["frenzy_refused_specs"].validate()
    for path, said in ((bad, "did you mean priority"), (broken, "YAML"), (other, "rename the file")):
        assert any(str(path) in line and said in line for line in str(caught.value).splitlines())


def test_airflow_shows_the_refusal_as_an_import_error_of_the_file(tmp_path: Path) -> None:
    specs = tmp_path / "specs"
    specs.mkdir()
    write(specs, "good")
    write(specs, "bad", "priorty: 3")
    (tmp_path / "loader.py").write_text(
        "from pathlib import Path\nfrom frenzy.airflow.dags import job_dags_of_folder  # airflow dag\n"
        f"globals().update(job_dags_of_folder(Path({str(specs)!r}), __file__))\n",
        encoding="utf-8",
    )
    code = f"""
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder={str(tmp_path)!r}, bundle_path=Path({str(tmp_path)!r}), bundle_name="test", load_op_links=False)
print(sorted(bag.dags), bag.import_errors)
"""
    environ = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "home"), "PYTHONPATH": str(CHECKOUT / "plugins")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert "['job_good']" in done.stdout, done.stderr
    assert "did you mean priority" in done.stdout


def test_a_stored_job_has_a_loader_for_its_shard(tmp_path: Path) -> None:
    store = FolderJobStore(tmp_path)
    for name in ("words", "letters"):
        store.put(name, SPEC.format(name=name, more=""))
    new = ensure_loaders(tmp_path)
    assert ensure_loaders(tmp_path) == (), "nothing to write the second time"
    found: dict[str, DAG] = {}
    for loader in new:
        scope: dict[str, Any] = {"__file__": str(loader)}
        exec(compile(loader.read_text(encoding="utf-8"), str(loader), "exec"), scope)
        found |= {name: value for name, value in scope.items() if isinstance(value, DAG)}
    assert sorted(found) == ["job_letters", "job_words"]
    assert {dag.fileloc for dag in found.values()} <= {str(loader) for loader in new}


def test_the_loader_of_a_spec_loads_it(tmp_path: Path) -> None:
    store = FolderJobStore(tmp_path)
    store.put("words", SPEC.format(name="words", more=""))
    (path,) = tmp_path.glob("shard_*/words.yaml")
    loader = loader_of(path)
    assert loader.parent == tmp_path
    assert list(job_dags_of_shard(str(loader))) == ["job_words"]


def test_a_task_process_builds_only_the_dag_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "needed")
    write(tmp_path, "other")
    write(tmp_path, "bad", "priorty: 3")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "job_needed")
    assert list(job_dags_of_folder(tmp_path, "loader.py")) == ["job_needed"]


def test_a_stored_job_hides_the_sample_of_the_same_name(tmp_path: Path) -> None:
    samples, jobs = tmp_path / "samples", tmp_path / "jobs"
    samples.mkdir()
    write(samples, "words")
    write(samples, "letters")
    FolderJobStore(jobs).put("words", SPEC.format(name="words", more=""))
    assert list(job_dags_of_folder(samples, "loader.py", jobs_folder=jobs)) == ["job_letters"]


def test_hundred_specs_of_one_file_parse_in_seconds(tmp_path: Path) -> None:
    for number in range(100):
        write(tmp_path, f"job-{number}")
    began = time.process_time()
    assert len(job_dags_of_folder(tmp_path, "loader.py")) == 100
    assert time.process_time() - began < 5.0


def test_the_group_of_a_path_or_an_xcom_publishes_through_an_alias() -> None:
    with DAG("mine"):

        @task
        def made() -> dict[str, Any]:
            return {}

        by_path = frenzy_training("some/spec.yaml", group_id="first")
        by_xcom = frenzy_training(made(), group_id="second")
        named = frenzy_training({"name": "words"}, group_id="third")
        by_path >> by_xcom >> named >> frenzy_evaluation(group_id="third")
    outlets = [group.children[f"{group.group_id}.publish"].outlets[0] for group in (by_path, by_xcom, named)]
    assert not isinstance(outlets[0], Asset)
    assert not isinstance(outlets[1], Asset)
    assert outlets[2].uri == "frenzy://models/words"


def test_downstream_tasks_wait_for_the_verdict_of_the_run() -> None:
    with DAG("mine") as dag:
        frenzy_training({"name": "words"}) >> frenzy_evaluation()
    assert dag.get_task("evaluate").upstream_task_ids == {"train.publish"}
    decide = dag.get_task("train.decide")
    assert decide.upstream_task_ids == {"train.launch", "train.monitor"}
    assert decide.trigger_rule == "all_done"
    assert decide.retry_delay.total_seconds() == 0
    assert dag.get_task("train.launch").retries == 0


def test_reconciliation_runs_every_minute_and_never_twice_at_a_time() -> None:
    dag = reconcile_dag()
    assert dag.timetable.expression == "* * * * *"
    assert dag.max_active_runs == 1
    assert dag.is_paused_upon_creation is False


def test_the_dag_file_that_an_earlier_init_copied_makes_the_dag_by_its_new_name() -> None:
    scope: dict[str, Any] = {"__name__": "frenzy_sweep"}
    exec("from frenzy.airflow.dags import sweep_dag\n\ndag = sweep_dag()\n", scope)
    assert scope["dag"].dag_id == "frenzy_reconcile"


@pytest.mark.parametrize("path", sorted((CHECKOUT / "dags").glob("*.py")), ids=lambda path: path.stem)
def test_every_dag_file_is_short_and_loads(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    scope: dict[str, Any] = {"__file__": str(path), "__name__": path.stem}
    exec(compile(text, str(path), "exec"), scope)
    dags = [value for value in scope.values() if isinstance(value, DAG)]
    assert dags
    for dag in dags:
        dag.validate()
        dag.check_cycle()
