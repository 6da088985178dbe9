"""Every route of the mounted app against Airflow's own users: nobody, viewer, operator."""

from __future__ import annotations

import re
from urllib.parse import quote

import httpx
import pytest

from frenzy.cli.stack import Stack
from frenzy.web.access import Need
from frenzy.web.mount import URL_PREFIX
from frenzy.web.routes import ROUTES, Route

READING = (Need.READ, Need.READ_DAG_RUN, Need.READ_LOGS)


def url_of(route: Route, stack: Stack) -> str:
    return stack.base_url + URL_PREFIX + re.sub(r"\{[^}]+\}", "1", route.path)


def status(route: Route, stack: Stack, user: str | None) -> int:
    headers = {} if user is None else stack.headers(user)
    url = url_of(route, stack)
    return httpx.request(route.method, url, headers=headers, timeout=60.0, trust_env=False).status_code


def test_nobody_gets_in_anywhere(stack: Stack) -> None:
    assert {f"{each.method} {each.path}": status(each, stack, None) for each in ROUTES} == {
        f"{each.method} {each.path}": 401 for each in ROUTES
    }


def test_viewer_changes_nothing(stack: Stack) -> None:
    token = stack.headers("viewer")
    with httpx.Client(headers=token, timeout=60.0, trust_env=False) as viewer:
        for each in ROUTES:
            found = viewer.request(each.method, url_of(each, stack)).status_code
            assert (found == 403) == (each.need not in READING), f"{each.method} {each.path}: {found}"


def test_operator_gets_past_every_door(stack: Stack) -> None:
    with httpx.Client(headers=stack.headers("frenzy"), timeout=60.0, trust_env=False) as operator:
        for each in ROUTES:
            found = operator.request(each.method, url_of(each, stack)).status_code
            assert found not in (401, 403, 500), f"{each.method} {each.path}: {found}"


@pytest.mark.parametrize("forged", ["", "Bearer", "Bearer x.y.z", "Basic YWRtaW46YWRtaW4="])
def test_forged_tokens_are_refused(forged: str, stack: Stack) -> None:
    headers = {"Authorization": forged} if forged else {}
    answer = httpx.get(f"{stack.base_url}{URL_PREFIX}/api/v1/queue", headers=headers, trust_env=False)
    assert answer.status_code in (401, 403)


def test_run_with_an_odd_id_is_looked_up_and_not_found(stack: Stack) -> None:
    path = f"{URL_PREFIX}/api/v1/runs/by-dag/{quote('no dag', safe='')}/{quote('a/b+c', safe='')}"
    answer = httpx.get(stack.base_url + path, headers=stack.headers("viewer"), trust_env=False)
    assert (answer.status_code, answer.json()) == (200, [])
