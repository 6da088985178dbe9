"""One form for every error, with the status that tells a client what to do next."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from tests.unit.web.conftest import ApiUser, person_by_header

from frenzy.app.services import NotFound, Services
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ContractError, Reason, ReasonCode, SpecError, TemporaryError, Violation
from frenzy.ports import LedgerConflict
from frenzy.web.application import create_app

REASON = Reason(code=ReasonCode.WAITING_FOR_OLD_WORKERS, detail="Not yet.", remedy="Wait.")
VIOLATION = Violation(path="training.max_steps", value="0", allowed="at least 1")


def answer(error: Exception) -> tuple[int, dict[str, object], dict[str, str]]:
    def failing() -> Services:
        raise error

    with TestClient(create_app(failing, person_by_header), raise_server_exceptions=False) as client:
        response = client.get("/api/v1/queue", headers={"X-User": "op"})
    return response.status_code, response.json()["detail"], dict(response.headers)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SpecError([VIOLATION]), 400),
        (ContractError("x"), 400),
        (NotFound(REASON), 404),
        (LedgerConflict(REASON), 409),
        (TemporaryError(REASON, retry_after_s=1.2), 503),
        (RuntimeError("secret detail"), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_status_follows_the_kind_of_error(error: Exception, status: int) -> None:
    got, detail, _ = answer(error)
    assert got == status
    assert set(detail) == {"code", "message", "remedy", "violations"}


def test_refused_specification_lists_its_violations() -> None:
    _, detail, _ = answer(SpecError([VIOLATION]))
    assert detail["violations"] == [{"path": "training.max_steps", "value": "0", "allowed": "at least 1"}]


def test_reason_keeps_code_sentence_and_remedy() -> None:
    _, detail, _ = answer(LedgerConflict(REASON))
    assert (detail["code"], detail["message"], detail["remedy"]) == ("WAITING_FOR_OLD_WORKERS", "Not yet.", "Wait.")


def test_temporary_error_says_when_to_come_back() -> None:
    _, _, headers = answer(TemporaryError(REASON, retry_after_s=1.2))
    assert headers["retry-after"] == "2"


def test_unexpected_error_does_not_tell_its_insides() -> None:
    _, detail, _ = answer(RuntimeError("secret detail"))
    assert "secret" not in str(detail)
    assert "RuntimeError" in str(detail["message"])


@pytest.mark.parametrize(
    ("path", "most", "status"),
    [("jobs", 1024**2, 400), ("reconcile", 4 * 1024**2, 413), ("runs/x/cancel", 64 * 1024, 400)],
)
def test_endless_body_is_refused(op: ApiUser, path: str, most: int, status: int) -> None:
    op.registered()
    key = op.ask("GET", "/runs", tuple[RunView, ...])[0].run.run_key
    response = op.send("POST", f"/{path}".replace("/x/", f"/{key}/"), " " * (most + 1))
    assert response.status_code == status
    assert f"{most} bytes" in response.json()["detail"]["message"]
