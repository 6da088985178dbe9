"""All routes, in one table: method, path, what the caller must be allowed to do, handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from frenzy.web import cluster_routes as cluster
from frenzy.web import openapi
from frenzy.web import page_routes as pages
from frenzy.web import run_routes as run
from frenzy.web.access import Need

API: Final = "/api/v1"
_RUN: Final = f"{API}/runs/{{run_key}}"
_ATTEMPT: Final = f"{_RUN}/attempts/{{attempt}}"


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    need: Need
    handler: Callable[..., Any]


ROUTES: Final = (
    Route("GET", "/pages/{name}", Need.VISIT, pages.get_page),
    Route("GET", "/static/{name}", Need.VISIT, pages.get_static),
    Route("GET", "/openapi.json", Need.VISIT, openapi.get_openapi),
    Route("POST", f"{API}/runs", Need.SERVICE, run.post_run),
    Route("GET", f"{API}/runs", Need.VISIT, run.get_runs),
    Route("GET", f"{API}/runs/by-dag/{{dag_id}}/{{run_id:path}}", Need.SEE_DAG_RUN, run.get_runs_of_dag_run),
    Route("GET", _RUN, Need.SEE_RUN, run.get_run),
    Route("POST", f"{_RUN}/enqueue", Need.SERVICE, run.post_enqueue),
    Route("GET", f"{_RUN}/place", Need.SERVICE, run.get_place),
    Route("POST", f"{_ATTEMPT}/launching", Need.SERVICE, run.post_launching),
    Route("POST", f"{_ATTEMPT}/started", Need.SERVICE, run.post_started),
    Route("POST", f"{_ATTEMPT}/progress", Need.SERVICE, run.post_progress),
    Route("POST", f"{_ATTEMPT}/pressure", Need.SERVICE, run.post_pressure),
    Route("POST", f"{_ATTEMPT}/end", Need.SERVICE, run.post_end),
    Route("POST", f"{_RUN}/decide", Need.SERVICE, run.post_decide),
    Route("POST", f"{_RUN}/cancel", Need.MANAGE_RUN, run.post_cancel),
    Route("GET", f"{API}/ended", Need.VISIT, run.get_ended),
    Route("POST", f"{_RUN}/clean", Need.MANAGE_RUN, run.post_clean),
    Route("GET", f"{_RUN}/memory", Need.SEE_RUN, run.get_memory),
    Route("GET", f"{_RUN}/explain", Need.SEE_RUN, run.get_explain),
    Route("GET", f"{_RUN}/logs", Need.SEE_LOGS, run.get_logs),
    Route("POST", f"{API}/jobs", Need.START, cluster.post_job),
    Route("GET", f"{API}/jobs", Need.VISIT, cluster.get_jobs),
    Route("GET", f"{API}/jobs/{{name}}", Need.MANAGE_JOB, cluster.get_job),
    Route("DELETE", f"{API}/jobs/{{name}}", Need.MANAGE_JOB, cluster.delete_job),
    Route("POST", f"{API}/plan", Need.START, cluster.post_plan),
    Route("GET", f"{API}/queue", Need.VISIT, cluster.get_queue),
    Route("GET", f"{API}/queue/snapshot", Need.ADMIN, cluster.get_queue_snapshot),
    Route("GET", f"{API}/gpus", Need.VISIT, cluster.get_gpus),
    Route("GET", f"{API}/reasons", Need.VISIT, cluster.get_reasons),
    Route("GET", f"{API}/sweep", Need.SERVICE, cluster.get_sweep),
    Route("POST", f"{API}/sweep", Need.SERVICE, cluster.post_sweep),
)
