"""Every error a route can meet, as one form of reply.

    {"detail": {"code": ..., "message": ..., "remedy": ... | null, "violations": [{path, value, allowed}]}}

400 the request or the specification is refused; 401, 403 no right; 404 unknown run, attempt,
job or route; 409 the ledger moved on meanwhile; 503 with Retry-After: try again.
"""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from frenzy.app.services import NotFound
from frenzy.core.runs.access import Forbidden
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, TemporaryError, Violation
from frenzy.ports import LedgerConflict
from frenzy.web.guards import person_of

log = logging.getLogger(__name__)
_MOST_CHARACTERS: Final = 20_000


def install(app: FastAPI) -> None:
    """Let ``app`` answer every error in this module's form."""
    app.add_exception_handler(TemporaryError, _temporary)
    app.add_exception_handler(PermanentError, _permanent)
    app.add_exception_handler(LedgerConflict, _conflict)
    app.add_exception_handler(RequestValidationError, _bad_parameters)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def later(detail: str) -> JSONResponse:
    """503 for a request that may succeed in a moment: the ledger, or the server, is busy."""
    return _come_again(
        TemporaryError(Reason(code=ReasonCode.LEDGER_BUSY, detail=detail, remedy="Try again in a moment."))
    )


def too_long(max_bytes: int) -> JSONResponse:
    """413 for a body that nobody needs."""
    message = f"body: longer than the {max_bytes} bytes that are accepted"
    return _reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, ReasonCode.SPEC_REFUSED, message)


def too_slow(timeout_s: float) -> JSONResponse:
    """408 for a body that does not come."""
    message = f"body: not all of it came within {timeout_s:g} s"
    return _reply(HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_TIMEOUT.name, message)


def _reply(
    status: int, code: str, message: str, remedy: str | None = None, violations: tuple[Violation, ...] = ()
) -> JSONResponse:
    short = message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]}..."
    detail: dict[str, Any] = {"code": code, "message": short, "remedy": remedy, "violations": encode(violations)}
    return JSONResponse({"detail": detail}, status_code=status)


def _of_reason(status: int, reason: Reason, violations: tuple[Violation, ...] = ()) -> JSONResponse:
    return _reply(status, reason.code, reason.sentence, reason.remedy, violations)


def _temporary(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TemporaryError)
    return _come_again(error)


def _come_again(error: TemporaryError) -> JSONResponse:
    reply = _of_reason(HTTPStatus.SERVICE_UNAVAILABLE, error.reason)
    reply.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return reply


def _permanent(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PermanentError)
    if isinstance(error, NotFound):
        return _of_reason(HTTPStatus.NOT_FOUND, error.reason)
    if isinstance(error, Forbidden):
        _note_refusal(request, error)
        return _of_reason(HTTPStatus.FORBIDDEN, error.reason)
    violations = error.violations if isinstance(error, SpecError) else ()
    return _of_reason(HTTPStatus.BAD_REQUEST, error.reason, violations)


def _note_refusal(request: Request, error: Forbidden) -> None:
    """The one line in the log; the path names run or job."""
    who, need = ascii(person_of(request).caller.name), request.state.frenzy_need
    path, sentence = request.url.path, error.reason.sentence
    log.warning("%s %s is refused to %s, needs %s: %s", request.method, path, who, need, sentence)


def _conflict(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, LedgerConflict)
    return _of_reason(HTTPStatus.CONFLICT, error.reason)


def _bad_parameters(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    violations = tuple(
        Violation(path=".".join(str(part) for part in each["loc"]), value=repr(each.get("input")), allowed=each["msg"])
        for each in error.errors()
    )
    return _reply(
        HTTPStatus.BAD_REQUEST, ReasonCode.SPEC_REFUSED, "; ".join(map(str, violations)), violations=violations
    )


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    reply = _reply(error.status_code, HTTPStatus(error.status_code).name, str(error.detail), _remedy(error.status_code))
    reply.headers.update(error.headers or {})
    return reply


def _remedy(status: int) -> str | None:
    if status == HTTPStatus.UNAUTHORIZED:
        return "Log in to Airflow, or send a token from POST /auth/token as 'Authorization: Bearer ...'."
    if status == HTTPStatus.FORBIDDEN:
        return "Ask an administrator for a role that may run DAGs."
    return None


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _reply(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "INTERNAL_SERVER_ERROR",
        f"The server failed on this request ({type(error).__name__}).",
        "The API server's log has the particulars.",
    )
