"""Calls of Airflow's own public API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from frenzy.api.declaration import Call


def airflow_call(method: str, path: str, body: Mapping[str, Any] | None = None) -> Call[Any]:
    """``path`` below /api/v2; the reply stays JSON."""
    return Call(method=method, path=f"/api/v2{path}", body=None if body is None else json.dumps(body))


def clear_tasks(dag_id: str, run_id: str, task_ids: Sequence[str], map_index: int = -1) -> Call[Any]:
    """Let these tasks of one DAG run, and no others, run again."""
    named: list[Any] = [task_id if map_index < 0 else [task_id, map_index] for task_id in task_ids]
    body = {
        "dry_run": False,
        "dag_run_id": run_id,
        "task_ids": named,
        "only_failed": False,
        "include_upstream": False,
        "include_downstream": False,
        "reset_dag_runs": False,
    }
    return airflow_call("POST", f"/dags/{_part(dag_id)}/clearTaskInstances", body)


def task_instance(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Call[Any]:
    """One task instance, with its state."""
    path = f"/dags/{_part(dag_id)}/dagRuns/{_part(run_id)}/taskInstances/{_part(task_id)}"
    return airflow_call("GET", path if map_index < 0 else f"{path}/{map_index}")


def _part(text: str) -> str:
    return quote(text, safe="")
