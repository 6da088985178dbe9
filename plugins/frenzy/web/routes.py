"""All routes, in one table: method, path, what the caller must be allowed to do, handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from frenzy.web import cluster_routes as cluster
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
    Route("GET", "/pages/{name}", Need.READ, pages.get_page),
    Route("GET", "/static/{name}", Need.READ, pages.get_static),
    Route("POST", f"{API}/runs", Need.OPERATE, run.post_run),
    Route("GET", f"{API}/runs", Need.READ, run.get_runs),
    Route("GET", f"{API}/runs/by-dag/{{dag_id}}/{{run_id:path}}", Need.READ_DAG_RUN, run.get_runs_of_dag_run),
    Route("GET", _RUN, Need.READ, run.get_run),
    Route("POST", f"{_RUN}/enqueue", Need.OPERATE, run.post_enqueue),
    Route("GET", f"{_RUN}/place", Need.READ, run.get_place),
    Route("POST", f"{_ATTEMPT}/launching", Need.OPERATE, run.post_launching),
    Route("POST", f"{_ATTEMPT}/started", Need.OPERATE, run.post_started),
    Route("POST", f"{_ATTEMPT}/progress", Need.OPERATE, run.post_progress),
    Route("POST", f"{_ATTEMPT}/pressure", Need.OPERATE, run.post_pressure),
    Route("POST", f"{_ATTEMPT}/end", Need.OPERATE, run.post_end),
    Route("POST", f"{_RUN}/decide", Need.OPERATE, run.post_decide),
    Route("POST", f"{_RUN}/cancel", Need.OPERATE, run.post_cancel),
    Route("GET", f"{API}/ended", Need.READ, run.get_ended),
    Route("POST", f"{_RUN}/clean", Need.OPERATE, run.post_clean),
    Route("GET", f"{_RUN}/memory", Need.READ, run.get_memory),
    Route("GET", f"{_RUN}/explain", Need.READ, run.get_explain),
    Route("GET", f"{_RUN}/logs", Need.READ_LOGS, run.get_logs),
    Route("POST", f"{API}/jobs", Need.START, cluster.post_job),
    Route("GET", f"{API}/jobs", Need.READ, cluster.get_jobs),
    Route("GET", f"{API}/jobs/{{name}}", Need.READ, cluster.get_job),
    Route("DELETE", f"{API}/jobs/{{name}}", Need.START, cluster.delete_job),
    Route("POST", f"{API}/plan", Need.START, cluster.post_plan),
    Route("GET", f"{API}/queue", Need.READ, cluster.get_queue),
    Route("GET", f"{API}/queue/snapshot", Need.READ, cluster.get_queue_snapshot),
    Route("GET", f"{API}/gpus", Need.READ, cluster.get_gpus),
    Route("GET", f"{API}/reasons", Need.READ, cluster.get_reasons),
    Route("GET", f"{API}/sweep", Need.OPERATE, cluster.get_sweep),
    Route("POST", f"{API}/sweep", Need.OPERATE, cluster.post_sweep),
)
