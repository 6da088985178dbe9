"""Submitting a job: its spec is stored, its DAG appears, a run of it starts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from frenzy.adapters.airflow_calls import airflow_call
from frenzy.adapters.api_client import NotFoundError
from frenzy.adapters.spec.job_spec import shown_yaml
from frenzy.adapters.spec.spec_file import SpecFile
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.core.runs.protocol import SubmitJob, SubmittedJob
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, TemporaryError
from frenzy.core.values.job import TrainingJob

DAG_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A job that was submitted; ``run_id`` is None when no run was asked for."""

    job: SubmittedJob
    run_id: str | None


def submit_spec(
    api: Api, spec: SpecFile, *, trigger: bool, conf: Mapping[str, Any] | None = None, timeout_s: float = DAG_TIMEOUT_S
) -> Started:
    """Store the spec and, with ``trigger``, start a run once the DAG of this very spec is there.

    Raises SpecError for a refused spec, PermanentError when the DAG does not import, and
    TemporaryError when it does not appear in time.
    """
    job = api.ask(endpoints.submit(SubmitJob(yaml_text=spec.text)))
    if not trigger:
        return Started(job=job, run_id=None)
    wait_for_dag(api, job.dag_id, spec.job, timeout_s=timeout_s)
    return Started(job=job, run_id=trigger_run(api, job.dag_id, conf or {}))


def wait_for_dag(api: Api, dag_id: str, spec: TrainingJob, *, timeout_s: float) -> None:
    """Until Airflow has parsed the DAG of this very spec, which stands in its documentation."""
    deadline = time.monotonic() + timeout_s
    shown = shown_yaml(spec)
    while not _is_parsed(api, dag_id, shown):
        if time.monotonic() > deadline:
            raise _never_appeared(api, dag_id, timeout_s)
        time.sleep(_POLL_S)


def trigger_run(api: Api, dag_id: str, conf: Mapping[str, Any]) -> str:
    """Start a run of ``dag_id`` now; its run id."""
    body = {"logical_date": None, "conf": dict(conf)}
    return str(api.ask(airflow_call("POST", f"/dags/{quote(dag_id, safe='')}/dagRuns", body))["dag_run_id"])


def dag_run_state(api: Api, dag_id: str, run_id: str) -> str:
    """Airflow's state of a DAG run: queued, running, success or failed."""
    path = f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
    return str(api.ask(airflow_call("GET", path))["state"])


def _is_parsed(api: Api, dag_id: str, shown: str) -> bool:
    try:
        dag = api.ask(airflow_call("GET", f"/dags/{quote(dag_id, safe='')}/details"))
    except NotFoundError:
        return False
    return not dag.get("is_stale") and shown in (dag.get("doc_md") or "")


def _never_appeared(api: Api, dag_id: str, timeout_s: float) -> Exception:
    errors = api.ask(airflow_call("GET", "/importErrors?limit=20")).get("import_errors", [])
    messages = "; ".join(f"{each['filename']}: {str(each['stack_trace']).strip().splitlines()[-1]}" for each in errors)
    if messages:
        return PermanentError(
            Reason(code=ReasonCode.API_REFUSED, detail=f"The DAG {dag_id} did not appear. Import errors: {messages}")
        )
    reason = Reason(
        code=ReasonCode.API_REFUSED,
        detail=f"The job is stored, but its DAG {dag_id} did not appear within {timeout_s:.0f} s.",
        remedy="See that the DAG processor runs (frenzy up --status), then trigger the DAG in Airflow.",
    )
    return TemporaryError(reason, retry_after_s=5.0)
