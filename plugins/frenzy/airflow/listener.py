"""A person ends a DAG run or a task from the UI or the API: cancel the training at once.

Registered in the API server's process only. Airflow calls these hooks inside its own transaction,
so the ledger is written by a thread of its own, after the hook has returned. Triggers see to the
workers; reconciliation sees to whatever both missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from airflow.listeners import hookimpl

log = logging.getLogger(__name__)

_ATTEMPT_TASKS: Final = frozenset({"prepare", "place", "launch", "monitor", "decide"})


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    _in_background(_cancel_dag_run, dag_run.dag_id, dag_run.run_id)


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    _in_background(_cancel_dag_run, dag_run.dag_id, dag_run.run_id)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    _task_ended(task_instance)


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    _task_ended(task_instance)


def _task_ended(task_instance: Any) -> None:
    if str(task_instance.task_id).rpartition(".")[2] in _ATTEMPT_TASKS:
        from frenzy.airflow.identity import identity_of

        _in_background(_cancel_run, identity_of(task_instance).run_key, str(task_instance.task_id))


def _in_background(work: Callable[..., None], *arguments: str) -> None:
    threading.Thread(target=_quietly, args=(work, *arguments), name="frenzy-cancel", daemon=True).start()


def _quietly(work: Callable[..., None], *arguments: str) -> None:
    try:
        work(*arguments)
    except Exception:
        log.exception("Not cancelled (reconciliation will): %s", arguments)


def _cancel_dag_run(dag_id: str, run_id: str) -> None:
    from frenzy.app.queries import runs_of_dag_run
    from frenzy.wiring import services

    for view in runs_of_dag_run(services(), dag_id, run_id):
        _cancel(view, "Its DAG run was ended in Airflow.")


def _cancel_run(run_key: str, task_id: str) -> None:
    from frenzy.app.queries import run_view
    from frenzy.app.services import NotFound
    from frenzy.wiring import services

    try:
        view = run_view(services(), run_key)
    except NotFound:
        return
    _cancel(view, f"Its task {task_id} was ended in Airflow.")


def _cancel(view: Any, why: str) -> None:
    from frenzy.app.cancellation import cancel
    from frenzy.core.runs.ledger import FINAL_STATES
    from frenzy.core.values.errors import Reason, ReasonCode
    from frenzy.wiring import services

    if view.run.state not in FINAL_STATES:
        cancel(services(), view.run.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER, detail=why))
