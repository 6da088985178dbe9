"""One protocol, two clients: what holds for the blocking one holds for the asynchronous one."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.routing import Match
from tests.unit.installation import in_memory_services
from tests.unit.web.conftest import registration

from frenzy.adapters.airflow_calls import airflow_call, clear_tasks
from frenzy.adapters.api_client import (
    ApiAddress,
    ApiClient,
    AsyncApiClient,
    NotFoundError,
)
from frenzy.api import URL_PREFIX
from frenzy.api import endpoints as api
from frenzy.api.endpoints import ENDPOINTS
from frenzy.core.runs.ledger import RunIdentity
from frenzy.core.runs.protocol import (
    AttemptStarted,
    CancelRun,
    CleanRun,
    Directive,
    DirectiveKind,
    EndReport,
    PressureReport,
    ProgressReport,
    ReconcileReport,
    SubmitJob,
)
from frenzy.core.values.codec import dumps
from frenzy.core.values.errors import ContractError, PermanentError, Reason, ReasonCode, SpecError, TemporaryError
from frenzy.web.application import create_app

ADDRESS = ApiAddress(base_url="http://airflow.test", login="frenzy", password="secret")
REASON = Reason(code=ReasonCode.CANCELLED_BY_USER)
Send = Callable[..., Any]


@dataclass
class Server:
    """Answers in the order given; remembers what it was sent."""

    answers: list[httpx.Response | Exception] = field(default_factory=list)
    token: str = "x.y.z"
    logins: list[Mapping[str, str]] = field(default_factory=list)
    seen: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/auth/token":
            self.logins.append(json.loads(request.content))
            return httpx.Response(201, json={"access_token": self.token})
        self.seen.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(params=["blocking", "asynchronous"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def send(kind: str, server: Server) -> Iterator[Send]:
    """Sends calls, all through one client."""
    transport = httpx.MockTransport(server)
    if kind == "blocking":
        with ApiClient(ADDRESS, transport=transport) as client:
            yield client.send
        return
    with asyncio.Runner() as runner:
        client = AsyncApiClient(ADDRESS, transport=transport)
        yield lambda call, **options: runner.run(client.send(call, **options))
        runner.run(client.aclose())


def ok(value: object = None) -> httpx.Response:
    return httpx.Response(200, text=dumps(value or Directive(kind=DirectiveKind.CONTINUE)))


def error(status: int, code: str = "", message: str = "no", **more: Any) -> httpx.Response:
    detail = {"code": code, "message": message, "remedy": None, "violations": [], **more}
    return httpx.Response(status, json={"detail": detail})


LAUNCHING = api.launching("0123", 2)
PROGRESS = ProgressReport(last_step=1)
MESSAGES = (
    registration(),
    AttemptStarted(launcher_ref="pid 7"),
    PROGRESS,
    PressureReport(reason=REASON, progress=PROGRESS, extra_bytes_per_gpu=0, forecast_extra_bytes_per_gpu=0),
    EndReport(reason=REASON),
    CancelRun(reason=REASON),
    CleanRun(older_than_s=86400.0),
    SubmitJob(yaml_text="name: x"),
    ReconcileReport(findings=()),
)


def test_a_reply_is_decoded_to_its_message(send: Send, server: Server) -> None:
    server.answers = [ok(Directive(kind=DirectiveKind.KILL, reason=REASON))]
    assert send(LAUNCHING) == Directive(kind=DirectiveKind.KILL, reason=REASON)
    assert server.seen[0].url.path == "/frenzy/api/v1/runs/0123/attempts/2/launching"


def test_one_login_serves_many_calls(send: Send, server: Server) -> None:
    server.answers = [ok(), ok()]
    send(LAUNCHING)
    send(LAUNCHING)
    assert server.logins == [{"username": "frenzy", "password": "secret"}]
    assert {each.headers["Authorization"] for each in server.seen} == {f"Bearer {server.token}"}


def test_a_refused_token_is_renewed_once(send: Send, server: Server) -> None:
    server.answers = [error(401), ok()]
    send(LAUNCHING)
    assert len(server.logins) == 2
    server.answers = [error(401), error(401)]
    with pytest.raises(PermanentError):
        send(LAUNCHING)


@pytest.mark.parametrize("status", [503, 500, 409, None])
def test_later_and_no_answer_are_tried_again(send: Send, server: Server, status: int | None) -> None:
    server.answers = [httpx.ConnectError("refused") if status is None else error(status, "LEDGER_BUSY"), ok()]
    send(LAUNCHING)
    assert len(server.seen) == 2


def test_retry_after_is_heeded(send: Send, server: Server) -> None:
    later = error(503, "LEDGER_BUSY")
    later.headers["Retry-After"] = "1"
    server.answers = [later, ok()]
    began = time.monotonic()
    send(LAUNCHING)
    assert time.monotonic() - began >= 1.0


def test_patience_ends_with_the_servers_reason(send: Send, server: Server) -> None:
    server.answers = [error(503, "LEDGER_BUSY", "locked")] * 9
    with pytest.raises(TemporaryError, match="locked") as caught:
        send(LAUNCHING, patience_s=0.5)
    assert caught.value.reason.code is ReasonCode.LEDGER_BUSY


@pytest.mark.parametrize(("is_busy", "tries"), [(True, 4), (False, 1)])
def test_a_server_that_is_busy_is_asked_longer_than_one_that_is_away(
    send: Send, server: Server, is_busy: bool, tries: int
) -> None:
    server.answers = [error(503, "LEDGER_BUSY") if is_busy else httpx.ConnectError("refused") for _ in range(3)] + [
        ok()
    ]
    with suppress(TemporaryError):
        send(LAUNCHING, patience_s=0.0, busy_s=30.0)
    assert len(server.seen) == tries


@pytest.mark.parametrize("body", ["", "default backend - 404", '{"detail": "Not Found"}', '{"detail": {}}', "[1]"])
def test_a_404_that_is_not_frenzys_own_says_nothing_of_a_run(send: Send, server: Server, body: str) -> None:
    """A monitor that believed it would leave its training alone, a launch task would end it."""
    server.answers = [httpx.Response(404, text=body)] * 9
    with pytest.raises(TemporaryError, match="404") as caught:
        send(LAUNCHING, patience_s=0.3)
    assert "plugin" in (caught.value.reason.remedy or "")
    server.answers = [httpx.Response(404, text=body), httpx.Response(404, text=body), ok()]
    assert send(LAUNCHING) == Directive(kind=DirectiveKind.CONTINUE)


def test_a_404_of_airflows_own_api_is_one(send: Send, server: Server) -> None:
    server.answers = [httpx.Response(404, json={"detail": "The Dag Run was not found"})]
    with pytest.raises(NotFoundError, match="was not found"):
        send(airflow_call("GET", "/dags/x/dagRuns/y"))


def test_a_server_that_is_away_is_named_with_its_address_and_no_password(send: Send, server: Server) -> None:
    server.answers = [httpx.ConnectError("refused")] * 9
    with pytest.raises(TemporaryError, match=r"airflow\.test") as caught:
        send(LAUNCHING, patience_s=0.3)
    assert caught.value.reason.code is ReasonCode.API_UNREACHABLE
    assert "secret" not in str(caught.value) + repr(ADDRESS)


def test_a_refused_specification_arrives_with_every_violation(send: Send, server: Server) -> None:
    violations = [{"path": "data.path", "value": "'x'", "allowed": "a file"}]
    server.answers = [error(400, "SPEC_REFUSED", violations=violations)]
    with pytest.raises(SpecError) as caught:
        send(LAUNCHING)
    assert [each.path for each in caught.value.violations] == ["data.path"]


@pytest.mark.parametrize(
    ("status", "kind_of_error"), [(404, NotFoundError), (403, PermanentError), (400, PermanentError)]
)
def test_other_refusals_are_permanent(send: Send, server: Server, status: int, kind_of_error: type) -> None:
    server.answers = [error(status, "WHATEVER", "because")]
    with pytest.raises(kind_of_error, match="because"):
        send(LAUNCHING)
    assert len(server.seen) == 1


def test_a_conflict_in_airflow_is_a_refusal(send: Send, server: Server) -> None:
    server.answers = [httpx.Response(409, json={"detail": "cannot be deleted in running state"})]
    with pytest.raises(PermanentError, match="running state"):
        send(airflow_call("DELETE", "/dags/d/dagRuns/r"))


def test_a_reply_of_another_form_is_a_contract_error(send: Send, server: Server) -> None:
    for text in ("not json", '{"kind": "dance"}', '{"kind": "kill", "new": 1}'):
        server.answers = [httpx.Response(200, text=text)]
        with pytest.raises(ContractError):
            send(LAUNCHING)


def test_names_with_any_letters_stay_one_part_of_the_path(send: Send, server: Server) -> None:
    server.answers = [httpx.Response(200, json=[])]
    assert send(api.runs_of_dag_run("a b/c", "manual__2026-01-01T00:00:00+00:00")) == ()
    assert server.seen[0].url.raw_path.endswith(b"/by-dag/a%20b%2Fc/manual__2026-01-01T00%3A00%3A00%2B00%3A00")


def sample(kind: Any) -> Any:
    return next((each for each in MESSAGES if type(each) is kind), "x y" if kind is str else 2)


def test_the_call_of_an_endpoint_reaches_its_own_route() -> None:
    app = create_app(in_memory_services, lambda: None)
    for endpoint in ENDPOINTS:
        call = endpoint(**{name: sample(each.annotation) for name, each in endpoint.signature.parameters.items()})
        path = httpx.URL(f"http://airflow.test{call.path}").path.removeprefix(URL_PREFIX)
        scope = {"type": "http", "method": call.method, "path": path}
        reached = next(route for route in app.routes if route.matches(scope)[0] is Match.FULL)
        assert reached.name == endpoint.name  # type: ignore[attr-defined]


def test_a_map_index_names_one_instance_of_a_task() -> None:
    body = json.loads(clear_tasks("d", "r", ["g.place"], map_index=2).body or "")
    assert body["task_ids"] == [["g.place", 2]]
    assert RunIdentity(dag_id="d", run_id="r", task_group="g", map_index=2).run_key


def test_a_file_s_transfer_goes_on_where_it_broke_and_begins_anew_with_another_file(server: Server) -> None:
    class Broken(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"01234"
            raise httpx.ReadError("gone")

    server.answers = [
        ok(),
        httpx.Response(200, stream=Broken(), headers={"ETag": '"1"'}),
        httpx.Response(206, content=b"567", headers={"ETag": '"1"'}),
        httpx.Response(200, stream=Broken(), headers={"ETag": '"2"'}),
        httpx.Response(503, headers={"Retry-After": "0"}),
        httpx.Response(200, content=b"all", headers={"ETag": '"3"'}),
    ]
    told: list[int] = []
    with ApiClient(ADDRESS, transport=httpx.MockTransport(server)) as client:
        client.send(LAUNCHING)
        for expected in (b"01234567", b"all"):
            target = io.BytesIO()
            client.fetch(api.model_file("0123", "a/b"), target, tell=told.append)
            assert target.getvalue() == expected
    assert told == [5, 8, 5, 3]
    assert [each.headers.get("range") for each in server.seen[1:]] == [None, "bytes=5-", None, "bytes=5-", "bytes=5-"]
    assert server.seen[2].headers["if-range"] == '"1"'
    assert {each.headers["authorization"] for each in server.seen} == {"Bearer x.y.z"}


def test_a_file_that_may_not_be_taken_is_refused_with_its_reason(server: Server) -> None:
    server.answers = [ok(), error(403, "FORBIDDEN", "It is another's.")]
    with ApiClient(ADDRESS, transport=httpx.MockTransport(server)) as client:
        client.send(LAUNCHING)
        with pytest.raises(PermanentError, match="It is another's"):
            client.fetch(api.model_file("0123", "a"), io.BytesIO(), tell=lambda _: None)
