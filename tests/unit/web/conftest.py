"""The app over in-memory ports, with roles that a header names instead of Airflow's users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import pytest
from fastapi import FastAPI, Header, HTTPException
from fastapi.testclient import TestClient
from tests.unit.installation import CONFIG, in_memory_services

from frenzy.app.services import Services
from frenzy.core.codec import decode, dumps
from frenzy.core.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.ledger import DataFacts, RunIdentity
from frenzy.core.protocol import RegisterRun, RunView
from frenzy.web.access import Dependency, Need
from frenzy.web.application import create_app

T = TypeVar("T")
API: Final = "/api/v1"
READING: Final = frozenset({Need.READ, Need.READ_DAG_RUN, Need.READ_LOGS})


def role_access() -> Mapping[Need, Dependency]:
    """Viewers read; operators do everything; without the header a caller is nobody."""

    def require(need: Need) -> Dependency:
        def check(role: Annotated[str | None, Header(alias="X-Role")] = None) -> None:
            if role is None:
                raise HTTPException(401, "Not authenticated")
            if role != "op" and need not in READING:
                raise HTTPException(403, "Forbidden")

        return check

    return {need: require(need) for need in Need}


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
class Caller:
    """Calls the API as ``role`` and decodes what comes back."""

    http: TestClient
    role: str | None = "op"

    def ask(self, method: str, path: str, kind: type[T], message: object | None = None) -> T:
        response = self.send(method, path, message)
        assert response.status_code == 200, response.text
        return decode(kind, response.json())

    def send(self, method: str, path: str, message: object | None = None) -> Any:
        headers = {} if self.role is None else {"X-Role": self.role}
        content = None if message is None else message if isinstance(message, str) else dumps(message)
        return self.http.request(method, f"{API}{path}", content=content, headers=headers)

    def registration(self, name: str = "job", **options: Any) -> RegisterRun:
        return registration(name, **options)

    def registered(self, **options: Any) -> RunView:
        return self.ask("POST", "/runs", RunView, registration(**options))


@pytest.fixture
def services() -> Services:
    return in_memory_services()


@pytest.fixture
def app(services: Services) -> FastAPI:
    return create_app(lambda: services, role_access())


@pytest.fixture
def http(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def caller(http: TestClient) -> Callable[[str | None], Caller]:
    return lambda role: Caller(http=http, role=role)


@pytest.fixture
def op(http: TestClient) -> Caller:
    return Caller(http=http)
