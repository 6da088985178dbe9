"""What a person calls a run: its key, its job's name, its DAG, or its DAG run's id."""

from __future__ import annotations

from typing import Final

from frenzy.adapters import airflow_calls as calls
from frenzy.adapters.api_client import NotFoundError
from frenzy.api import endpoints
from frenzy.cli.commands.follow import task_errors
from frenzy.cli.commands.server import Api
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.job import JOB_DAG_PREFIX

_SEARCHED: Final = 1000


def find_run(api: Api, reference: str) -> RunView:
    """The run with that key, else the newest whose job, DAG or DAG run has that name.

    Raises PermanentError naming the runs there are.
    """
    if reference.strip():
        try:
            return api.ask(endpoints.run_view(reference))
        except NotFoundError:
            pass
    known = api.ask(endpoints.runs(_SEARCHED))
    for view in known:
        if reference in (view.run.job.name, view.run.identity.dag_id, view.run.identity.run_id):
            return api.ask(endpoints.run_view(view.run.run_key))
    name = reference.removeprefix(JOB_DAG_PREFIX)
    if name in api.ask(endpoints.jobs()):
        raise PermanentError(_without_a_run(api, name))
    names = ", ".join(dict.fromkeys(view.run.job.name for view in known)) or "none yet"
    raise PermanentError(
        Reason(
            code=ReasonCode.BAD_CONFIG_OR_DATA,
            detail=f"No training run or job is called {reference!r}.",
            remedy=f"Jobs with runs: {names}. See: frenzy status",
        )
    )


def _without_a_run(api: Api, name: str) -> Reason:
    """Why a stored job has no training run: ``profile``, which registers it, failed or has not come so far."""
    dag_id = f"{JOB_DAG_PREFIX}{name}"
    try:
        newest = api.ask(calls.newest_dag_runs(dag_id))["dag_runs"]
    except NotFoundError:  # Airflow has not read the DAG yet
        newest = []
    code, detail = ReasonCode.BAD_CONFIG_OR_DATA, f"The job {name!r} is stored, but has no training run"
    if not newest:
        remedy = f"See whether it fits: frenzy plan FILE. Then trigger its DAG {dag_id}."
        return Reason(code=code, detail=f"{detail}: it was not started yet.", remedy=remedy)
    run_id, state = newest[0]["dag_run_id"], newest[0]["state"]
    if state != "failed":
        remedy = "Ask again in a moment."
        return Reason(code=code, detail=f"{detail} yet: its DAG run {run_id} is {state}.", remedy=remedy)
    errors = " ".join(task_errors(api, dag_id, run_id))
    remedy = "Correct the job's file, then: frenzy submit FILE"
    return Reason(code=code, detail=f"{detail}: its DAG run {run_id} failed. {errors}", remedy=remedy)
