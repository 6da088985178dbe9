"""Who callers are and what they may do, as Airflow's auth managers say it."""

from __future__ import annotations

from typing import Any, Final

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

from frenzy.airflow.person import AirflowPerson
from frenzy.web.guards import Action

SEEING: Final = {Action.SEE_RUNS, Action.SEE_LOGS}
RIGHTS: Final = {
    "ada": {
        ("job_adas", "GET", DagAccessEntity.RUN),
        ("job_adas", "PUT", DagAccessEntity.RUN),
        ("job_shared", "GET", DagAccessEntity.RUN),
    },
    "ben": {("job_shared", "GET", DagAccessEntity.RUN), ("job_shared", "GET", DagAccessEntity.TASK_LOGS)},
    "starter": {(None, "POST", DagAccessEntity.RUN)},
}


class PerDag(SimpleAuthManager):
    """Rights for each DAG, as FAB and Keycloak have them; the rest by role."""

    def is_authorized_dag(  # type: ignore[override]
        self, *, method: str, user: Any, access_entity: Any = None, details: DagDetails | None = None
    ) -> bool:
        dag_id = None if details is None else details.id
        return (dag_id, method, access_entity) in RIGHTS.get(user.username, set())


def person(
    name: str, *, role: str | None = "USER", service: str | None = "frenzy", manager: SimpleAuthManager | None = None
) -> AirflowPerson:
    return AirflowPerson(SimpleAuthManagerUser(username=name, role=role), manager or PerDag(), service)


def test_each_sees_the_dags_that_the_auth_manager_shows_them() -> None:
    dags = ["job_adas", "job_shared", "job_bens"]
    seen = {name: person(name).sees(dags) for name in ("ada", "ben", "eve")}
    assert seen == {"ada": {"job_adas", "job_shared"}, "ben": {"job_shared"}, "eve": frozenset()}


def test_a_right_on_one_dag_or_entity_or_method_is_none_on_another() -> None:
    ada, ben = person("ada"), person("ben")
    assert {each for each in Action if ada.may(each, "job_adas")} == {Action.SEE_RUNS, Action.CHANGE_RUNS}
    assert {each for each in Action if ada.may(each, "job_shared")} == {Action.SEE_RUNS}
    assert {each for each in Action if ben.may(each, "job_shared")} == SEEING
    assert not any(ben.may(each, dag_id) for each in Action for dag_id in ("job_adas", None))


def test_who_may_start_any_dag_s_runs_may_start_jobs_and_sees_none() -> None:
    starter = person("starter")
    assert {each for each in Action if starter.may(each)} == {Action.START_RUNS}
    assert starter.sees(["job_adas"]) == frozenset()


@pytest.mark.parametrize(("role", "is_admin"), [("VIEWER", False), ("USER", False), ("OP", True), ("ADMIN", True)])
def test_administrators_are_those_who_may_change_connections_whatever_their_rights_on_dags(
    role: str, is_admin: bool
) -> None:
    assert person("eve", role=role).caller.is_admin is is_admin


@pytest.mark.parametrize(
    ("name", "service", "is_service"),
    [
        ("frenzy", "frenzy", True),
        ("Frenzy", "frenzy", False),
        ("ada", "frenzy", False),
        ("None", None, False),
        ("", None, False),
        ("", "", False),
    ],
)
def test_the_service_is_who_has_its_login_and_nobody_without_one(
    name: str, service: str | None, is_service: bool
) -> None:
    caller = person(name, service=service).caller
    assert (caller.is_service, caller.is_admin, caller.name) == (is_service, False, name)


@pytest.mark.parametrize(
    ("role", "may"),
    [(None, set()), ("VIEWER", SEEING), ("USER", set(Action)), ("OP", set(Action)), ("ADMIN", set(Action))],
)
def test_the_simple_auth_manager_knows_roles_only(role: str | None, may: set[Action]) -> None:
    somebody = person("eve", role=role, manager=SimpleAuthManager())
    assert {each for each in Action if somebody.may(each, "job_adas")} == may
    assert {each for each in Action if somebody.may(each)} == may
    assert somebody.sees(["job_adas"]) == (frozenset({"job_adas"}) if may else frozenset())
    assert somebody.may_visit() is (role is not None)
    assert somebody.caller.is_admin is (role in ("OP", "ADMIN"))
