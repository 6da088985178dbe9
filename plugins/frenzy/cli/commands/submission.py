"""Submitting a job: its spec is stored, its DAG appears, a run of it starts."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from frenzy.adapters import airflow_calls as calls
from frenzy.adapters.airflow_calls import airflow_call
from frenzy.adapters.api_client import NotFoundError
from frenzy.adapters.spec.job_spec import job_from_yaml, shown_yaml
from frenzy.adapters.spec.spec_file import SpecFile
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.core.runs.protocol import JobDraft, SubmitJob, SubmittedJob
from frenzy.core.runs.views import DraftView
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode, SpecError, TemporaryError
from frenzy.core.values.job import TrainingJob

_DAG_TIMEOUT_S: Final = 120.0
SILENCE_S: Final = 5.0
_POLL_S: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A job that was submitted.

    run_id: None when no run was asked for, or none was started as no plan fits; refusal: why none does. model: what is
    trained, in one line; model_notes: what its user may not expect of it.
    """

    job: SubmittedJob
    run_id: str | None
    refusal: Reason | None = None
    model: str | None = None
    model_notes: tuple[str, ...] = ()


Tell = Callable[[str], None]


def submit_spec(
    api: Api,
    spec: SpecFile,
    *,
    trigger: bool,
    plans_first: bool = False,
    stored: Callable[[SubmittedJob], None] = lambda job: None,
    tell: Tell = lambda line: None,
) -> Started:
    """Store the spec and, with ``trigger``, start a run once the DAG of this very spec is there.

    plans_first: not where no plan fits by what is known now: that run would end at once. stored: called with the job at
    once. tell: given a line whenever the wait has been silent for some seconds. Raises SpecError for a refused spec,
    PermanentError when the DAG does not import or another submission replaced the spec, and TemporaryError when it does
    not appear in time.
    """
    job = api.ask(endpoints.submit(SubmitJob(yaml_text=spec.text)))
    stored(job)
    started = Started(job=job, run_id=None)
    draft = _draft(api, spec.text, tell) if plans_first else None
    if draft is not None:
        refusal = None if draft.num_fitting else draft.reason
        started = replace(started, refusal=refusal, model=draft.model, model_notes=draft.model_notes)
    if not trigger or started.refusal is not None:
        return started
    wait_for_dag(api, job.dag_id, spec.job, tell=tell)
    return replace(started, run_id=trigger_run(api, job.dag_id, {}))


def _draft(api: Api, text: str, tell: Tell) -> DraftView | None:
    """What would become of the job now; None where that shows only when the run is planned.

    Raises SpecError for a model's config that the run would refuse.
    """
    began_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(api.ask, endpoints.draft(JobDraft(yaml_text=text)))
        while not wait([asked], SILENCE_S).done:
            tell(f"The job's plans are being listed, for {time.monotonic() - began_s:.0f} s.")
    try:
        return asked.result()
    except SpecError:
        raise
    except FrenzyError:
        return None


def wait_for_dag(api: Api, dag_id: str, spec: TrainingJob, *, tell: Tell) -> None:
    """Until Airflow has parsed the DAG of this very spec, which stands in its documentation."""
    began_s = told_s = time.monotonic()
    shown = shown_yaml(spec)
    while not _is_parsed(api, dag_id, shown):
        now_s = time.monotonic()
        if job_from_yaml(api.ask(endpoints.job(spec.name))) != spec:
            raise _replaced(spec.name)
        if now_s - began_s > _DAG_TIMEOUT_S:
            raise _never_appeared(api, dag_id)
        if now_s - told_s >= SILENCE_S:
            told_s = now_s
            tell(f"Airflow is reading the job's DAG, for {now_s - began_s:.0f} s.")
        time.sleep(_POLL_S)


def trigger_run(api: Api, dag_id: str, conf: Mapping[str, Any]) -> str:
    """Start a run of ``dag_id`` now; its run id. Whose account on which machine asked for it is in the run's note."""
    run_id = f"manual__{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}+00:00_{secrets.token_hex(4)}"
    note = f"Started with the frenzy command by {_account()}."
    try:
        api.ask(calls.trigger(dag_id, run_id, conf, note))
    except PermanentError as error:
        # The call was repeated, and its first try had come through although its answer was lost.
        if not _is_there(api, dag_id, run_id):
            raise error
    return run_id


def _account() -> str:
    try:
        return f"{getpass.getuser()} on {socket.gethostname()}"
    except (OSError, KeyError):  # the user's number has no name, as it may be in a container
        return f"user {os.getuid()} on {socket.gethostname()}"


def _is_there(api: Api, dag_id: str, run_id: str) -> bool:
    try:
        api.ask(calls.dag_run(dag_id, run_id))
    except PermanentError:
        return False
    return True


def dag_run_state(api: Api, dag_id: str, run_id: str) -> str:
    """Airflow's state of a DAG run: queued, running, success or failed."""
    return str(api.ask(calls.dag_run(dag_id, run_id))["state"])


def _is_parsed(api: Api, dag_id: str, shown: str) -> bool:
    try:
        dag = api.ask(airflow_call("GET", f"/dags/{quote(dag_id, safe='')}/details"))
    except NotFoundError:
        return False
    return not dag.get("is_stale") and shown in (dag.get("doc_md") or "")


def _replaced(name: str) -> PermanentError:
    detail = f"Another submission has replaced the job {name!r} before Airflow read this one: no run of it was started."
    remedy = "Give this one a name of its own, or submit it again."
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))


def _never_appeared(api: Api, dag_id: str) -> Exception:
    errors = api.ask(airflow_call("GET", "/importErrors?limit=20")).get("import_errors", [])
    messages = "; ".join(f"{each['filename']}: {str(each['stack_trace']).strip().splitlines()[-1]}" for each in errors)
    if messages:
        return PermanentError(
            Reason(code=ReasonCode.API_REFUSED, detail=f"The DAG {dag_id} did not appear. Import errors: {messages}")
        )
    reason = Reason(
        code=ReasonCode.API_REFUSED,
        detail=f"The job is stored, but its DAG {dag_id} did not appear within {_DAG_TIMEOUT_S:.0f} s.",
        remedy="See that the DAG processor runs (frenzy up --status), then trigger the DAG in Airflow.",
    )
    return TemporaryError(reason, retry_after_s=5.0)
