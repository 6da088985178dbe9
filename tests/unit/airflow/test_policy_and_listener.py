"""Hooks into Airflow: cheap, never in its way, and a person's end of a run is the run's end."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.policies import task_instance_mutation_hook as specification
from tests.unit.airflow.conftest import World

from frenzy.airflow import listener, policy
from frenzy.airflow.identity import identity_of
from frenzy.core.runs.ledger import JobState


class FakeLedger:
    """``launch_pool`` with a fixed answer, or a failure."""

    def __init__(self, answer: tuple[str, int] | None | Exception) -> None:
        self._answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def launch_pool(self, *arguments: Any) -> tuple[str, int] | None:
        self.asked.append(arguments)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def task(operator: str = "LaunchOperator") -> Any:
    return SimpleNamespace(
        operator=operator,
        dag_id="job_words",
        run_id="r",
        task_id="train.launch",
        map_index=-1,
        pool="default_pool",
        pool_slots=1,
    )


def applied(ledger: FakeLedger, instance: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    monkeypatch.setattr(policy, "_ledger", lambda: ledger)
    policy.task_instance_mutation_hook(task_instance=instance)
    return instance.pool, instance.pool_slots


def test_a_launch_task_counts_what_its_lease_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert applied(FakeLedger(("gpu_small", 4)), task(), monkeypatch) == ("gpu_small", 4)


def test_without_a_lease_the_pool_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert applied(FakeLedger(None), task(), monkeypatch) == ("default_pool", 1)


def test_a_ledger_in_trouble_does_not_stop_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert applied(FakeLedger(OSError("gone")), task(), monkeypatch) == ("default_pool", 1)


def test_other_tasks_cost_no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = FakeLedger(("gpu_small", 4))
    assert applied(ledger, task("PythonOperator"), monkeypatch) == ("default_pool", 1)
    assert ledger.asked == []


def test_the_hook_has_a_name_that_airflow_knows() -> None:
    assert policy.task_instance_mutation_hook.__name__ == specification.__name__


def eventually(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.fixture
def in_server(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The API server's process, where the use cases are called directly."""
    monkeypatch.setattr("frenzy.wiring.services", lambda: world.services)
    return world


def test_ending_a_dag_run_cancels_its_runs(in_server: World) -> None:
    waiting = in_server.waiting().run
    ended = SimpleNamespace(dag_id=waiting.identity.dag_id, run_id=waiting.identity.run_id)
    listener.on_dag_run_failed(dag_run=ended, msg="by hand")
    eventually(lambda: in_server.view(waiting.run_key).run.state is JobState.CANCELLED)


def test_ending_one_of_the_tasks_cancels_its_run_only(in_server: World) -> None:
    spec, waiting = in_server.placed("first"), in_server.waiting().run
    identity = waiting.identity
    ended = SimpleNamespace(dag_id=identity.dag_id, run_id=identity.run_id, task_id="train.decide", map_index=-1)
    listener.on_task_instance_failed(previous_state=None, task_instance=ended, error="by hand")
    eventually(lambda: in_server.view(waiting.run_key).run.state is JobState.CANCELLED)
    assert in_server.view(spec.run_key).run.state is JobState.PLACED


def test_other_tasks_and_unknown_runs_are_left_alone(in_server: World) -> None:
    spec = in_server.placed("first")
    identity = in_server.view(spec.run_key).run.identity
    mine = SimpleNamespace(dag_id=identity.dag_id, run_id=identity.run_id, task_id="clean", map_index=-1)
    stranger = SimpleNamespace(dag_id="theirs", run_id="r", task_id="x.launch", map_index=-1)
    for task_instance in (mine, stranger):
        listener.on_task_instance_success(previous_state=None, task_instance=task_instance)
    time.sleep(0.2)
    assert in_server.view(spec.run_key).run.state is JobState.PLACED


def test_the_identity_names_group_and_map_index() -> None:
    inner = SimpleNamespace(dag_id="d", run_id="r", task_id="outer.train.launch", map_index=3)
    identity = identity_of(inner)
    assert (identity.task_group, identity.map_index) == ("outer.train", 3)
    after = SimpleNamespace(dag_id="d", run_id="r", task_id="evaluate", map_index=-1)
    assert identity_of(after, "train").task_group == "train"
    keys = {
        identity_of(SimpleNamespace(dag_id="d", run_id="r", task_id=f"{group}.launch", map_index=index)).run_key
        for group in ("a", "b")
        for index in (-1, 0, 1)
    }
    assert len(keys) == 6
