"""Watching a DAG run's training to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from frenzy.adapters import airflow_calls as calls
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.cli.commands.submission import dag_run_state
from frenzy.core.runs.ledger import Event, JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import PermanentError, TemporaryError
from frenzy.core.values.telemetry import printable

POLL_S: Final = 0.7
# A server that is started again is back within this.
OUTAGE_S: Final = 180.0
_ENDED: Final = frozenset({"success", "failed"})
_WAITING: Final = frozenset({"scheduled", "queued"})
_ACTIVE: Final = frozenset({*_WAITING, "running", "deferred", "up_for_retry", "restarting"})
_DOES: Final = {
    "profile": "reading the model and the data, listing plans",
    "prepare": "preparing the model and the data",
    "place": "waiting for GPUs",
    "launch": "starting the workers",
    "decide": "deciding what follows",
    "publish": "publishing the model",
    "evaluate": "measuring perplexity and writing a sample",
}
_STATES: Final = {
    JobState.RUNNING: "training",
    JobState.CHECKPOINTING: "saving a checkpoint to stop",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """One look: Airflow's state of the DAG run, its training runs, what is new in their history.

    phase: what is done now, in words.
    """

    dag_state: str
    views: tuple[RunView, ...]
    new_events: tuple[Event, ...]
    phase: str = ""

    @property
    def is_last(self) -> bool:
        return self.dag_state in _ENDED


def follow(api: Api, dag_id: str, run_id: str, *, poll_s: float = POLL_S) -> Iterator[StatusSnapshot]:
    """A snapshot every ``poll_s`` seconds until the DAG run has ended; the last one shows the end.

    Raises TemporaryError when the server has not answered for ``OUTAGE_S``; till then a snapshot says that it does not.
    """
    seen: dict[str, int] = {}
    views: tuple[RunView, ...] = ()
    answered_s = time.monotonic()
    while True:
        try:
            state = dag_run_state(api, dag_id, run_id)
            views = api.ask(endpoints.runs_of_dag_run(dag_id, run_id))
            phase = phase_of(api.ask(calls.tasks_of(dag_id, run_id))["task_instances"], views)
            answered_s = time.monotonic()
        except TemporaryError as error:
            if time.monotonic() - answered_s > OUTAGE_S:
                raise
            state, phase = "unknown", f"no answer from the server ({error.reason.code}), trying again"
        fresh = [event for view in views for event in view.events[seen.get(view.run.run_key, 0) :]]
        seen.update({view.run.run_key: len(view.events) for view in views})
        snapshot = StatusSnapshot(dag_state=state, views=views, new_events=tuple(fresh), phase=phase)
        yield snapshot
        if snapshot.is_last:
            return
        time.sleep(poll_s)


def phase_of(tasks: Sequence[Any], views: Sequence[RunView]) -> str:
    """What is done now, in words: of each task that is on, and of the training itself while its workers run."""
    active = [each for each in tasks if each["state"] in _ACTIVE and not each["task_id"].endswith("monitor")]
    states = dict.fromkeys(_STATES[each.run.state] for each in views if each.run.state in _STATES)
    words = [
        *(states if any(_last_name(each) == "launch" for each in active) else ()),
        *(_does(each) for each in active if not (states and _last_name(each) == "launch")),
    ]
    return "; ".join(dict.fromkeys(words)) or "Airflow's scheduler is starting the next task"


def _does(task: Any) -> str:
    if task["state"] in _WAITING:
        return f"{task['task_id']} waits for a process of Airflow"
    if task["state"] == "up_for_retry":
        return f"{task['task_id']} is about to be tried again"
    return _DOES.get(_last_name(task), f"{task['task_id']} runs")


def _last_name(task: Any) -> str:
    return str(task["task_id"]).rpartition(".")[2]


def _group(task: Any) -> tuple[str, int]:
    return str(task["task_id"]).rpartition(".")[0], task["map_index"]


def task_errors(api: Api, dag_id: str, run_id: str) -> tuple[str, ...]:
    """Why the DAG run's failed tasks failed, a line each: what refuses a job before its run is known."""
    failed = api.ask(calls.tasks_of(dag_id, run_id, "failed"))["task_instances"]
    refused = {_group(each) for each in failed if _last_name(each) == "profile"}
    # Where nothing was registered, decide fails for want of a run.
    failed = [each for each in failed if _last_name(each) != "decide" or _group(each) not in refused]
    return tuple(printable(f"{each['task_id']}: {_error_in_log(api, dag_id, run_id, each)}") for each in failed)


def _error_in_log(api: Api, dag_id: str, run_id: str, task: Any) -> str:
    """The newest error in the log of the task's last try, which Airflow shows without secrets."""
    call = calls.task_log(dag_id, run_id, task["task_id"], task["try_number"], task["map_index"])
    try:
        lines = api.ask(call)["content"]
    except PermanentError as error:
        return f"its log cannot be read ({error})"
    errors = (line["error_detail"] for line in reversed(lines) if isinstance(line, dict) and line.get("error_detail"))
    return next((str(each[0]["exc_value"]) for each in errors), "its log shows no error")
