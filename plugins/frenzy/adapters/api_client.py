"""The client of the API: one conversation, driven once with blocking and once with asynchronous I/O.

    client = ApiClient(ApiAddress(base_url="http://127.0.0.1:8080", login="frenzy", password="..."))
    view = client.send(api.run_view("0123456789ab"))

``_conversation`` decides what is sent next (a token, the call, a pause) and sees every reply;
the two clients only carry its messages. A call may be repeated without harm, so a lost
connection and a server that says "later" are met with waiting until ``patience_s`` is over.

    PermanentError       the server refuses (SpecError with its violations, NotFoundError for 404)
    TemporaryError       it could not be reached, or kept saying "later", for ``patience_s``
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import httpx

from frenzy.api import URL_PREFIX
from frenzy.api.declaration import Call
from frenzy.core.values.codec import decode
from frenzy.core.values.errors import (
    ContractError,
    PermanentError,
    Reason,
    ReasonCode,
    SpecError,
    TemporaryError,
    Violation,
)

T = TypeVar("T")

DEFAULT_PATIENCE_S: Final = 60.0

_TOKEN_PATH: Final = "/auth/token"  # noqa: S105  # a path
_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
# Renewed so long before the end of its life, in case the clocks differ.
_TOKEN_MARGIN_S: Final = 60.0
_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_LATER: Final = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class NotFoundError(PermanentError):
    """The server knows no such run, attempt, job or DAG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAddress:
    """Where the API server is and who calls; ``base_url`` has no trailing slash."""

    base_url: str
    login: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    path: str
    body: str | None
    token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """``status`` None: no reply came; ``text`` then says why."""

    status: int | None
    text: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Pause:
    seconds: float


@dataclass(slots=True)
class _Session:
    """The token of one client, shared by its calls."""

    token: str | None = None
    expires_s: float = float("inf")

    def fresh_token(self) -> str | None:
        return self.token if time.time() < self.expires_s - _TOKEN_MARGIN_S else None

    def keep(self, token: str) -> None:
        self.token, self.expires_s = token, _expiry_s(token)

    def forget(self) -> None:
        self.token = None


_Talk = Generator[_Request | _Pause, _Reply | None, T]


def _conversation(address: ApiAddress, session: _Session, call: Call[T], patience_s: float) -> _Talk[T]:
    """All requests of one call; returns the decoded reply."""
    deadline_s = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    renewed = False
    while True:
        reply = yield from _ask(address, session, call)
        if reply.status == HTTPStatus.UNAUTHORIZED and not renewed:
            session.forget()
            renewed = True
            continue
        if not _is_later(call, reply.status):
            return _decoded(call, reply)
        wait_s = min(max(pause_s, reply.retry_after_s or 0.0), _LONGEST_PAUSE_S)
        if time.monotonic() + wait_s > deadline_s:
            raise _temporary(address, call, reply)
        yield _Pause(wait_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _ask(address: ApiAddress, session: _Session, call: Call[Any]) -> _Talk[_Reply]:
    """The reply to ``call``, or to the request for a token where that failed."""
    token = session.fresh_token()
    if token is None:
        login = json.dumps({"username": address.login, "password": address.password})
        reply = yield _Request(method="POST", path=_TOKEN_PATH, body=login, token=None)
        assert reply is not None
        if reply.status is None or reply.status >= HTTPStatus.BAD_REQUEST:
            return reply
        token = str(json.loads(reply.text)["access_token"])
        session.keep(token)
    reply = yield _Request(method=call.method, path=call.path, body=call.body, token=token)
    assert reply is not None
    return reply


def _is_later(call: Call[Any], status: int | None) -> bool:
    """Whether the same call may succeed later. A conflict is one of the ledger's only: Airflow means no."""
    if status == HTTPStatus.CONFLICT:
        return call.path.startswith(f"{URL_PREFIX}/")
    return status is None or status in _LATER


def _decoded(call: Call[T], reply: _Reply) -> T:
    assert reply.status is not None
    if reply.status >= HTTPStatus.BAD_REQUEST:
        raise _refusal(call, reply.status, reply.text)
    if call.kind is str:
        return cast(T, reply.text)
    try:
        document = json.loads(reply.text) if reply.text else None
    except ValueError as error:
        raise ContractError(f"{call.method} {call.path}: the reply is not JSON ({error})") from error
    return cast(T, document) if call.kind is None else cast(T, decode(call.kind, document))


def _refusal(call: Call[Any], status: int, text: str) -> PermanentError:
    reason, violations = _reason_of(call, status, text)
    if violations:
        return SpecError(violations)
    return NotFoundError(reason) if status == HTTPStatus.NOT_FOUND else PermanentError(reason)


def _temporary(address: ApiAddress, call: Call[Any], reply: _Reply) -> TemporaryError:
    if reply.status is not None:
        reason, _ = _reason_of(call, reply.status, reply.text)
        return TemporaryError(reason, retry_after_s=reply.retry_after_s or _LONGEST_PAUSE_S)
    reason = Reason(
        code=ReasonCode.API_UNREACHABLE,
        detail=f"{call.method} {address.base_url}{call.path}: {reply.text}.",
        remedy="See that the API server runs, and that the connection names its host and port.",
    )
    return TemporaryError(reason, retry_after_s=_LONGEST_PAUSE_S)


def _reason_of(call: Call[Any], status: int, text: str) -> tuple[Reason, tuple[Violation, ...]]:
    """The reason in an error's body; what the status says where there is none."""
    try:
        detail = json.loads(text)["detail"]
        violations = decode(tuple[Violation, ...], detail.get("violations", []))
        code = ReasonCode(detail["code"])
        return Reason(code=code, detail=detail["message"], remedy=detail.get("remedy")), violations
    except (ValueError, KeyError, TypeError, AttributeError, ContractError):
        message = _message(text) or HTTPStatus(status).phrase
        return Reason(code=ReasonCode.API_REFUSED, detail=f"{call.method} {call.path}: {status}: {message}"), ()


def _message(text: str) -> str:
    """The message of an error body in Airflow's own form or ours, else its beginning."""
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return text[:500]
    return str(detail["message"]) if isinstance(detail, dict) and "message" in detail else str(detail)


def _expiry_s(token: str) -> float:
    """When a JSON web token ends, in seconds since the epoch; never, if it does not say."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return float("inf")


def _headers(request: _Request) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if request.token is not None:
        headers["Authorization"] = f"Bearer {request.token}"
    return headers


def _reply(response: httpx.Response) -> _Reply:
    later = response.headers.get("Retry-After", "")
    return _Reply(
        status=response.status_code,
        text=response.text,
        retry_after_s=float(later) if later.replace(".", "", 1).isdigit() else None,
    )


def _no_reply(error: httpx.TransportError) -> _Reply:
    return _Reply(status=None, text=str(error) or type(error).__name__)


def _timeout() -> httpx.Timeout:
    return httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)


def _by_proxy(address: ApiAddress) -> bool:
    """Whether a proxy of the environment may be used: never to reach this very machine."""
    return httpx.URL(address.base_url).host not in _THIS_MACHINE


class ApiClient:
    """Blocking. ``transport`` replaces the network in tests."""

    def __init__(self, address: ApiAddress, *, transport: httpx.BaseTransport | None = None) -> None:
        self.address = address
        self._session = _Session()
        self._http = httpx.Client(
            base_url=address.base_url, timeout=_timeout(), transport=transport, trust_env=_by_proxy(address)
        )

    def send(self, call: Call[T], *, patience_s: float = DEFAULT_PATIENCE_S) -> T:
        """The decoded reply. Raises PermanentError, or TemporaryError after ``patience_s``."""
        talk = _conversation(self.address, self._session, call, patience_s)
        reply: _Reply | None = None
        while True:
            try:
                step = talk.send(reply)
            except StopIteration as end:
                return cast(T, end.value)
            reply = self._carry(step)

    def _carry(self, step: _Request | _Pause) -> _Reply | None:
        if isinstance(step, _Pause):
            time.sleep(step.seconds)
            return None
        try:
            return _reply(self._http.request(step.method, step.path, content=step.body, headers=_headers(step)))
        except httpx.TransportError as error:
            return _no_reply(error)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncApiClient:
    """The same for an event loop; one client may carry many calls at a time."""

    def __init__(self, address: ApiAddress, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address = address
        self._session = _Session()
        self._http = httpx.AsyncClient(
            base_url=address.base_url, timeout=_timeout(), transport=transport, trust_env=_by_proxy(address)
        )

    async def send(self, call: Call[T], *, patience_s: float = DEFAULT_PATIENCE_S) -> T:
        """The decoded reply. Raises PermanentError, or TemporaryError after ``patience_s``."""
        talk = _conversation(self.address, self._session, call, patience_s)
        reply: _Reply | None = None
        while True:
            try:
                step = talk.send(reply)
            except StopIteration as end:
                return cast(T, end.value)
            reply = await self._carry(step)

    async def _carry(self, step: _Request | _Pause) -> _Reply | None:
        if isinstance(step, _Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return _reply(await self._http.request(step.method, step.path, content=step.body, headers=_headers(step)))
        except httpx.TransportError as error:
            return _no_reply(error)

    async def aclose(self) -> None:
        await self._http.aclose()
