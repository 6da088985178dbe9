"""A job's text is never a template; what a DAG's author takes from a connection or a variable is shown to nobody."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG, task, task_group
from airflow.sdk.exceptions import AirflowFailException, DownstreamTasksSkipped, TaskDeferred
from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields
from airflow.serialization.serialized_objects import DagSerialization
from tests.unit.airflow.conftest import World
from tests.unit.installation import CONFIG

from frenzy.adapters.files.job_store import FolderJobStore
from frenzy.adapters.spec.job_spec import job_from_yaml, job_to_document
from frenzy.airflow.connection import api_client
from frenzy.airflow.dags import ensure_loaders, job_dags_of_folder, job_dags_of_shard
from frenzy.airflow.dags.train_form import form, job_of_form
from frenzy.airflow.operators.operators import LaunchOperator, PlaceOperator
from frenzy.airflow.operators.task_group import frenzy_training
from frenzy.airflow.triggers.triggers import LaunchTrigger
from frenzy.api import endpoints as api
from frenzy.core.runs.access import HIDDEN
from frenzy.core.runs.ledger import RunIdentity
from frenzy.core.values.codec import dumps
from frenzy.core.values.launch import FIRST_POD_LOG, AttemptResult, LaunchSpec
from frenzy.core.values.run_files import ExitCode

PASSWORD, TOKEN, HOST, VARIABLE, JSON_VALUE = (f"canary-{each}-7Q9" for each in ("password", "token", "host", "v", "j"))
CANARIES = (PASSWORD, TOKEN, HOST, VARIABLE, JSON_VALUE)
ATTACK = (
    "{{ conn.canary.password }} {{ conn.canary.extra_dejson.token }} {{ conn.canary.host }} {{ var.value.canary }} "
    "{{ var.json.canaries.inner }} {{ ti.task.dag.dag_id }} {% for x in [1] %}{{ params }}{% endfor %}"
)

URL = "https://{{ conn.canary.login }}:{{ conn.canary.password }}@{{ conn.canary.host }}"


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"conn_type": "http", "host": HOST, "login": "someone", "password": PASSWORD, "extra": {"token": TOKEN}}
    monkeypatch.setenv("AIRFLOW_CONN_CANARY", json.dumps(where))
    monkeypatch.setenv("AIRFLOW_VAR_CANARY", VARIABLE)
    monkeypatch.setenv("AIRFLOW_VAR_CANARIES", json.dumps({"inner": JSON_VALUE}))


@pytest.fixture
def words(tmp_path: Path) -> str:
    path = tmp_path / "words.txt"
    path.write_text("to be or not to be\n" * 50, encoding="utf-8")
    return str(path)


def attacking(words: str) -> dict[str, Any]:
    """A specification with a template in every text that takes one; references of secrets take none."""
    return {
        "name": "attack",
        "description": f"{ATTACK}\n\n```\n{ATTACK}.md",
        "model": {"config": {**CONFIG, "note": ATTACK}},
        "data": {"path": words, "sequence_length": 64},
        "training": {
            "max_steps": 10,
            "global_batch_size": 4,
            "callbacks": [{"path": f"mine:{ATTACK}", "args": {"text": ATTACK, "deep": [{"er": ATTACK}]}}],
        },
        "checkpoint": {"warm_start": ATTACK},
        "evaluation": {"prompt": ATTACK},
        "trigger": {"assets": ["s3://bucket/{{ var.value.canary }}"]},
        "team": "{{ var.value.canary }}",
        "env": {"STOLEN": ATTACK},
    }


def context_of(world: World, operator: Any, *, map_index: int = -1, xcom: Any = None) -> dict[str, Any]:
    """What Airflow renders with, as far as templates here could ask for it."""
    identity = RunIdentity(dag_id=operator.dag.dag_id, run_id="r1", task_group="train", map_index=map_index)
    context = world.context(operator.task_id, identity)
    context["ti"].task = operator
    context["ti"].xcom_pull = lambda **_: copy.deepcopy(xcom)
    values = {"value": VariableAccessor(deserialize_json=False), "json": VariableAccessor(deserialize_json=True)}
    return {**context, "conn": ConnectionAccessor(), "var": values, "params": {}, "ds": "2026-01-02", "task": operator}


def profiled(
    world: World, dag: DAG, *, map_index: int = -1, xcom: Any = None, params: Any = None
) -> tuple[dict[str, Any], str]:
    """The profile task of ``dag`` as Airflow runs it: its XCom, and its rendered templates as Airflow keeps them."""
    operator = dag.get_task("train.profile").prepare_for_execution()
    context = {**context_of(world, operator, map_index=map_index, xcom=xcom), "params": params or {}}
    operator.render_template_fields(context, dag.get_template_env())
    shown = json.dumps(_serialize_rendered_fields(operator))
    return executed(operator, context), shown


def executed(operator: Any, context: dict[str, Any]) -> dict[str, Any]:
    """What the profile task leaves, also where it lets ``prepare`` be skipped, since the data are small."""
    left: list[dict[str, Any]] = []
    context["ti"].xcom_push = lambda key, value: left.append(value)
    with suppress(DownstreamTasksSkipped):
        left.append(operator.execute(context))
    return left[0]


def everything_shown(world: World, run_key: str) -> Iterator[str]:
    """Every answer that tells of the run, its place and its queue; not that to ``launching``."""
    run = world.view(run_key).run
    client = api_client("frenzy_default")
    calls = (
        api.run_view(run_key),
        api.runs(),
        api.runs_of_dag_run(run.identity.dag_id, run.identity.run_id),
        api.enqueue(run_key),
        api.place(run_key),
        api.reconcile_targets(),
        api.queue(),
        api.queue_snapshot(),
        api.explain(run_key),
        api.memory(run_key),
        api.logs(run_key),
    )
    yield from (dumps(client.send(call)) for call in calls)


def started(world: World, run_key: str) -> LaunchSpec:
    """What the workers are told, once the launch task has started them."""
    run = world.view(run_key).run
    with pytest.raises(TaskDeferred):
        LaunchOperator(task_id="launch").execute(world.context("train.launch", run.identity))
    spec = world.runs.spec(run_key, 1)
    assert spec is not None
    return spec


def ledger_text(world: World) -> str:
    with world.services.ledger.reading() as tx:
        runs = tx.runs()
        return dumps([(run, tx.attempts(run.run_key), tx.events(run.run_key)) for run in runs])


def no_canary(text: str) -> None:
    assert [each for each in CANARIES if each in text] == []


def serialized(dag: DAG) -> str:
    return json.dumps(DagSerialization.to_dict(dag), default=str)


def stored_job(folder: Path, words: str) -> DAG:
    """The DAG of a job that was submitted."""
    FolderJobStore(folder / "jobs").put("attack", yaml.safe_dump(attacking(words)))
    (loader,) = ensure_loaders(folder / "jobs")
    return job_dags_of_shard(str(loader))["job_attack"]


def included_job(folder: Path, words: str) -> DAG:
    """The DAG of a file in ``include/jobs``."""
    (folder / "include").mkdir()
    (folder / "include" / "attack.yaml").write_text(yaml.safe_dump(attacking(words)), encoding="utf-8")
    return job_dags_of_folder(folder / "include", "loader.py")["job_attack"]


@pytest.mark.parametrize("made", [stored_job, included_job])
def test_no_text_of_a_stored_job_or_an_included_file_is_rendered_anywhere(
    world: World, tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str], made: Callable[[Path, str], DAG]
) -> None:
    dag = made(tmp_path, words)
    summary, rendered = profiled(world, dag)
    spec = started_after_place(world, summary["run_key"])
    shown = [*everything_shown(world, summary["run_key"]), ledger_text(world), dumps(spec)]
    for text in (*shown, serialized(dag), dag.doc_md or "", rendered, json.dumps(summary), capsys.readouterr().out):
        no_canary(text)
    assert spec.job.env == {"STOLEN": ATTACK}, "it arrives as it was written"
    assert spec.job.evaluation.prompt == ATTACK


def started_after_place(world: World, run_key: str) -> LaunchSpec:
    PlaceOperator(task_id="place").execute(world.context("train.place", world.view(run_key).run.identity))
    return started(world, run_key)


def test_airflow_keeps_and_documents_of_a_stored_jobs_environment_the_names_only(tmp_path: Path, words: str) -> None:
    document = {**attacking(words), "env": {"TOKEN": "plain-value"}, "secrets": {"KEY": "env:WHERE_IT_IS"}}
    (tmp_path / "attack.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    dag = job_dags_of_folder(tmp_path, "loader.py")["job_attack"]
    text = serialized(dag)
    assert "plain-value" not in text
    assert "WHERE_IT_IS" not in text
    documented = yaml.safe_load((dag.doc_md or "").rpartition("````yaml\n")[2].rpartition("````")[0])
    assert (documented["env"], documented["secrets"]) == ({"TOKEN": HIDDEN}, {"KEY": HIDDEN})
    assert documented["description"] == document["description"], "its backticks do not end the block"


def test_the_form_is_no_template_whether_it_is_filled_by_hand_or_by_a_presets_file(
    world: World, tmp_path: Path, words: str
) -> None:
    (tmp_path / "attack.yaml").write_text(yaml.safe_dump(attacking(words)), encoding="utf-8")
    params = {name: param.value for name, param in form(tmp_path).items()}
    filled = {**params, "preset": "attack", "name": "form", "evaluation__prompt": f"form {ATTACK}"}
    with DAG("frenzy_train", params=form(tmp_path)) as dag:
        frenzy_training(partial(job_of_form, presets=tmp_path))
    stolen = {"name": "of-somebody-else"}  # what an edited XCom of any task would say
    summary, rendered = profiled(world, dag, xcom=stolen, params=filled)
    spec = started_after_place(world, summary["run_key"])
    for text in (*everything_shown(world, summary["run_key"]), ledger_text(world), dumps(spec), rendered):
        no_canary(text)
    assert spec.job.evaluation.prompt == f"form {ATTACK}"
    assert spec.job.name == filled["name"]


def test_a_task_that_is_given_the_forms_job_renders_none_of_it(world: World, words: str) -> None:
    with DAG("mine") as dag:

        @task
        def read_form() -> dict[str, Any]:
            return {}

        @task
        def save(document: Mapping[str, Any]) -> None: ...

        save(read_form())
    operator = dag.get_task("save").prepare_for_execution()
    operator.render_template_fields(context_of(world, operator, xcom=attacking(words)), dag.get_template_env())
    assert operator.op_args[0] == attacking(words)


def test_the_jobs_of_a_mapped_group_are_no_templates(world: World, words: str) -> None:
    with DAG("mine") as dag:

        @task
        def made() -> list[dict[str, Any]]:
            return []

        @task_group(group_id="outer")
        def group(job: Any) -> None:
            frenzy_training(job, group_id="train")

        group.expand(job=made())
    operator = dag.get_task("outer.train.profile").prepare_for_execution()
    jobs = [job_to_document(job_from_yaml(yaml.safe_dump(attacking(words))))]
    context = context_of(world, operator, map_index=0, xcom=jobs)
    operator.render_template_fields(context, dag.get_template_env())
    run_key = executed(operator, context)["run_key"]
    no_canary(ledger_text(world))
    assert world.view(run_key).run.job.env == {"STOLEN": ATTACK}


def test_a_path_may_be_a_template_and_the_files_content_is_none(world: World, tmp_path: Path, words: str) -> None:
    (tmp_path / "2026-01-02.yaml").write_text(yaml.safe_dump(attacking(words)), encoding="utf-8")
    with DAG("mine") as dag:
        frenzy_training(f"{tmp_path}/{{{{ ds }}}}.yaml")
    summary, _ = profiled(world, dag)
    no_canary(ledger_text(world))
    assert world.view(summary["run_key"]).run.job.description == attacking(words)["description"].strip("\n")


def authors(words: str) -> dict[str, Any]:
    """A job in a DAG file whose author takes some of its texts from connections and variables."""
    return {
        "name": "mine",
        "description": "Of {{ ds }}.",
        "model": {"config": {**CONFIG, "note": "{{ var.value.canary }}"}},
        "data": {"path": words, "sequence_length": 64},
        "training": {
            "max_steps": 10,
            "global_batch_size": 4,
            "callbacks": [{"path": "mine:Callback", "args": {"token": "{{ conn.canary.extra_dejson.token }}"}}],
        },
        "evaluation": {"prompt": "{{ var.json.canaries.inner }}"},
        "env": {"DAY": "{{ ds }}", "URL": URL},
    }


def authors_dag(words: str) -> DAG:
    with DAG("mine") as dag:
        frenzy_training(authors(words))
    return dag


def test_an_authors_templates_reach_the_workers_and_what_came_from_a_connection_or_variable_nobody_else(
    world: World, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, rendered = profiled(world, authors_dag(words))
    run_key = summary["run_key"]
    spec = started_after_place(world, run_key)
    for text in (*everything_shown(world, run_key), rendered, json.dumps(summary), capsys.readouterr().out):
        no_canary(text)
    assert spec.job.env == {"DAY": "2026-01-02", "URL": f"https://someone:{PASSWORD}@{HOST}"}
    assert spec.job.training.callbacks[0].args == {"token": TOKEN}
    shown = world.view(run_key).run.job
    assert shown.env == {"DAY": "2026-01-02", "URL": HIDDEN}
    assert (shown.description, shown.evaluation.prompt) == ("Of 2026-01-02.", HIDDEN)


def test_masked_texts_that_workers_repeat_are_left_out_of_log_ledger_and_xcom(
    world: World, words: str, capsys: pytest.CaptureFixture[str], run_async: Any
) -> None:
    run_key = profiled(world, authors_dag(words))[0]["run_key"]
    spec = started_after_place(world, run_key)
    said = f"cannot open {spec.job.env['URL']}/text"
    world.runs.logs[run_key, 1, FIRST_POD_LOG] = said
    stars = "*" * len(spec.job.env["URL"])
    assert api_client("frenzy_default").send(api.logs(run_key)) == f"cannot open {stars}/text"
    result = AttemptResult(exit_code=ExitCode.BAD_CONFIG_OR_DATA, last_step=0, total_steps=10, detail=said)
    world.runs.write_result(run_key, 1, result)
    world.launcher.finish(spec)

    async def final_message() -> str:
        return str([event async for event in LaunchTrigger(run_key=run_key, attempt=1, conn_id="frenzy_default").run()])

    event = run_async(final_message())
    with world.services.ledger.reading() as tx:
        ended = (tx.attempts(run_key), tx.events(run_key))
    for text in (event, dumps(ended), *everything_shown(world, run_key), capsys.readouterr().out):
        no_canary(text)
    reason = world.view(run_key).run.reason
    assert reason is not None
    assert f"cannot open {HIDDEN}/text" in reason.sentence


def test_a_secret_in_what_everybody_sees_is_refused(world: World, words: str) -> None:
    with DAG("mine") as dag:
        frenzy_training({**authors(words), "team": "{{ conn.canary.password }}"})
    with pytest.raises(AirflowFailException, match="team.*cannot hold a secret") as caught:
        profiled(world, dag)
    no_canary(str(caught.value))
