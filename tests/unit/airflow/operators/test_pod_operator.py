"""The launch task on Kubernetes does what the local one does, and costs the other tasks nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from tests.unit.airflow.conftest import World

from frenzy.airflow.operators.operators import LaunchOperator
from frenzy.airflow.operators.pod_operator import PodLaunchOperator
from frenzy.airflow.operators.task_group import frenzy_training
from frenzy.airflow.triggers.triggers import LaunchTrigger
from frenzy.ports import WorkersState


def launch_task() -> Any:
    with DAG("walk"):
        group = frenzy_training("job.yaml")
    return group.children["train.launch"]


def test_on_kubernetes_the_launch_task_is_a_pod_operator_with_the_settings_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FRENZY_LAUNCHER", "kubernetes")
    monkeypatch.setenv("FRENZY_KUBERNETES_CONN_ID", "gpu_cluster")
    task = launch_task()
    assert isinstance(task, KubernetesPodOperator)
    assert (task.kubernetes_conn_id, task.retries) == ("gpu_cluster", 0)


def test_without_kubernetes_it_is_the_plain_one() -> None:
    assert type(launch_task()) is LaunchOperator


_PARSE = """
import sys
from airflow.sdk import DAG
from frenzy.airflow.operators.task_group import frenzy_training
with DAG("walk"):
    frenzy_training("job.yaml")
print("airflow.providers.cncf.kubernetes.operators.pod" in sys.modules, "kubernetes" in sys.modules)
"""


@pytest.mark.parametrize(("task", "imports"), [("train.place", "False False"), ("train.launch", "True True")])
def test_only_the_launch_task_imports_the_pod_operator(task: str, imports: str) -> None:
    context = {"_AIRFLOW_PARSING_CONTEXT_DAG_ID": "walk", "_AIRFLOW_PARSING_CONTEXT_TASK_ID": task}
    env = {**os.environ, "FRENZY_LAUNCHER": "kubernetes", "PYTHONPATH": ":".join(sys.path), **context}
    answer = subprocess.run([sys.executable, "-c", _PARSE], env=env, capture_output=True, text=True, check=True)
    assert answer.stdout.strip().splitlines()[-1] == imports


def test_the_connection_may_name_the_launcher_alone() -> None:
    extras = {"FRENZY_LAUNCHER": "kubernetes", "FRENZY_KUBERNETES_CONN_ID": "gpu_cluster"}
    connection = json.dumps({"conn_type": "http", "extra": extras})
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FRENZY")}
    env = {**kept, "AIRFLOW_CONN_FRENZY_DEFAULT": connection, "PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run([sys.executable, "-c", _PARSE], env=env, capture_output=True, text=True, check=True)
    assert answer.stdout.strip().splitlines()[-1] == "True True"


def deferred(operator: Any, context: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(context)
    return caught.value


def test_it_starts_the_attempt_once_and_waits_for_its_end(world: World) -> None:
    spec = world.placed()
    context = world.context("train.launch", world.view(spec.run_key).run.identity)
    for _ in range(2):
        trigger = deferred(PodLaunchOperator(task_id="launch"), context).trigger
        assert isinstance(trigger, LaunchTrigger)
        assert (trigger.run_key, trigger.attempt) == (spec.run_key, 1)
    assert len(world.launcher.launched) == 1


def test_killed_while_it_starts_it_leaves_no_workers(world: World) -> None:
    spec = world.placed()
    operator = PodLaunchOperator(task_id="launch")
    operator.on_kill()
    assert world.launcher.stopped == [], "nothing was started yet"
    deferred(operator, world.context("train.launch", world.view(spec.run_key).run.identity))
    operator.on_kill()
    assert world.launcher.state(spec) is WorkersState.GONE
