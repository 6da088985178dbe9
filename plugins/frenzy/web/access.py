"""Who may call a route.

Airflow does not guard the apps that plugins mount, so each route names a ``Need`` and this
module turns needs into FastAPI dependencies. A dependency raises 401 for a caller without a
valid token or session cookie, and 403 for one who may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

Dependency = Callable[..., Any]


class Need(StrEnum):
    """What a caller must be allowed to do.

    READ: look at jobs and the cluster. READ_DAG_RUN: look at runs of the DAG in the path.
    READ_LOGS: read task logs. OPERATE: change task instances (what tasks, triggers and people
    who run DAGs may do). START: create DAG runs, hence jobs.
    """

    READ = "read"
    READ_DAG_RUN = "read_dag_run"
    READ_LOGS = "read_logs"
    OPERATE = "operate"
    START = "start"


def airflow_access() -> Mapping[Need, Dependency]:
    """The needs as Airflow's auth manager judges them; imports Airflow."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
    from airflow.api_fastapi.core_api.security import requires_access_dag, requires_access_view

    return {
        Need.READ: requires_access_view(AccessView.WEBSITE),
        Need.READ_DAG_RUN: requires_access_dag("GET", DagAccessEntity.RUN),
        Need.READ_LOGS: requires_access_dag("GET", DagAccessEntity.TASK_LOGS),
        Need.OPERATE: requires_access_dag("PUT", DagAccessEntity.TASK_INSTANCE),
        Need.START: requires_access_dag("POST", DagAccessEntity.RUN),
    }
