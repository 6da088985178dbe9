"""Every route asks who calls; whose the run or the job in the path is decides who may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from tests.in_memory.ledger import InMemoryLedger
from tests.in_memory.sources import FixedQueues
from tests.unit.installation import in_memory_services
from tests.unit.web.conftest import API, PEOPLE, SERVICE, ApiUser, app_over, registration

from frenzy.api.declaration import Endpoint, Need
from frenzy.api.endpoints import ENDPOINTS
from frenzy.app.services import Services
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import CancelRun, CleanRun, RunView, SubmitJob, SubmittedJob
from frenzy.core.runs.views import GpusView, QueueView
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.queue_rules import QueueRule, QueueRules, TeamRule
from frenzy.web.messages import Act

YAML: Final = """
name: words
team: readers
queue: fast
model: {config: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 2, vocab_size: 300, n_positions: 64}}
data: {path: words.txt, sequence_length: 32}
training: {max_steps: 10, global_batch_size: 4}
env: {PLACE: hidden-place}
"""
RULES: Final = QueueRules(
    queues=(QueueRule(name="default"), QueueRule(name="fast", users=("ada", "ben"), max_priority=5)),
    teams=(TeamRule(name="readers", members=("ada", "ben")),),
)
REASON: Final = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Not needed.")
# Who gets past the door of a route with each need, where the run is Ada's, for the team readers.
EVERYBODY: Final = frozenset(PEOPLE) - {"op"}
MAY: Final = {
    Need.VISIT: EVERYBODY,
    Need.SEE_RUN: EVERYBODY - {"zoe"},
    Need.SEE_LOGS: {"ada", "ben", "admin", SERVICE},
    Need.TAKE_MODEL: {"ada", "ben", "admin", SERVICE},
    Need.SEE_DAG_RUN: EVERYBODY - {"zoe"},
    Need.MANAGE_RUN: {"ada", "ben", "admin", SERVICE},
    Need.MANAGE_JOB: {"ada", "ben", "admin", SERVICE},
    Need.START: EVERYBODY - {"viewer"},
    Need.ADMIN: {"admin"},
    Need.SERVICE: {SERVICE},
}


@pytest.fixture
def services() -> Services:
    """The run ``words`` of Ada's stored job, started by Eve; the queue file of ``RULES``."""
    ledger = InMemoryLedger()
    ledger.starters[("job_words", "r")] = "eve"
    return in_memory_services(ledger=ledger, queues=FixedQueues(RULES))


@pytest.fixture
def acts() -> list[Act]:
    return []


@pytest.fixture
def app(services: Services, acts: list[Act]) -> FastAPI:
    return app_over(services, on_act=acts.append)


Route = Endpoint[..., Any]
Users = Callable[[str | None], ApiUser]


@pytest.fixture
def run_key(user: Users) -> str:
    user("ada").ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML))
    request = registration("words", run_id="r", team="readers", queue="fast", env={"PLACE": "hidden-place"})
    return user(SERVICE).ask("POST", "/runs", RunView, request).run.run_key


def ids(route: Route) -> str:
    return f"{route.method} {route.path}"


def path_of(route: Route, run_key: str = "1") -> str:
    names = {"run_key": run_key, "name": "words", "dag_id": "job_words", "run_id": "r", "attempt": "1"}
    return route.path.replace(":path", "").format(**names)


def test_app_serves_the_table_and_nothing_else(app: FastAPI) -> None:
    served = {(method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods}
    assert served == {(route.method, route.path) for route in ENDPOINTS}
    assert all(isinstance(route, APIRoute) for route in app.routes)


@pytest.mark.parametrize("route", ENDPOINTS, ids=ids)
def test_nobody_is_refused_everywhere(route: Route, http: TestClient) -> None:
    response = http.request(route.method, path_of(route))
    assert response.status_code == 401
    assert response.json()["detail"]["code"] == "UNAUTHORIZED"


@pytest.mark.parametrize("name", sorted(EVERYBODY))
@pytest.mark.parametrize("route", ENDPOINTS, ids=ids)
def test_each_route_lets_in_those_who_may_and_nobody_else(
    route: Route, name: str, http: TestClient, run_key: str
) -> None:
    response = http.request(route.method, path_of(route, run_key), headers={"X-User": name})
    assert (response.status_code != 403) == (name in MAY[route.need]), response.text


@pytest.mark.parametrize("route", ENDPOINTS, ids=ids)
def test_no_dag_in_the_query_opens_a_door(route: Route, http: TestClient, run_key: str) -> None:
    for name in sorted(EVERYBODY - MAY[route.need]):
        path = f"{path_of(route, run_key)}?dag_id=job_zoes&name=zoes&run_key=1"
        assert http.request(route.method, path, headers={"X-User": name}).status_code == 403, name


def test_a_page_of_another_site_changes_nothing(http: TestClient, run_key: str) -> None:
    for site in ("cross-site", "same-site"):
        headers = {"X-User": "ada", "Sec-Fetch-Site": site}
        assert http.post(f"/api/v1/runs/{run_key}/cancel", headers=headers).status_code == 403
    allowed = {"X-User": "ada", "Sec-Fetch-Site": "same-origin"}
    assert http.post(f"/api/v1/runs/{run_key}/cancel", headers=allowed).status_code == 400  # no body


def test_a_refusal_is_one_line_in_the_log_with_who_and_what_and_no_query(
    http: TestClient, run_key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    http.post(f"{API}/reconcile?token=hidden", headers={"X-User": "eve"})
    http.request("POST", f"{API}/plan?token=hidden", headers={"X-User": "ada", "Sec-Fetch-Site": "cross-site"})
    http.get(f"{API}/runs?token=hidden", headers={"X-User": "eve"})
    http.post(f"{API}/runs/{run_key}/cancel?token=hidden", headers={"X-User": "eve"})
    noted = [each for each in caplog.records if each.name.startswith("frenzy")]
    assert [each.getMessage() for each in noted] == [
        "POST /api/v1/reconcile is refused to 'eve', needs service: You may not do this.",
        "POST /api/v1/plan is refused to 'ada', needs start: A page of another site asks for this.",
        f"POST /api/v1/runs/{run_key}/cancel is refused to 'eve', needs manage_run: "
        f"The run {run_key} of words is another's.",
    ]
    assert {each.levelname for each in noted} == {"WARNING"}


def test_a_stored_job_s_run_is_its_owner_s_whoever_started_it(user: Users, run_key: str) -> None:
    assert user("ada").ask("GET", f"/runs/{run_key}", RunView).run.owner == "ada"
    refused = user("eve").send("POST", f"/runs/{run_key}/cancel", CancelRun(reason=REASON))
    assert (refused.status_code, refused.json()["detail"]["code"]) == (403, "NOT_ALLOWED")
    assert "readers" in refused.json()["detail"]["remedy"]


def test_any_other_run_is_of_who_started_it(user: Users, services: Services) -> None:
    assert isinstance(services.ledger, InMemoryLedger)
    services.ledger.starters[("frenzy_train", "r")] = "eve"
    request = registration("mine")
    request = replace(request, identity=replace(request.identity, dag_id="frenzy_train", run_id="r"))
    run = user(SERVICE).ask("POST", "/runs", RunView, request).run
    assert run.owner == "eve"
    ended = user("eve").ask("POST", f"/runs/{run.run_key}/cancel", RunView, CancelRun(reason=REASON))
    assert (ended.run.state, ended.run.reason) == (
        JobState.CANCELLED,
        replace(REASON, detail="Cancelled by eve: Not needed."),
    )
    assert user("ada").send("POST", f"/runs/{run.run_key}/cancel", CancelRun(reason=REASON)).status_code == 403


@pytest.mark.parametrize(("name", "status"), [("ada", 200), ("ben", 200), ("admin", 200), ("eve", 403), ("zoe", 403)])
def test_a_job_is_replaced_by_those_who_manage_it(name: str, status: int, user: Users, run_key: str) -> None:
    assert run_key
    changed = YAML.replace("max_steps: 10", "max_steps: 11").replace("fast", "default").replace("readers", "default")
    response = user(name).send("POST", "/jobs", SubmitJob(yaml_text=changed))
    assert response.status_code == status, response.text
    assert ("max_steps: 11" in user("admin").send("GET", "/jobs/words").text) == (status == 200)


def test_a_team_mate_s_change_leaves_the_job_its_owner(user: Users, run_key: str, services: Services) -> None:
    assert run_key
    user("ben").ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML + "priority: 2\n"))
    with services.ledger.reading() as tx:
        record = tx.job("words")
    assert record is not None
    assert (record.owner, record.bound_to) == ("ada", "ben")


def test_a_removed_job_s_name_is_free_and_its_runs_stay_its_owner_s(user: Users, run_key: str) -> None:
    refused = user("ada").send("DELETE", "/jobs/words")
    assert (refused.status_code, f"Runs of words have not ended: {run_key}" in refused.text) == (400, True)
    assert user("ada").send("POST", f"/runs/{run_key}/cancel", CancelRun(reason=REASON)).status_code < 300
    assert user("ada").send("DELETE", "/jobs/words").status_code == 204
    free = YAML.replace("fast", "default").replace("readers", "default")
    assert user("eve").ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=free)).changed
    assert user("ada").ask("GET", f"/runs/{run_key}", RunView).run.owner == "ada"
    assert user("eve").send("POST", f"/runs/{run_key}/cancel", CancelRun(reason=REASON)).status_code == 403


def test_the_name_of_a_dag_of_the_dags_folder_is_for_administrators(user: Users, services: Services) -> None:
    assert isinstance(services.ledger, InMemoryLedger)
    services.ledger.dags.add("job_words")
    assert user("ada").send("POST", "/jobs", SubmitJob(yaml_text=YAML)).status_code == 403
    assert user("admin").ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=YAML)).changed


def test_a_form_does_not_save_over_another_s_job(user: Users, run_key: str, services: Services) -> None:
    assert run_key
    assert isinstance(services.ledger, InMemoryLedger)
    services.ledger.starters[("frenzy_train", "r")] = "eve"
    free = YAML.replace("fast", "default").replace("readers", "default")
    by_eve = SubmitJob(yaml_text=free, dag_run=("frenzy_train", "r"))
    assert user(SERVICE).send("POST", "/jobs", by_eve).status_code == 403


def test_a_form_does_not_train_under_another_s_name(user: Users, run_key: str, services: Services) -> None:
    assert run_key
    assert isinstance(services.ledger, InMemoryLedger)
    services.ledger.starters[("frenzy_train", "r")] = "eve"
    request = registration("words")
    request = replace(request, identity=replace(request.identity, dag_id="frenzy_train", run_id="r"))
    assert user(SERVICE).send("POST", "/runs", request).status_code == 403


def test_a_job_stored_anew_by_another_takes_over_no_run_of_before(user: Users, run_key: str) -> None:
    user("ada").send("POST", f"/runs/{run_key}/cancel", CancelRun(reason=REASON))
    user("ada").send("DELETE", "/jobs/words")
    free = YAML.replace("fast", "default").replace("readers", "default")
    user("eve").ask("POST", "/jobs", SubmittedJob, SubmitJob(yaml_text=free))
    again = user(SERVICE).send("POST", "/runs", registration("words", run_id="r"))  # its tasks are cleared
    assert (again.status_code, again.json()["detail"]["code"]) == (403, "NOT_ALLOWED")
    assert user("admin").ask("GET", f"/runs/{run_key}", RunView).run.owner == "ada"


def test_a_dag_run_made_again_takes_over_nothing(user: Users, services: Services) -> None:
    assert isinstance(services.ledger, InMemoryLedger)
    request = registration("mine")
    request = replace(request, identity=replace(request.identity, dag_id="frenzy_train", run_id="r"))
    for name, status in (("ada", 200), ("eve", 403)):
        services.ledger.starters[("frenzy_train", "r")] = name
        run_key = request.identity.run_key
        response = user(SERVICE).send("POST", "/runs", request)
        assert response.status_code == status
        user("admin").send("POST", f"/runs/{run_key}/cancel", CancelRun(reason=REASON))


@pytest.mark.parametrize(
    ("changes", "path"),
    [({"queue": "fast"}, "queue"), ({"team": "readers"}, "team")],
    ids=lambda value: str(value),
)
def test_a_stranger_uses_no_queue_and_no_team(changes: dict[str, str], path: str, user: Users) -> None:
    text = YAML.replace("team: readers\n", "").replace("queue: fast\n", "")
    text += "".join(f"{name}: {value}\n" for name, value in changes.items())
    response = user("eve").send("POST", "/jobs", SubmitJob(yaml_text=text))
    assert [each["path"] for each in response.json()["detail"]["violations"]] == [path]
    assert user("admin").send("POST", "/jobs", SubmitJob(yaml_text=text)).status_code == 200


def test_priority_above_the_queue_s_is_refused(user: Users) -> None:
    response = user("ada").send("POST", "/jobs", SubmitJob(yaml_text=YAML + "priority: 6\n"))
    assert [each["path"] for each in response.json()["detail"]["violations"]] == ["priority"]
    assert user("ada").send("POST", "/jobs", SubmitJob(yaml_text=YAML + "priority: 5\n")).status_code == 200


def test_the_preview_keeps_the_same_rules(user: Users) -> None:
    request = registration("words", team="readers", queue="fast")
    assert user("eve").send("POST", "/plan", request).status_code == 400
    assert user("ada").send("POST", "/plan", request).status_code == 200


def test_who_leaves_a_team_trains_no_more_for_it(user: Users, http: TestClient, run_key: str) -> None:
    without_ada = QueueRules(queues=RULES.queues, teams=(TeamRule(name="readers", members=("ben",)),))
    app = http.app
    assert isinstance(app, FastAPI)
    changed = replace(app.state.services(), queues=FixedQueues(without_ada))
    app.state.services = lambda: changed
    assert run_key
    response = user(SERVICE).send("POST", "/runs", registration("words", run_id="r2", team="readers", queue="fast"))
    assert [each["path"] for each in response.json()["detail"]["violations"]] == ["team"]


@pytest.mark.parametrize(
    ("name", "is_whole"),
    [("ada", True), ("ben", True), ("admin", True), (SERVICE, True), ("eve", False), ("viewer", False)],
)
def test_the_specification_is_shown_to_owner_team_and_administrators(
    name: str, is_whole: bool, user: Users, run_key: str
) -> None:
    for path in (f"/runs/{run_key}", "/runs", "/runs/by-dag/job_words/r"):
        text = user(name).send("GET", path).text
        assert run_key in text
        assert ("hidden-place" in text) == is_whole, path
    assert user(name).send("GET", "/jobs/words").status_code == (200 if is_whole else 403)


def test_lists_show_what_the_caller_may_see(user: Users, run_key: str, services: Services) -> None:
    zoes = registration("zoes", run_id="r")
    with_zoes = user(SERVICE).ask("POST", "/runs", RunView, zoes).run.run_key
    for key in (run_key, with_zoes):
        user(SERVICE).send("POST", f"/runs/{key}/enqueue")
    seen = user("zoe").ask("GET", "/runs", tuple[RunView, ...])
    assert [each.run.run_key for each in seen] == [with_zoes]
    queue = user("zoe").ask("GET", "/queue", QueueView)
    assert {each.run_key for each in (*queue.running, *queue.waiting)} == {with_zoes}
    assert run_key not in user("zoe").send("GET", "/gpus").text
    assert user("zoe").send("GET", "/jobs").json() == []
    assert user("eve").send("GET", "/jobs").json() == ["words"]
    held = user("zoe").ask("GET", "/gpus", GpusView)
    assert sum(row.num_gpus - row.num_free for row in held.types) == sum(each.num_gpus for each in _leases(services))


def _leases(services: Services) -> list[object]:
    with services.ledger.reading() as tx:
        return list(tx.held_leases())


def test_what_may_be_cleaned_is_one_s_own(user: Users, run_key: str) -> None:
    user("ada").send("POST", f"/runs/{run_key}/cancel", CancelRun(reason=REASON))
    assert run_key in user("ben").send("GET", "/ended").text
    assert run_key not in user("eve").send("GET", "/ended").text
    assert user("eve").send("POST", f"/runs/{run_key}/clean", CleanRun(older_than_s=0)).status_code == 403


def test_the_audit_log_says_who(user: Users, run_key: str, acts: list[Act]) -> None:
    user("ben").send("POST", f"/runs/{run_key}/cancel", CancelRun(reason=REASON))
    user("admin").send("DELETE", "/jobs/words")
    user("eve").send("DELETE", "/jobs/words")
    told = [(act.who, act.event, act.dag_id, act.run_id) for act in acts]
    assert told == [
        ("ada", "frenzy_store_job", "job_words", None),
        ("ben", "frenzy_cancel_run", "job_words", "r"),
        ("admin", "frenzy_remove_job", "job_words", None),
    ]


def test_unknown_path_says_so_in_the_common_form(user: Users) -> None:
    response = user("op").send("GET", "/nothing")
    assert response.status_code == 404
    assert set(response.json()["detail"]) == {"code", "message", "remedy", "violations"}
