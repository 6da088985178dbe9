"""The embedded Airflow starts, survives the loss of a part, and leaves nothing behind."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from tests.embedded_stack import Stack

from frenzy.cli.embedded.airflow_env import STACK_MARK, USERS
from frenzy.cli.embedded.stack import COMPONENTS, StackError
from frenzy.cli.embedded.stack_processes import marked_processes
from frenzy.settings import load_settings

RUN_TIMEOUT_S = 90.0
TWO_TASKS = """
from airflow.sdk import dag, task

@dag(dag_id="{dag_id}", schedule=None)
def two_tasks():
    @task
    def first():
        return 20

    @task
    def second(number):
        return number + 1

    second(first())

two_tasks()
"""


def eventually(what: str, check: Callable[[], bool]) -> None:
    """Wait until ``check`` holds; fail with ``what`` when it does not in time."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not check():
        assert time.monotonic() < deadline, f"not in {RUN_TIMEOUT_S:.0f} s: {what}"
        time.sleep(0.1)


def run_to_its_end(airflow: httpx.Client, dag_id: str) -> str:
    """Trigger a DAG and return the state it ends in."""
    asked = airflow.post(f"/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": {}})
    run = f"/dags/{dag_id}/dagRuns/{asked.raise_for_status().json()['dag_run_id']}"
    eventually(f"{run} ends", lambda: airflow.get(run).json()["state"] in {"success", "failed"})
    return str(airflow.get(run).json()["state"])


def add_dag(stack: Stack, airflow: httpx.Client, dag_id: str) -> None:
    """Put a DAG file into the jobs folder and wait until Airflow has found it."""
    (stack.settings.jobs_folder / f"{dag_id}.py").write_text(TWO_TASKS.format(dag_id=dag_id), encoding="utf-8")
    eventually(f"{dag_id} is visible", lambda: airflow.get(f"/dags/{dag_id}").is_success)


def live(home: Path) -> list[psutil.Process]:
    return marked_processes(STACK_MARK, str(home))


def test_all_components_are_healthy_and_every_user_may_log_in(stack: Stack) -> None:
    assert [(each.name, each.is_healthy) for each in stack.status()] == [(name, True) for name in COMPONENTS]
    assert all(stack.token(user) for user in USERS)


def test_the_server_listens_on_this_machine_only(stack: Stack) -> None:
    assert stack.base_url.startswith("http://127.0.0.1:")
    with socket.socket() as other:
        other.bind(("127.0.0.2", stack.port))


def test_secrets_are_readable_by_their_owner_only(stack: Stack) -> None:
    for name in ("secrets.json", "passwords.json"):
        assert stat.S_IMODE((stack.settings.airflow_home / name).stat().st_mode) == 0o600


def test_every_dag_of_the_repository_loads(stack: Stack, airflow: httpx.Client) -> None:
    assert airflow.get("/importErrors").raise_for_status().json()["import_errors"] == []


def test_airflow_loads_the_plugin_without_complaint(stack: Stack, airflow: httpx.Client) -> None:
    assert airflow.get("/plugins/importErrors").raise_for_status().json()["import_errors"] == []
    assert "frenzy" in [each["name"] for each in airflow.get("/plugins").json()["plugins"]]


def test_a_dag_put_into_the_jobs_folder_appears_and_runs(stack: Stack, airflow: httpx.Client) -> None:
    add_dag(stack, airflow, "smoke")

    assert run_to_its_end(airflow, "smoke") == "success"


def test_starting_a_running_stack_changes_nothing(stack: Stack) -> None:
    before = [each.pid for each in stack.status()]

    Stack(stack.settings).start()

    assert [each.pid for each in stack.status()] == before


def test_stopping_what_never_ran_is_no_error_and_makes_no_folder(tmp_path: Path) -> None:
    stack = Stack(load_settings({"FRENZY_HOME": str(tmp_path / "never")}))

    stack.stop()
    stack.stop()

    assert not (tmp_path / "never").exists()


def test_a_port_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port}.*FRENZY_PORT"), Stack.running(tmp_path, port):
            pass
    assert live(tmp_path) == []
