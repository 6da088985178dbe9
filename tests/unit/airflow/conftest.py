"""The tasks and triggers against a real server (this project's routes over in-memory ports) and scripted workers."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar

# Airflow reads its home, and writes a configuration there, when it is first imported.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="frenzy-airflow-"))

import asyncio

import pytest
from fastapi import FastAPI, HTTPException
from tests.in_memory.launcher import FakeLauncher
from tests.in_memory.preparer import FakePreparer
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.cli.conftest import served
from tests.unit.installation import in_memory_services
from tests.unit.web.conftest import PEOPLE, registration

from frenzy.airflow.connection import close_async_clients, close_clients
from frenzy.airflow.tasks.workers import Workers, using
from frenzy.app.place import enqueue
from frenzy.app.queries import run_view
from frenzy.app.register import register_run
from frenzy.app.services import Services
from frenzy.core.runs.ledger import RunIdentity
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.settings import Settings
from frenzy.web.application import create_app
from frenzy.wiring import SystemClock

T = TypeVar("T")


@dataclass
class FakeAirflow:
    """The few routes of Airflow's that tasks and triggers call."""

    task_states: dict[str, str | None] = field(default_factory=dict)
    task_triggers: dict[str, int] = field(default_factory=dict)
    refuses: bool = False
    cleared: list[dict[str, Any]] = field(default_factory=list)

    def routes(self) -> FastAPI:
        app = FastAPI()
        app.post("/auth/token", status_code=201)(lambda: {"access_token": "x.y.z"})
        app.get("/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")(self.task)
        app.post("/api/v2/dags/{dag_id}/clearTaskInstances")(self.clear)
        return app

    def task(self, task_id: str) -> dict[str, Any]:
        if task_id not in self.task_states:
            raise HTTPException(404, "no such task instance")
        if self.refuses:
            raise HTTPException(403, "no right")
        trigger = {"id": self.task_triggers[task_id]} if task_id in self.task_triggers else None
        return {"task_id": task_id, "state": self.task_states[task_id], "trigger": trigger}

    def clear(self, body: dict[str, Any]) -> dict[str, Any]:
        self.cleared.append(body)
        return {"task_instances": []}


@dataclass(frozen=True)
class World:
    """A server with its services, the workers, and what was asked of Airflow."""

    services: Services
    runs: InMemoryRunStore
    launcher: FakeLauncher
    preparer: FakePreparer
    airflow: FakeAirflow

    def registered(self, name: str = "job", **job: Any) -> RunView:
        return register_run(self.services, registration(name, **job))

    def placed(self, name: str = "job", **job: Any) -> LaunchSpec:
        """A run that holds its GPUs, and its attempt's spec."""
        spec = enqueue(self.services, self.registered(name, **job).run.run_key).spec
        assert spec is not None
        return spec

    def waiting(self) -> RunView:
        """A run for which there is no room; the ones before it hold every GPU."""
        for number in range(64):
            view = self.registered(f"job-{number}")
            if enqueue(self.services, view.run.run_key).spec is None:
                return self.view(view.run.run_key)
        raise AssertionError("there is always room")

    def view(self, run_key: str) -> RunView:
        return run_view(self.services, run_key)

    def context(self, task_id: str, identity: RunIdentity, try_number: int = 1) -> dict[str, Any]:
        """As much of a task's context as the operators use."""
        task = SimpleNamespace(
            task_id=task_id,
            dag_id=identity.dag_id,
            run_id=identity.run_id,
            map_index=identity.map_index,
            try_number=try_number,
        )
        return {"ti": task}

    def workers_end(self, spec: LaunchSpec, exit_code: int, last_step: int) -> None:
        """The workers leave their result and are gone."""
        result = AttemptResult(exit_code=exit_code, last_step=last_step, total_steps=100)
        self.runs.write_result(spec.run_key, spec.attempt, result)
        self.launcher.finish(spec)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    runs = InMemoryRunStore()
    services = in_memory_services(clock=SystemClock(), runs=runs)
    airflow, launcher, preparer = FakeAirflow(), FakeLauncher(runs), FakePreparer()
    app = airflow.routes()
    app.mount("/frenzy", create_app(lambda: services, lambda: PEOPLE["op"]))
    settings = replace(Settings(), poll_s=0.02, stop_grace_s=0.5)
    reach = Workers(settings=settings, runs=runs, launcher=launcher, preparer=preparer)
    with served(app) as url, using(reach):
        host, _, port = url.removeprefix("http://").partition(":")
        where = {"conn_type": "http", "host": host, "port": int(port), "login": "frenzy", "password": "secret"}
        monkeypatch.setenv("AIRFLOW_CONN_FRENZY_DEFAULT", json.dumps(where))
        yield World(services=services, runs=runs, launcher=launcher, preparer=preparer, airflow=airflow)
        close_clients()


@pytest.fixture
def run_async() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Runs a coroutine to its end, with a limit."""

    def run(work: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            try:
                return await asyncio.wait_for(work, 30.0)
            finally:
                await close_async_clients()

        return asyncio.run(limited())

    return run
