"""Who calls the API, as Airflow's auth manager knows them. Imported by the API server only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models import DagModel

from frenzy.adapters.connection_settings import service_login
from frenzy.core.runs.access import Caller
from frenzy.web.guards import Action

_METHODS: Final[dict[Action, tuple[Any, DagAccessEntity]]] = {
    Action.SEE_RUNS: ("GET", DagAccessEntity.RUN),
    Action.SEE_LOGS: ("GET", DagAccessEntity.TASK_LOGS),
    Action.START_RUNS: ("POST", DagAccessEntity.RUN),
    Action.CHANGE_RUNS: ("PUT", DagAccessEntity.RUN),
}


class AirflowPerson:
    """A user of Airflow. Administers who may change Connections: one of them makes Frenzy's tasks who they are.

    service: the login of Frenzy's tasks; None or empty: nobody is the service.
    """

    def __init__(self, user: Any, manager: BaseAuthManager[Any], service: str | None) -> None:
        self._user, self._manager = user, manager
        name = str(user.get_name())
        is_service = bool(service) and name == service
        is_admin = self._manager.is_authorized_connection(method="PUT", user=user)
        self.caller = Caller(name=name, is_admin=is_admin, is_service=is_service)

    def may_visit(self) -> bool:
        return self._manager.is_authorized_view(access_view=AccessView.WEBSITE, user=self._user)

    def may(self, action: Action, dag_id: str | None = None) -> bool:
        team = None if dag_id is None else _teams_of([dag_id]).get(dag_id)
        return self._may(action, dag_id, team)

    def sees(self, dag_ids: Iterable[str]) -> frozenset[str]:
        wanted = frozenset(dag_ids)
        teams = _teams_of(list(wanted))
        return frozenset(each for each in wanted if self._may(Action.SEE_RUNS, each, teams.get(each)))

    def _may(self, action: Action, dag_id: str | None, team: str | None) -> bool:
        method, entity = _METHODS[action]
        details = DagDetails(id=dag_id, team_name=team)
        return self._manager.is_authorized_dag(method=method, access_entity=entity, details=details, user=self._user)


def airflow_person(user: GetUserDep) -> AirflowPerson:
    """A dependency; raises 401 for a caller without a valid token or session cookie."""
    return AirflowPerson(user, get_auth_manager(), service_login())


def _teams_of(dag_ids: list[str]) -> dict[str, str | None]:
    """Airflow's own teams, which have nothing to do with those of jobs."""
    return DagModel.get_dag_id_to_team_name_mapping(dag_ids) if conf.getboolean("core", "multi_team") else {}
