"""Every route asks who calls, and what it needs decides who may."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from frenzy.web.access import Need
from frenzy.web.application import create_app
from frenzy.web.routes import ROUTES, Route

READING = {Need.READ, Need.READ_DAG_RUN, Need.READ_LOGS}


def path_of(route: Route) -> str:
    return re.sub(r"\{[^}]+\}", "1", route.path)


def ids(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_app_serves_the_table_and_nothing_else(app: FastAPI) -> None:
    served = {(method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods}
    assert served == {(route.method, route.path) for route in ROUTES}
    assert all(isinstance(route, APIRoute) for route in app.routes)


def test_each_route_depends_on_the_access_it_names() -> None:
    checks = {need: lambda: None for need in Need}
    app = create_app(lambda: pytest.fail("no services are needed to declare routes"), checks)
    by_key = {(min(route.methods), route.path): route for route in app.routes if isinstance(route, APIRoute)}
    for route in ROUTES:
        calls = [each.call for each in by_key[(route.method, route.path)].dependant.dependencies]
        assert checks[route.need] in calls, ids(route)


@pytest.mark.parametrize("route", ROUTES, ids=ids)
def test_nobody_is_refused_everywhere(route: Route, http: TestClient) -> None:
    response = http.request(route.method, path_of(route))
    assert response.status_code == 401
    assert response.json()["detail"]["code"] == "UNAUTHORIZED"


@pytest.mark.parametrize("route", [each for each in ROUTES if each.need not in READING], ids=ids)
def test_viewers_change_nothing(route: Route, http: TestClient) -> None:
    response = http.request(route.method, path_of(route), headers={"X-Role": "viewer"})
    assert response.status_code == 403
    assert response.json()["detail"]["remedy"]


@pytest.mark.parametrize("role", ["viewer", "op"])
@pytest.mark.parametrize("route", [each for each in ROUTES if each.need in READING], ids=ids)
def test_readers_get_past_the_door(route: Route, role: str, http: TestClient) -> None:
    response = http.request(route.method, path_of(route), headers={"X-Role": role})
    assert response.status_code in (200, 404)


def test_all_that_changes_something_needs_more_than_reading() -> None:
    assert all(route.need not in READING for route in ROUTES if route.method != "GET")


def test_unknown_path_says_so_in_the_common_form(caller: Callable[[str | None], object], http: TestClient) -> None:
    response = http.get("/api/v1/nothing", headers={"X-Role": "op"})
    assert response.status_code == 404
    assert set(response.json()["detail"]) == {"code", "message", "remedy", "violations"}
