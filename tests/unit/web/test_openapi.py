"""The published description of the API says what the API does."""

from __future__ import annotations

from json import loads

from fastapi import FastAPI
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator
from tests.unit.web.conftest import API, ApiUser

from frenzy.api.endpoints import ENDPOINTS
from frenzy.core.values.codec import dumps


def test_the_document_is_for_those_who_may_visit(http: TestClient) -> None:
    assert http.get("/openapi.json").status_code == 401
    assert http.get("/openapi.json", headers={"X-User": "viewer"}).json()["openapi"].startswith("3.1")


def test_every_route_of_the_api_is_described(http: TestClient) -> None:
    document = http.get("/openapi.json", headers={"X-User": "op"}).json()
    described = {
        (method.upper(), path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert set(described) == {(each.method, each.path.replace(":path", "")) for each in ENDPOINTS}
    assert all(operation["description"] for operation in described.values())
    body = document["paths"][f"{API}/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/SubmitJob"}


def test_bodies_and_replies_are_what_the_document_says(op: ApiUser, http: TestClient) -> None:
    document = http.get("/openapi.json", headers={"X-User": "op"}).json()

    def check(name: str, value: object) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        assert not list(Draft202012Validator(schema).iter_errors(value))

    check("RegisterRun", loads(dumps(op.registration())))
    view = op.send("POST", "/runs", op.registration()).json()
    check("RunView", view)
    check("PlaceView", op.send("POST", f"/runs/{view['run']['run_key']}/enqueue").json())
    check("QueueView", op.send("GET", "/queue").json())
    check("GpusView", op.send("GET", "/gpus").json())
    check("Error", op.send("GET", "/runs/none").json())


def test_the_app_serves_no_document_that_asks_nobody(app: FastAPI) -> None:
    assert app.openapi_url is None
    assert {each.path for each in app.routes} == {each.path for each in ENDPOINTS}  # type: ignore[attr-defined]
