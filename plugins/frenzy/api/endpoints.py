"""The table: a row for each endpoint, with method, path, right, a sentence for OpenAPI, bounds, message and reply.

To add one, declare it here and name the use case that answers it in ``frenzy.web.handlers``. The server tries them in
this order.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from typing import Annotated, Any, Final

from annotated_types import Ge, Le

from frenzy.api.declaration import EVERY_LEASE, SPECIFICATION, Endpoint, Need, endpoint
from frenzy.core.runs.protocol import (
    AttemptStarted,
    CancelRun,
    CleanedRun,
    CleanRun,
    Directive,
    EndedRun,
    EndReport,
    JobDraft,
    PlaceView,
    PlanPreview,
    PreparedReport,
    PreparingDirective,
    PreparingReport,
    PressureReport,
    ProgressReport,
    ReconcileReport,
    ReconcileSummary,
    ReconcileTarget,
    RegisterRun,
    RunView,
    SubmitJob,
    SubmittedJob,
    Verdict,
    WhatIf,
)
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.runs.usage import UsageBy, UsageHistory, UsageView
from frenzy.core.runs.views import (
    DraftView,
    Explanation,
    FinishedModel,
    GpusView,
    LogLines,
    MemoryView,
    ModelFile,
    Preset,
    QueueSnapshot,
    QueueView,
    SavedCheckpoint,
    WhatIfView,
)
from frenzy.core.values.errors import ReasonCode

API: Final = "/api/v1"
_Moment = Annotated[float, Ge(0), Le(1e12)]
_RUN: Final = f"{API}/runs/{{run_key}}"
_ATTEMPT: Final = f"{_RUN}/attempts/{{attempt}}"


# The pages, and what describes all this.
@endpoint("GET", "/pages/{name}", Need.VISIT, "A page inside Airflow's own; it holds no data.")
def page(name: str) -> bytes: ...
@endpoint("GET", "/static/{name}", Need.VISIT, "A script, style or picture of the pages.")
def static(name: str) -> bytes: ...
@endpoint("GET", "/manual/{name}", Need.VISIT, "A page of the documentation, such as the runbook.")
def manual(name: str) -> bytes: ...
@endpoint("GET", "/openapi.json", Need.VISIT, "This API's OpenAPI document.")
def openapi() -> dict[str, Any]: ...


# A run, from its registration to its end.
@endpoint("POST", f"{API}/runs", Need.SERVICE, "Freeze a run's specification and plan it. Repeatable.", SPECIFICATION)
def register(request: RegisterRun) -> RunView: ...
@endpoint("POST", f"{_RUN}/preparing", Need.SERVICE, "The data are being prepared: how far, and whether to go on.")
def preparing(run_key: str, report: PreparingReport) -> PreparingDirective: ...
@endpoint("POST", f"{_RUN}/prepared", Need.SERVICE, "The data are prepared, or cannot be. The first account stands.")
def prepared(run_key: str, report: PreparedReport) -> RunView: ...
@endpoint("POST", f"{_RUN}/enqueue", Need.SERVICE, "Put the run into the queue for its next attempt. Repeatable.")
def enqueue(run_key: str) -> PlaceView: ...
@endpoint("GET", f"{_RUN}/place", Need.SERVICE, "Where the run stands in the queue, or where it was placed.")
def place(run_key: str) -> PlaceView: ...
@endpoint("POST", f"{_ATTEMPT}/launching", Need.SERVICE, "The launch task is about to start the workers.")
def launching(run_key: str, attempt: int) -> Directive: ...
@endpoint("POST", f"{_ATTEMPT}/started", Need.SERVICE, "The workers were started.")
def started(run_key: str, attempt: int, message: AttemptStarted) -> Directive: ...
@endpoint("POST", f"{_ATTEMPT}/progress", Need.SERVICE, "How far the attempt is; renews its lease.")
def progress(run_key: str, attempt: int, message: ProgressReport) -> Directive: ...
@endpoint("POST", f"{_ATTEMPT}/pressure", Need.SERVICE, "The monitor wants the run moved: whether the ledger agrees.")
def pressure(run_key: str, attempt: int, message: PressureReport) -> Directive: ...
@endpoint("POST", f"{_ATTEMPT}/end", Need.SERVICE, "The workers are proved gone. The first account stands.")
def end(run_key: str, attempt: int, report: EndReport) -> RunView: ...
@endpoint("POST", f"{_RUN}/decide", Need.SERVICE, "What follows after an attempt. Repeatable.")
def decide(run_key: str) -> Verdict: ...
@endpoint("POST", f"{_RUN}/cancel", Need.MANAGE_RUN, "Take the run out of the queue, or stop its workers.")
def cancel(run_key: str, message: CancelRun) -> RunView: ...
@endpoint("POST", f"{_RUN}/clean", Need.MANAGE_RUN, "Remove the files of a run that ended long ago.")
def clean_run(run_key: str, message: CleanRun) -> CleanedRun: ...


# What is known of runs.
@endpoint("GET", f"{API}/runs", Need.VISIT, "The newest runs, at most 1000, without events, plans and model configs.")
def runs(limit: int = 50) -> tuple[RunView, ...]: ...
@endpoint("GET", f"{API}/runs/by-dag/{{dag_id}}/{{run_id:path}}", Need.SEE_DAG_RUN, "Of a DAG run, oldest first.")
def runs_of_dag_run(dag_id: str, run_id: str) -> tuple[RunView, ...]: ...
@endpoint("GET", _RUN, Need.SEE_RUN, "All of one run; its specification for owner, team and administrators.")
def run_view(run_key: str) -> RunView: ...
@endpoint("GET", f"{_RUN}/memory", Need.SEE_RUN, "The memory curves of the run's attempts.")
def memory(run_key: str) -> MemoryView: ...
@endpoint("GET", f"{_RUN}/explain", Need.SEE_RUN, "Why the run is where it is, in sentences.")
def explain(run_key: str) -> Explanation: ...
@endpoint("POST", f"{_RUN}/what-if", Need.MANAGE_RUN, "What the run's job would get with other values.")
def what_if(run_key: str, message: WhatIf) -> WhatIfView: ...
@endpoint("GET", f"{_RUN}/logs", Need.SEE_LOGS, "The end of one rank's log; of the newest attempt when none is named.")
def logs(run_key: str, attempt: int | None = None, rank: Annotated[int, Ge(0), Le(1_000_000)] = 0) -> str: ...
@endpoint("GET", f"{_RUN}/logs/part", Need.SEE_LOGS, "One rank's log from an offset on; its end when none is given.")
def log_part(
    run_key: str,
    attempt: int | None = None,
    rank: Annotated[int, Ge(0), Le(1_000_000)] = 0,
    offset: Annotated[int, Ge(0), Le(2**62)] | None = None,
) -> LogLines: ...
@endpoint("GET", f"{_RUN}/checkpoints", Need.SEE_RUN, "The run's complete checkpoints, oldest first.")
def checkpoints(run_key: str) -> tuple[SavedCheckpoint, ...]: ...
@endpoint("GET", f"{_RUN}/trackers", Need.SEE_RUN, "Where trackers show the run's curves, and how far they are.")
def trackers(run_key: str) -> tuple[TrackedRun, ...]: ...
@endpoint("GET", f"{API}/models", Need.VISIT, "Models of the newest runs that succeeded, or of one; at most 100.")
def models(limit: int = 50, run_key: str | None = None) -> tuple[FinishedModel, ...]: ...
@endpoint("GET", f"{_RUN}/model", Need.TAKE_MODEL, "The files of the run's finished model, by name.")
def model_files(run_key: str) -> tuple[ModelFile, ...]: ...
@endpoint("GET", f"{_RUN}/model/{{name:path}}", Need.TAKE_MODEL, "One of them, whole or a range of its bytes.")
def model_file(run_key: str, name: str) -> bytes: ...
@endpoint("GET", f"{API}/ended", Need.VISIT, "Runs that ended so long ago and that the caller may clean, oldest first.")
def ended_runs(older_than_s: Annotated[float, Ge(0)] = 0.0) -> tuple[EndedRun, ...]: ...


# Stored jobs, and plans before there is a run.
@endpoint("POST", f"{API}/jobs", Need.START, "Store a specification; its DAG appears when it is parsed.", SPECIFICATION)
def submit(message: SubmitJob) -> SubmittedJob: ...
@endpoint("GET", f"{API}/jobs", Need.VISIT, "The names of the stored jobs that the caller may see.")
def jobs() -> tuple[str, ...]: ...
@endpoint("GET", f"{API}/jobs/{{name}}", Need.MANAGE_JOB, "The stored specification, as YAML.")
def job(name: str) -> str: ...
@endpoint("DELETE", f"{API}/jobs/{{name}}", Need.MANAGE_JOB, "Remove it; its DAG goes with the next parse.")
def remove_job(name: str) -> None: ...
@endpoint("POST", f"{API}/plan", Need.START, "The plans that a run would get now; nothing is stored.", SPECIFICATION)
def plan(request: RegisterRun) -> PlanPreview: ...
@endpoint("POST", f"{API}/draft", Need.START, "What a job would get if it were submitted now.", SPECIFICATION)
def draft(message: JobDraft) -> DraftView: ...
@endpoint("GET", f"{API}/presets", Need.VISIT, "Specifications to begin with.")
def presets() -> tuple[Preset, ...]: ...


# The cluster, and what looks after it.
@endpoint("GET", f"{API}/queue", Need.VISIT, "Who waits and why, who runs where.")
def queue() -> QueueView: ...
@endpoint("GET", f"{API}/queue/snapshot", Need.ADMIN, "All that a scheduling pass would decide on now.")
def queue_snapshot() -> QueueSnapshot: ...
@endpoint("GET", f"{API}/gpus", Need.VISIT, "Capacity and what is free, by type and by node.")
def gpus() -> GpusView: ...
@endpoint("GET", "/metrics", Need.VISIT, "Queue, GPUs, memory and ends of attempts, as Prometheus reads them.")
def metrics() -> str: ...
@endpoint("GET", f"{API}/usage", Need.VISIT, "GPU-hours and cost since a moment, by team, owner, job, type or day.")
def usage(since_s: _Moment, until_s: _Moment | None = None, by: UsageBy = UsageBy.TEAM) -> UsageView: ...
@endpoint("GET", f"{API}/usage/history", Need.VISIT, "The same in equal parts of that time.")
def usage_history(
    since_s: _Moment,
    until_s: _Moment | None = None,
    by: UsageBy = UsageBy.TEAM,
    num_parts: Annotated[int, Ge(1), Le(200)] = 24,
) -> UsageHistory: ...
@endpoint("GET", f"{API}/reasons", Need.VISIT, "The general sentence of every reason code.")
def reasons() -> dict[ReasonCode, str]: ...
@endpoint("GET", f"{API}/reconcile", Need.SERVICE, "The held leases whose workers should be looked at.")
def reconcile_targets() -> tuple[ReconcileTarget, ...]: ...
@endpoint("POST", f"{API}/reconcile", Need.SERVICE, "What was found of them; the ledger reconciles.", EVERY_LEASE)
def reconcile(report: ReconcileReport) -> ReconcileSummary: ...


ENDPOINTS: Final[tuple[Endpoint[..., Any], ...]] = tuple(
    each for each in tuple(globals().values()) if isinstance(each, Endpoint)
)
