"""The app over in-memory ports, with people whom a header names instead of Airflow's users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import pytest
from fastapi import FastAPI, Header, HTTPException
from fastapi.testclient import TestClient
from starlette.datastructures import State
from tests.unit.installation import CONFIG, in_memory_services

from frenzy.app.services import Services
from frenzy.core.runs.access import Caller
from frenzy.core.runs.ledger import DataFacts, RunIdentity
from frenzy.core.runs.protocol import RegisterRun, RunView
from frenzy.core.values.codec import decode, dumps
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.web.application import create_app
from frenzy.web.guards import Action
from frenzy.web.messages import Act
from frenzy.web.model_reader import ModelReader
from frenzy.web.new_job import Drafter

T = TypeVar("T")
API: Final = "/api/v1"
SERVICE: Final = "frenzy"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePerson:
    """Somebody with rights on DAGs as a per-DAG auth manager gives them. dags: those they may touch; None: all."""

    caller: Caller
    actions: frozenset[Action] = frozenset(Action)
    dags: frozenset[str] | None = None

    def may_visit(self) -> bool:
        return True

    def may(self, action: Action, dag_id: str | None = None) -> bool:
        return action in self.actions and (dag_id is None or self.dags is None or dag_id in self.dags)

    def sees(self, dag_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(each for each in dag_ids if self.may(Action.SEE_RUNS, each))


SEEING: Final = frozenset({Action.SEE_RUNS, Action.SEE_LOGS})
PEOPLE: Final = {
    "op": FakePerson(caller=Caller(name="op", is_admin=True, is_service=True)),
    "admin": FakePerson(caller=Caller(name="admin", is_admin=True)),
    SERVICE: FakePerson(caller=Caller(name=SERVICE, is_service=True), actions=frozenset()),
    "viewer": FakePerson(caller=Caller(name="viewer"), actions=SEEING),
    "ada": FakePerson(caller=Caller(name="ada")),
    "ben": FakePerson(caller=Caller(name="ben")),
    "eve": FakePerson(caller=Caller(name="eve")),
    # A per-DAG auth manager has given them a DAG of their own, and no other.
    "zoe": FakePerson(caller=Caller(name="zoe"), dags=frozenset({"job_zoes"})),
}
"""Ben is of Ada's team, where a queue file says so; Eve and Zoe are strangers to both."""


def person_by_header(user: Annotated[str | None, Header(alias="X-User")] = None) -> FakePerson:
    if user is None:
        raise HTTPException(401, "Not authenticated")
    return PEOPLE[user]


def registration(name: str = "job", run_id: str = "manual__2026-01-01T00:00:00+00:00", **job: Any) -> RegisterRun:
    return RegisterRun(
        identity=RunIdentity(dag_id=f"job_{name}", run_id=run_id, task_group="train"),
        job=TrainingJob(
            name=name,
            model=ModelSpec(config=CONFIG),
            data=DataSpec(path="text", sequence_length=128),
            training=TrainingSpec(max_steps=100, global_batch_size=8),
            **job,
        ),
        model_config=CONFIG,
        data_facts=DataFacts(num_tokens=10**6),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiUser:
    """Calls the API as ``name`` and decodes what comes back."""

    http: TestClient
    name: str | None = "op"

    def ask(self, method: str, path: str, kind: type[T], message: object | None = None) -> T:
        response = self.send(method, path, message)
        assert response.status_code == 200, response.text
        return decode(kind, response.json())

    def send(self, method: str, path: str, message: object | None = None) -> Any:
        headers = {} if self.name is None else {"X-User": self.name}
        content = None if message is None else message if isinstance(message, str) else dumps(message)
        return self.http.request(method, f"{API}{path}", content=content, headers=headers)

    def registration(self, name: str = "job", **options: Any) -> RegisterRun:
        return registration(name, **options)

    def registered(self, **options: Any) -> RunView:
        return self.ask("POST", "/runs", RunView, registration(**options))


@cache
def made_once() -> FastAPI:
    return create_app(in_memory_services, person_by_header)


def app_over(
    services: Services, on_act: Callable[[Act], None] = lambda act: None, models: ModelReader | None = None
) -> FastAPI:
    """As ``create_app`` makes it. The routes are made once for all tests: that takes longer than most of these."""
    app = copy(made_once())
    app.state = State({**app.state._state, "services": lambda: services, "on_act": on_act})
    app.state.drafter = Drafter(models or ModelReader())
    app.middleware_stack = None
    return app


@pytest.fixture
def services() -> Services:
    return in_memory_services()


@pytest.fixture
def app(services: Services) -> FastAPI:
    return app_over(services)


@pytest.fixture
def http(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def user(http: TestClient) -> Callable[[str | None], ApiUser]:
    return lambda name: ApiUser(http=http, name=name)


@pytest.fixture
def op(http: TestClient) -> ApiUser:
    return ApiUser(http=http)
