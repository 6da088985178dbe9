"""What schemathesis makes of the API's own OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from tests.fuzz.targets import Api, Found


def openapi_findings(api: Api, count: int) -> Iterator[Found]:
    """Requests that the document allows, and that the API failed on: ``count`` for each route."""
    import schemathesis

    document = api.http.get("/openapi.json", headers={"X-User": api.user}).json()
    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = result.ok()
        findings: list[Found] = []
        _search(api, operation, count, findings)
        yield from findings


def _search(api: Api, operation: Any, count: int, findings: list[Found]) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        reply = api.http.request(
            case.method,
            case.formatted_path,
            params={name: str(each) for name, each in (case.query or {}).items()},
            json=case.body if isinstance(case.body, dict | list) else None,
            headers={"X-User": api.user},
        )
        if reply.status_code >= 500:
            findings.append(
                Found(target=f"{case.method} {case.formatted_path}", problem=reply.text, text=str(case.body))
            )

    ask()
