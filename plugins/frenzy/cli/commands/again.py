"""``frenzy resume`` and ``frenzy retry``: a run goes on, or its job runs anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from frenzy.adapters import airflow_calls as calls
from frenzy.adapters.api_client import NotFoundError
from frenzy.api import endpoints
from frenzy.cli.commands.references import find_run
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.commands.submission import trigger_run
from frenzy.cli.commands.until_end import until_end
from frenzy.cli.render.console import err, out, print_json
from frenzy.cli.render.error_text import show_reason
from frenzy.core.runs.ledger import FINAL_STATES, JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode

_FIRST_TASK = "profile"

Run = Annotated[str, typer.Argument(help="A run's key, a job's name, or a DAG run's id.")]
Wait = Annotated[bool, typer.Option("--wait", help="Show progress until the DAG run has ended.")]
Json = Annotated[bool, typer.Option("--json", help="Print the values as JSON.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """step: of the checkpoint that the run goes on from; None where it has none."""

    run_key: str
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The new DAG run."""

    dag_id: str
    run_id: str


def resume(run: Run, wait: Wait = False, as_json: Json = False) -> int:
    """Let a run that failed or was cancelled go on from its newest checkpoint, in the same DAG run."""
    with connect() as api:
        view = find_run(api, run)
        _refuse_unless_stopped(view)
        saved = api.ask(endpoints.checkpoints(view.run.run_key))
        identity = view.run.identity
        task = f"{identity.task_group}.{_FIRST_TASK}" if identity.task_group else _FIRST_TASK
        api.ask(calls.clear_from(identity.dag_id, identity.run_id, task, identity.map_index))
        start = f"from step {saved[-1].step}" if saved else "from the start, since it has no checkpoint"
        if as_json:
            print_json(Resumed(run_key=view.run.run_key, step=saved[-1].step if saved else None))
        else:
            out().print(f"{view.run.job.name} {view.run.run_key} goes on {start}.", soft_wrap=True)
        if view.run.state is JobState.FAILED_NO_RESOURCE:
            err().print("It was refused since no plan fits the cluster. Unless that has changed, it fails again:")
            if view.run.reason is not None:
                show_reason(err(), view.run.reason)
        return until_end(api, identity.dag_id, identity.run_id, as_json=as_json) if wait else 0


def retry(run: Run, wait: Wait = False, as_json: Json = False) -> int:
    """Start a new run of the same DAG with the same configuration, from the first step."""
    with connect() as api:
        identity = find_run(api, run).run.identity
        run_id = trigger_run(api, identity.dag_id, _conf(api, identity.dag_id, identity.run_id))
        if as_json:
            print_json(Retried(dag_id=identity.dag_id, run_id=run_id))
        else:
            out().print(f"Run {run_id} of {identity.dag_id} started. Follow it: frenzy status {run_id}", soft_wrap=True)
        return until_end(api, identity.dag_id, run_id, as_json=as_json) if wait else 0


def _conf(api: Api, dag_id: str, run_id: str) -> dict[str, object]:
    """What the run was started with; raises PermanentError where Airflow has deleted it."""
    try:
        return dict(api.ask(calls.dag_run(dag_id, run_id)).get("conf") or {})
    except NotFoundError as error:
        detail = f"Airflow no longer has the DAG run {run_id} of {dag_id}, which says what it was started with."
        remedy = "Submit the job again: frenzy submit."
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy)) from error


def _refuse_unless_stopped(view: RunView) -> None:
    run = view.run
    if run.state is JobState.SUCCEEDED:
        detail, remedy = "has finished its model", f"See it: frenzy models {run.run_key}. Train anew: frenzy retry."
    elif run.state not in FINAL_STATES:
        detail, remedy = f"is {run.state}: it goes on by itself", f"Follow it: frenzy logs -f {run.run_key}."
    else:
        return
    reason = Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"The run {run.run_key} {detail}.", remedy=remedy)
    raise PermanentError(reason)
