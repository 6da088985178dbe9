"""Every route of the mounted app against Airflow's own users, and one run that is Ada's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.e2e.walker import Walker, job_text
from tests.embedded_stack import Stack

from frenzy.api import URL_PREFIX
from frenzy.api.declaration import Endpoint, Need
from frenzy.api.endpoints import ENDPOINTS
from frenzy.cli.embedded.airflow_env import SERVICE_USER
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView, SubmitJob, SubmittedJob
from frenzy.core.values.codec import encode

USERS = ("viewer", "eve", "ada", "ben", "admin", SERVICE_USER)
PEOPLE_OF_THE_RUN = {"ada", "ben", "admin", SERVICE_USER}
MAY = {
    Need.VISIT: set(USERS),
    Need.SEE_RUN: set(USERS),
    Need.SEE_LOGS: PEOPLE_OF_THE_RUN,
    Need.TAKE_MODEL: PEOPLE_OF_THE_RUN,
    Need.SEE_DAG_RUN: set(USERS),
    Need.MANAGE_RUN: PEOPLE_OF_THE_RUN,
    Need.MANAGE_JOB: PEOPLE_OF_THE_RUN,
    Need.START: {"eve", *PEOPLE_OF_THE_RUN},
    Need.ADMIN: {"admin"},
    Need.SERVICE: {SERVICE_USER},
}


@pytest.fixture(scope="module")
def view(walker: Walker) -> Iterator[RunView]:
    """A run of Ada's job, for the team readers, which the administrator has started and which will not end soon."""
    text = job_text("adas", walker.corpus, team="readers", training={"max_steps": 5000}, env={"PLACE": "hidden-place"})
    job = SubmitJob(yaml_text=text)
    stored = walker.frenzy("POST", "/jobs", SubmittedJob, encode(job), user="ada")
    walker.eventually("the DAG", lambda: walker.airflow("GET", f"/dags/{stored.dag_id}"))
    run_id = walker.trigger(stored.dag_id)
    yield walker.wait_for_state(stored.dag_id, run_id, JobState.STARTING, JobState.RUNNING)
    walker.cancel(stored.dag_id, run_id)
    walker.wait_for_end(stored.dag_id, run_id)


def url_of(route: Endpoint[..., Any], stack: Stack, view: RunView) -> str:
    identity = view.run.identity
    names = {"run_key": view.run.run_key, "dag_id": identity.dag_id, "run_id": quote(identity.run_id, safe="")}
    return stack.base_url + URL_PREFIX + route.path.replace(":path", "").format(**names, name="adas", attempt="99")


def test_nobody_gets_in_anywhere(stack: Stack, view: RunView) -> None:
    for each in ENDPOINTS:
        answer = httpx.request(each.method, url_of(each, stack, view), timeout=60.0, trust_env=False)
        assert answer.status_code == 401, f"{each.method} {each.path}"


@pytest.mark.parametrize("user", USERS)
def test_each_route_lets_in_those_who_may_and_nobody_else(user: str, stack: Stack, view: RunView) -> None:
    with httpx.Client(headers=stack.headers(user), timeout=60.0, trust_env=False) as client:
        for each in ENDPOINTS:
            if each.method == "DELETE" and user in MAY[each.need]:
                continue  # the job is needed on
            found = client.request(each.method, f"{url_of(each, stack, view)}?dag_id=job_mine")
            assert (found.status_code != 403) == (user in MAY[each.need]), f"{each.method} {each.path}: {found.text}"
            assert found.status_code != 500, f"{each.method} {each.path}: {found.text}"


def test_the_run_is_its_owner_s_and_its_specification_hidden_from_strangers(walker: Walker, view: RunView) -> None:
    assert view.run.owner == "ada"
    path = f"/runs/{view.run.run_key}"
    assert walker.frenzy("GET", path, RunView, user="ben").run.job.env == {"PLACE": "hidden-place"}
    assert walker.frenzy("GET", path, RunView, user="eve").run.job.env == {}


def test_the_audit_log_says_who_stored_the_job(walker: Walker, view: RunView) -> None:
    rows = walker.airflow("GET", f"/eventLogs?dag_id={view.run.identity.dag_id}&event=frenzy_store_job")["event_logs"]
    assert [row["owner"] for row in rows] == ["ada"]


def test_no_token_and_no_password_is_in_a_log(stack: Stack, view: RunView) -> None:
    assert view.run.owner == "ada"
    passwords = [stack.password(user) for user in USERS]
    for path in stack.settings.home.rglob("*.log"):
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}", text), path
        assert not any(each in text for each in passwords), path


@pytest.mark.parametrize("forged", ["", "Bearer", "Bearer x.y.z", "Basic YWRtaW46YWRtaW4="])
def test_forged_tokens_are_refused(forged: str, stack: Stack) -> None:
    headers = {"Authorization": forged} if forged else {}
    answer = httpx.get(f"{stack.base_url}{URL_PREFIX}/api/v1/queue", headers=headers, trust_env=False)
    assert answer.status_code in (401, 403)


def test_run_with_an_odd_id_is_looked_up_and_not_found(stack: Stack) -> None:
    path = f"{URL_PREFIX}/api/v1/runs/by-dag/{quote('no dag', safe='')}/{quote('a/b+c', safe='')}"
    answer = httpx.get(stack.base_url + path, headers=stack.headers("viewer"), trust_env=False)
    assert (answer.status_code, answer.json()) == (200, [])
