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


def dag_page(base_url: str, dag_id: str, run_id: str) -> str:
    """Where Airflow shows a DAG run."""
    return f"{base_url}/dags/{_part(dag_id)}/runs/{_part(run_id)}"


def dag_run(dag_id: str, run_id: str) -> Call[Any]:
    """One DAG run, with its state and its conf."""
    return airflow_call("GET", _run(dag_id, run_id))


def newest_dag_runs(dag_id: str) -> Call[Any]:
    """The DAG's newest run, as a list; empty where there is none."""
    return airflow_call("GET", f"/dags/{_part(dag_id)}/dagRuns?order_by=-run_after&limit=1")


def dags(prefix: str, offset: int = 0) -> Call[Any]:
    """DAGs whose ids begin so, at most 100, with their schedules; ``total_entries`` says how many there are."""
    return airflow_call("GET", f"/dags?dag_id_prefix_pattern={_part(prefix)}&order_by=dag_id&limit=100&offset={offset}")


def trigger(dag_id: str, run_id: str, conf: Mapping[str, Any], note: str) -> Call[Any]:
    """Start a run of the DAG now. The caller names it, so that a call that is repeated starts no second one."""
    body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf), "note": note}
    return airflow_call("POST", f"/dags/{_part(dag_id)}/dagRuns", body)


def tasks_of(dag_id: str, run_id: str, state: str | None = None, map_index: int | None = None) -> Call[Any]:
    """The task instances of a DAG run, at most 100; in one state or of one map index only, where it is named."""
    wanted = "" if state is None else f"&state={state}"
    wanted += "" if map_index is None else f"&map_index={map_index}"
    return airflow_call("GET", f"{_run(dag_id, run_id)}/taskInstances?limit=100{wanted}")


def task_log(dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int) -> Call[Any]:
    """The log of one try of a task, which Airflow shows without secrets."""
    path = f"{_run(dag_id, run_id)}/taskInstances/{_part(task_id)}/logs/{try_number}"
    return airflow_call("GET", f"{path}?map_index={map_index}")


def returned(dag_id: str, run_id: str, task_id: str, map_index: int) -> Call[Any]:
    """What a task returned, below ``value``."""
    path = f"{_run(dag_id, run_id)}/taskInstances/{_part(task_id)}/xcomEntries/return_value"
    return airflow_call("GET", f"{path}?map_index={map_index}")


def clear_from(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Call[Any]:
    """Let this task and all after it run again, and the DAG run with them."""
    return _clear(dag_id, run_id, [task_id], map_index, include_downstream=True, reset_dag_runs=True)


def clear_tasks(dag_id: str, run_id: str, task_ids: Sequence[str], map_index: int = -1) -> Call[Any]:
    """Let these tasks of one DAG run, and no others, run again."""
    return _clear(dag_id, run_id, task_ids, map_index, include_downstream=False, reset_dag_runs=False)


def _clear(dag_id: str, run_id: str, task_ids: Sequence[str], map_index: int, **options: bool) -> Call[Any]:
    named: list[Any] = [task_id if map_index < 0 else [task_id, map_index] for task_id in task_ids]
    body = {
        "dry_run": False,
        "dag_run_id": run_id,
        "task_ids": named,
        "only_failed": False,
        "include_upstream": False,
        **options,
    }
    return airflow_call("POST", f"/dags/{_part(dag_id)}/clearTaskInstances", body)


def task_instance(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Call[Any]:
    """One task instance, with its state."""
    path = f"{_run(dag_id, run_id)}/taskInstances/{_part(task_id)}"
    return airflow_call("GET", path if map_index < 0 else f"{path}/{map_index}")


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{_part(dag_id)}/dagRuns/{_part(run_id)}"


def _part(text: str) -> str:
    return quote(text, safe="")
