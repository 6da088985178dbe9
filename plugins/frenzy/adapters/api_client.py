"""The client of the API, once with blocking and once with asynchronous I/O.

    client = ApiClient(ApiAddress(base_url="http://127.0.0.1:8080", login="frenzy", password="..."))
    view = client.send(api.run_view("0123456789ab"))

A call may be repeated without harm, so a lost connection and a server that says "later" are met with
waiting until ``patience_s`` is over. The token is httpx's business: one that is refused is renewed once.

    PermanentError       the server refuses (SpecError with its violations, NotFoundError for 404)
    TemporaryError       it could not be reached, or kept saying "later", for ``patience_s``; or Frenzy is not there
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from functools import cache
from http import HTTPStatus
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, TypeVar, cast

import httpx

from frenzy.api import URL_PREFIX
from frenzy.api.declaration import Call
from frenzy.core.values.codec import decode
from frenzy.core.values.errors import (
    ContractError,
    FrenzyError,
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
_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_APP: Final = "Frenzy's app is not served there: look for an error of the plugin in the API server's log."
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


_Reply = httpx.Response | httpx.TransportError


class _Login(httpx.Auth):
    """Carries a token, asked for at the first call, and again when it is refused."""

    requires_response_body = True

    def __init__(self, address: ApiAddress) -> None:
        self._address = address
        self.token: str | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        login = {"username": self._address.login, "password": self._address.password}
        for _ in range(2):
            if self.token is None:
                reply = yield httpx.Request("POST", f"{self._address.base_url}{_TOKEN_PATH}", json=login)
                if reply.is_error:
                    return
                self.token = str(reply.json()["access_token"])
            sent = self.token
            request.headers["Authorization"] = f"Bearer {sent}"
            reply = yield request
            if reply.status_code != HTTPStatus.UNAUTHORIZED:
                return
            if self.token == sent:  # no other call has renewed it since
                self.token = None


class _Patience:
    """How long one call is tried again; while the server is there and busy, for ``busy_s`` where that is longer."""

    def __init__(self, address: ApiAddress, call: Call[Any], patience_s: float, busy_s: float = 0.0) -> None:
        self._address, self._call = address, call
        self._deadline_s = time.monotonic() + patience_s
        self._busy_deadline_s = time.monotonic() + max(patience_s, busy_s)
        self._pause_s = _FIRST_PAUSE_S

    def pause_s(self, reply: _Reply) -> float | None:
        """The pause before the next try; None where ``reply`` is the answer. Raises TemporaryError at the end."""
        if not _is_later(self._call, reply):
            return None
        wait_s = min(max(self._pause_s, _retry_after_s(reply)), _LONGEST_PAUSE_S)
        refusal = _temporary(self._address, self._call, reply)
        is_busy = refusal.reason.code is ReasonCode.LEDGER_BUSY
        if time.monotonic() + wait_s > (self._busy_deadline_s if is_busy else self._deadline_s):
            raise refusal
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return wait_s


def _is_later(call: Call[Any], reply: _Reply) -> bool:
    """Whether the same call may succeed later. A conflict is one of the ledger's only: Airflow means no."""
    if isinstance(reply, httpx.TransportError) or _is_not_there(call, reply):
        return True
    if reply.status_code == HTTPStatus.CONFLICT:
        return call.path.startswith(f"{URL_PREFIX}/")
    return reply.status_code in _LATER


def _is_not_there(call: Call[Any], reply: httpx.Response) -> bool:
    """A 404 that says nothing of a run: from a proxy without a server, or an Airflow that could not load the plugin."""
    if reply.status_code != HTTPStatus.NOT_FOUND or not call.path.startswith(f"{URL_PREFIX}/"):
        return False
    detail = _detail_of(reply.text)
    return not (isinstance(detail, dict) and "code" in detail)


def _decoded(call: Call[T], reply: _Reply) -> T:
    assert isinstance(reply, httpx.Response)
    if reply.is_error:
        raise _refusal(call, reply.status_code, reply.text)
    if call.kind is str:
        return cast(T, reply.text)
    try:
        document = json.loads(reply.text) if reply.text else None
    except ValueError as error:
        raise ContractError(f"{call.method} {call.path}: the reply is not JSON ({error})") from error
    return cast(T, document) if call.kind is None else cast(T, decode(call.kind, document))


def _refusal(call: Call[Any], status: int, text: str) -> FrenzyError:
    reason, violations = _reason_of(call, status, text)
    if violations:
        return SpecError(violations)
    return NotFoundError(reason) if status == HTTPStatus.NOT_FOUND else PermanentError(reason)


def _temporary(address: ApiAddress, call: Call[Any], reply: _Reply) -> TemporaryError:
    if isinstance(reply, httpx.Response):
        reason, _ = _reason_of(call, reply.status_code, reply.text)
        if _is_not_there(call, reply):
            reason = replace(reason, remedy=_NO_APP)
        return TemporaryError(reason, retry_after_s=_retry_after_s(reply) or _LONGEST_PAUSE_S)
    reason = Reason(
        code=ReasonCode.API_UNREACHABLE,
        detail=f"{call.method} {address.base_url}{call.path}: {str(reply) or type(reply).__name__}.",
        remedy="Start it (frenzy up, or make up in a checkout), or see that the connection names its host and port.",
    )
    return TemporaryError(reason, retry_after_s=_LONGEST_PAUSE_S)


def _retry_after_s(reply: _Reply) -> float:
    later = reply.headers.get("Retry-After", "") if isinstance(reply, httpx.Response) else ""
    return float(later) if later.replace(".", "", 1).isdigit() else 0.0


def _reason_of(call: Call[Any], status: int, text: str) -> tuple[Reason, tuple[Violation, ...]]:
    """The reason in an error's body; what the status says where there is none."""
    detail = _detail_of(text)
    try:
        violations = decode(tuple[Violation, ...], detail.get("violations", []))
        code = ReasonCode(detail["code"])
        return Reason(code=code, detail=detail["message"], remedy=detail.get("remedy")), violations
    except (ValueError, KeyError, TypeError, AttributeError, ContractError):
        words = detail.get("message", detail) if isinstance(detail, dict) else detail
        message = str(text[:500] if words is None else words) or HTTPStatus(status).phrase
        return Reason(code=ReasonCode.API_REFUSED, detail=f"{call.method} {call.path}: {status}: {message}"), ()


def _detail_of(text: str) -> Any:
    """What an error's body says, in Airflow's own form or ours; None where it is neither."""
    try:
        return json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return None


@cache
def _trusted(file: str | None, folder: str | None) -> ssl.SSLContext:
    """The certificates that are trusted, read once: a task that is forked from a process which has them reads none.

    file, folder: what the environment names in place of those that come with httpx.
    """
    return httpx.create_ssl_context(trust_env=file is not None or folder is not None)


def _options(address: ApiAddress) -> dict[str, Any]:
    """Of the HTTP client. A proxy of the environment is never used to reach this very machine."""
    trust_env = httpx.URL(address.base_url).host not in _THIS_MACHINE
    named = [os.environ.get(name) if trust_env else None for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]
    return {
        "base_url": address.base_url,
        "auth": _Login(address),
        "headers": {"Content-Type": "application/json"},
        "timeout": httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
        "verify": _trusted(*named),
        "trust_env": trust_env,
    }


def _write(reply: httpx.Response, target: BinaryIO, tell: Callable[[int], None]) -> None:
    """A reply that is no part is of another file than the one before, or the first."""
    if reply.status_code != HTTPStatus.PARTIAL_CONTENT:
        target.seek(0)
        target.truncate()
    for part in reply.iter_bytes():
        target.write(part)
        tell(target.tell())


class ApiClient:
    """Blocking. ``transport`` replaces the network in tests."""

    def __init__(self, address: ApiAddress, *, transport: httpx.BaseTransport | None = None) -> None:
        self.address = address
        self._login = _Login(address)
        self._http = httpx.Client(transport=transport, **{**_options(address), "auth": self._login})

    def fetch(
        self,
        call: Call[bytes],
        target: BinaryIO,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        tell: Callable[[int], None],
    ) -> None:
        """Write what the call answers into ``target``, part by part; a broken transfer goes on where it ended.

        tell: how many bytes there are now. It carries the token of the last ``send``. Raises as that.
        """
        etag, patience = "", _Patience(self.address, call, patience_s)
        while True:
            before = target.tell()
            try:
                with self._http.stream(call.method, call.path, headers=self._headers(before, etag), auth=None) as reply:
                    if reply.is_success:
                        etag = reply.headers.get("ETag", "")
                        _write(reply, target, tell)
                        return
                    reply.read()
                    met: _Reply = reply
            except httpx.TransportError as error:
                met = error
            if target.tell() > before:
                patience = _Patience(self.address, call, patience_s)
            pause_s = patience.pause_s(met)
            if pause_s is None:
                assert isinstance(met, httpx.Response)
                raise _refusal(call, met.status_code, met.text)
            time.sleep(pause_s)

    def _headers(self, start: int, etag: str) -> dict[str, str]:
        carried = {"Authorization": f"Bearer {self._login.token}"}
        return {**carried, "Range": f"bytes={start}-", "If-Range": etag} if start and etag else carried

    def send(self, call: Call[T], *, patience_s: float = DEFAULT_PATIENCE_S, busy_s: float = 0.0) -> T:
        """The decoded reply. Raises PermanentError, or TemporaryError after ``patience_s``.

        busy_s: after which it is raised where the server is there and busy, if that is longer.
        """
        patience = _Patience(self.address, call, patience_s, busy_s)
        while True:
            try:
                reply: _Reply = self._http.request(call.method, call.path, content=call.body)
            except httpx.TransportError as error:
                reply = error
            pause_s = patience.pause_s(reply)
            if pause_s is None:
                return _decoded(call, reply)
            time.sleep(pause_s)

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
        self._http = httpx.AsyncClient(transport=transport, **_options(address))

    async def send(self, call: Call[T], *, patience_s: float = DEFAULT_PATIENCE_S, busy_s: float = 0.0) -> T:
        """As ``ApiClient.send``."""
        patience = _Patience(self.address, call, patience_s, busy_s)
        while True:
            try:
                reply: _Reply = await self._http.request(call.method, call.path, content=call.body)
            except httpx.TransportError as error:
                reply = error
            pause_s = patience.pause_s(reply)
            if pause_s is None:
                return _decoded(call, reply)
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        await self._http.aclose()
