"""Watching a DAG run's training to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from frenzy.adapters.airflow_calls import airflow_call
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.cli.commands.submission import dag_run_state
from frenzy.core.runs.ledger import Event
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.telemetry import printable

POLL_S: Final = 0.7
_ENDED: Final = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """One look: Airflow's state of the DAG run, its training runs, and what is new in their history."""

    dag_state: str
    views: tuple[RunView, ...]
    new_events: tuple[Event, ...]

    @property
    def is_last(self) -> bool:
        return self.dag_state in _ENDED


def follow(api: Api, dag_id: str, run_id: str, *, poll_s: float = POLL_S) -> Iterator[StatusSnapshot]:
    """A snapshot every ``poll_s`` seconds until the DAG run has ended; the last one shows the end."""
    seen: dict[str, int] = {}
    while True:
        state = dag_run_state(api, dag_id, run_id)
        views = api.ask(endpoints.runs_of_dag_run(dag_id, run_id))
        fresh = [event for view in views for event in view.events[seen.get(view.run.run_key, 0) :]]
        seen.update({view.run.run_key: len(view.events) for view in views})
        snapshot = StatusSnapshot(dag_state=state, views=views, new_events=tuple(fresh))
        yield snapshot
        if snapshot.is_last:
            return
        time.sleep(poll_s)


def task_errors(api: Api, dag_id: str, run_id: str) -> tuple[str, ...]:
    """Why the DAG run's failed tasks failed, a line each: what refuses a job before its run is known."""
    run = f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}/taskInstances"
    failed = api.ask(airflow_call("GET", f"{run}?state=failed&limit=100"))["task_instances"]
    return tuple(printable(f"{each['task_id']}: {_error_in_log(api, run, each)}") for each in failed)


def _error_in_log(api: Api, run: str, task: Any) -> str:
    """The newest error in the log of the task's last try, which Airflow shows without secrets."""
    path = f"{run}/{quote(task['task_id'], safe='')}/logs/{task['try_number']}?map_index={task['map_index']}"
    try:
        lines = api.ask(airflow_call("GET", path))["content"]
    except PermanentError as error:
        return f"its log cannot be read ({error})"
    errors = (line["error_detail"] for line in reversed(lines) if isinstance(line, dict) and line.get("error_detail"))
    return next((str(each[0]["exc_value"]) for each in errors), "its log shows no error")
