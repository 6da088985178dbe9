"""Every call of the API as a function that makes its request; see the routes in ``frenzy.core.runs.protocol``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from frenzy.adapters.api_client import Call, airflow_call, frenzy_call
from frenzy.core.runs.protocol import (
    AttemptStarted,
    CancelRun,
    CleanedRun,
    CleanRun,
    Directive,
    EndedRun,
    EndReport,
    PlaceView,
    PlanPreview,
    PressureReport,
    ProgressReport,
    RegisterRun,
    RunView,
    SubmitJob,
    SubmittedJob,
    SweepReport,
    SweepSummary,
    SweepTarget,
    Verdict,
)
from frenzy.core.runs.views import Explanation, GpusView, MemoryView, QueueSnapshot, QueueView
from frenzy.core.values.errors import Reason


def register(message: RegisterRun) -> Call[RunView]:
    return frenzy_call("POST", "/runs", RunView, message)


def runs(limit: int = 50) -> Call[tuple[RunView, ...]]:
    return frenzy_call("GET", f"/runs?limit={limit}", tuple[RunView, ...])


def run_view(run_key: str) -> Call[RunView]:
    return frenzy_call("GET", _run(run_key), RunView)


def runs_of_dag_run(dag_id: str, run_id: str) -> Call[tuple[RunView, ...]]:
    return frenzy_call("GET", f"/runs/by-dag/{_part(dag_id)}/{_part(run_id)}", tuple[RunView, ...])


def enqueue(run_key: str) -> Call[PlaceView]:
    return frenzy_call("POST", f"{_run(run_key)}/enqueue", PlaceView)


def place(run_key: str) -> Call[PlaceView]:
    return frenzy_call("GET", f"{_run(run_key)}/place", PlaceView)


def launching(run_key: str, attempt: int) -> Call[Directive]:
    return frenzy_call("POST", f"{_attempt(run_key, attempt)}/launching", Directive)


def started(run_key: str, attempt: int, launcher_ref: str) -> Call[Directive]:
    message = AttemptStarted(launcher_ref=launcher_ref)
    return frenzy_call("POST", f"{_attempt(run_key, attempt)}/started", Directive, message)


def progress(run_key: str, attempt: int, message: ProgressReport) -> Call[Directive]:
    return frenzy_call("POST", f"{_attempt(run_key, attempt)}/progress", Directive, message)


def pressure(run_key: str, attempt: int, message: PressureReport) -> Call[Directive]:
    return frenzy_call("POST", f"{_attempt(run_key, attempt)}/pressure", Directive, message)


def end(run_key: str, attempt: int, message: EndReport) -> Call[RunView]:
    return frenzy_call("POST", f"{_attempt(run_key, attempt)}/end", RunView, message)


def decide(run_key: str) -> Call[Verdict]:
    return frenzy_call("POST", f"{_run(run_key)}/decide", Verdict)


def cancel(run_key: str, reason: Reason) -> Call[RunView]:
    return frenzy_call("POST", f"{_run(run_key)}/cancel", RunView, CancelRun(reason=reason))


def ended_runs(older_than_s: float) -> Call[tuple[EndedRun, ...]]:
    return frenzy_call("GET", f"/ended?older_than_s={older_than_s}", tuple[EndedRun, ...])


def clean_run(run_key: str, message: CleanRun) -> Call[CleanedRun]:
    return frenzy_call("POST", f"{_run(run_key)}/clean", CleanedRun, message)


def memory(run_key: str) -> Call[MemoryView]:
    return frenzy_call("GET", f"{_run(run_key)}/memory", MemoryView)


def explain(run_key: str) -> Call[Explanation]:
    return frenzy_call("GET", f"{_run(run_key)}/explain", Explanation)


def logs(run_key: str, *, attempt: int | None = None, rank: int = 0) -> Call[str]:
    newest = "" if attempt is None else f"&attempt={attempt}"
    path = frenzy_call("GET", f"{_run(run_key)}/logs?rank={rank}{newest}", str).path
    return Call(method="GET", path=path, raw=True)


def submit(message: SubmitJob) -> Call[SubmittedJob]:
    return frenzy_call("POST", "/jobs", SubmittedJob, message)


def plan(message: RegisterRun) -> Call[PlanPreview]:
    return frenzy_call("POST", "/plan", PlanPreview, message)


def queue() -> Call[QueueView]:
    return frenzy_call("GET", "/queue", QueueView)


def queue_snapshot() -> Call[QueueSnapshot]:
    return frenzy_call("GET", "/queue/snapshot", QueueSnapshot)


def gpus() -> Call[GpusView]:
    return frenzy_call("GET", "/gpus", GpusView)


def sweep_targets() -> Call[tuple[SweepTarget, ...]]:
    return frenzy_call("GET", "/sweep", tuple[SweepTarget, ...])


def sweep(message: SweepReport) -> Call[SweepSummary]:
    return frenzy_call("POST", "/sweep", SweepSummary, message)


def clear_tasks(dag_id: str, run_id: str, task_ids: Sequence[str], map_index: int = -1) -> Call[Any]:
    """Airflow: let these tasks of one DAG run, and no others, run again."""
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
    """Airflow: one task instance, with its state."""
    path = f"/dags/{_part(dag_id)}/dagRuns/{_part(run_id)}/taskInstances/{_part(task_id)}"
    return airflow_call("GET", path if map_index < 0 else f"{path}/{map_index}")


def _run(run_key: str) -> str:
    return f"/runs/{_part(run_key)}"


def _attempt(run_key: str, attempt: int) -> str:
    return f"{_run(run_key)}/attempts/{attempt}"


def _part(text: str) -> str:
    return quote(text, safe="")
