"""The command against a real server: this project's routes over in-memory ports, and a little of Airflow's."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, HTTPException
from tests.in_memory.sources import FixedQueues
from tests.unit.installation import in_memory_services
from tests.unit.web.conftest import PEOPLE, registration

from frenzy.adapters.spec.job_spec import job_from_yaml, shown_yaml
from frenzy.app.register import register_run
from frenzy.app.services import Services
from frenzy.cli.main import run
from frenzy.core.runs.protocol import RunView
from frenzy.web.application import create_app
from frenzy.wiring import SystemClock

SPEC = """# a small job
name: words
model:
  config: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 2, vocab_size: 264, n_positions: 64}
data:
  path: words.txt   # beside this file
  sequence_length: 32
training: {max_steps: 10, global_batch_size: 4}
"""
CLUSTER = """
gpu_types:
  tiny: {kind: virtual, memory: 8 MiB, flops: 10 GFLOPS, price_per_hour: 0.1}
  small: {kind: virtual, memory: 512 MiB, flops: 10 GFLOPS, price_per_hour: 0.1}
nodes:
  - {name: one, gpu_type: tiny, gpus: 1, cpus: 4, host_memory: 4 GiB}
  - {name: two, gpu_type: small, gpus: 2, cpus: 4, host_memory: 4 GiB}
"""


@dataclass
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str


@dataclass
class FakeAirflow:
    """The few routes of Airflow's that the command calls; a stored job's DAG appears after some looks."""

    services: Services
    looks_until_parsed: int = 2
    triggered: list[tuple[str, Any]] = field(default_factory=list)
    state: str = "success"
    error: str | None = None
    cleared: list[tuple[str, Any]] = field(default_factory=list)
    conf: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None
    evaluating: str | None = None
    closed: str = ""
    schedules: dict[str, str] = field(default_factory=dict)
    stored_meanwhile: str | None = None

    def routes(self) -> FastAPI:
        app = FastAPI()
        app.post("/auth/token", status_code=201)(lambda: {"access_token": "x.y.z"})
        app.get("/api/v2/dags")(self.dags)
        app.get("/api/v2/dags/{dag_id}/details")(self.details)
        app.post("/api/v2/dags/{dag_id}/dagRuns")(self.trigger)
        app.get("/api/v2/dags/job_{name}/dagRuns")(self.newest)
        run = "/api/v2/dags/{dag_id}/dagRuns/{run_id}"
        app.get(run)(lambda: {"state": self.state, "conf": self.conf})
        app.get(f"{run}/taskInstances")(self.tasks)
        app.get(f"{run}/taskInstances/evaluate/xcomEntries/return_value")(lambda: {"value": self.evaluation})
        app.post("/api/v2/dags/{dag_id}/clearTaskInstances")(self.clear)
        app.get(f"{run}/taskInstances/train.profile/logs/2")(self.log)
        app.get("/api/v2/importErrors")(lambda: {"import_errors": []})
        return app

    def dags(self, offset: int) -> dict[str, Any]:
        """Two to a page."""
        if self.closed == "~":
            raise HTTPException(403, "Forbidden")
        known = sorted(self.schedules.items())
        page = [{"dag_id": each, "timetable_summary": cron, "is_paused": "nightly" in each} for each, cron in known]
        return {"dags": page[offset : offset + 2], "total_entries": len(page)}

    def details(self, dag_id: str) -> dict[str, Any]:
        if dag_id == self.closed:
            raise HTTPException(403, "Forbidden")
        if self.stored_meanwhile is not None:
            self.services.jobs.put(dag_id.removeprefix("job_"), self.stored_meanwhile)
        text = self.services.jobs.get(dag_id.removeprefix("job_"))
        self.looks_until_parsed -= 1
        if text is None or self.looks_until_parsed > 0:
            raise HTTPException(404, f"The Dag with ID: `{dag_id}` was not found")
        return {"is_stale": False, "doc_md": f"```yaml\n{shown_yaml(job_from_yaml(text))}\n```"}

    def trigger(self, dag_id: str, body: dict[str, Any]) -> dict[str, Any]:
        self.triggered.append((dag_id, body))
        return {"dag_run_id": body["dag_run_id"]}

    def newest(self, name: str) -> dict[str, Any]:
        runs = [body["dag_run_id"] for known, body in self.triggered if known == f"job_{name}"]
        return {"dag_runs": [{"dag_run_id": each, "state": self.state} for each in runs[-1:]]}

    def clear(self, dag_id: str, body: dict[str, Any]) -> dict[str, Any]:
        self.cleared.append((dag_id, body))
        return {"task_instances": []}

    def tasks(self, state: str | None = None) -> dict[str, Any]:
        profile = {"task_id": "train.profile", "try_number": 2, "map_index": -1, "state": "failed", "operator": "P"}
        decide = {**profile, "task_id": "train.decide"}
        how = self.evaluating or "success"
        evaluate = {"task_id": "evaluate", "map_index": -1, "state": how, "operator": "EvaluateOperator"}
        known = [profile, decide, *([evaluate] if self.evaluation is not None or self.evaluating else [])]
        return {"task_instances": [each for each in known if state in (None, each["state"])]}

    def log(self) -> dict[str, Any]:
        if self.error is None:
            raise HTTPException(403, "Forbidden")
        detail = [{"exc_type": "AirflowFailException", "exc_value": self.error}, {"exc_value": "its cause"}]
        lines = [{"event": "started"}, {"event": "Task failed", "error_detail": detail}, {"event": "ended"}]
        return {"content": lines, "continuation_token": None}


@dataclass(frozen=True)
class World:
    """A server with its services, and what was asked of Airflow."""

    url: str
    services: Services
    airflow: FakeAirflow
    queues: FixedQueues

    def registered(self, name: str = "job", **options: Any) -> RunView:
        return register_run(self.services, registration(name, **options))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    queues = FixedQueues()
    services = in_memory_services(clock=SystemClock(), queues=queues)
    airflow = FakeAirflow(services)
    app = airflow.routes()
    app.mount("/frenzy", create_app(lambda: services, lambda: PEOPLE["op"]))
    with served(app) as url:
        yield World(url=url, services=services, airflow=airflow, queues=queues)


class served:
    """``app`` on a free port, in a thread, as a context."""

    def __init__(self, app: FastAPI) -> None:
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home in which nothing was ever started, and no server named; the working folder is its parent."""
    for name in ("FRENZY_URL", "FRENZY_USER", "FRENZY_PASSWORD", "FRENZY_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FRENZY_HOME", str(tmp_path / "home"))
    # Sentences are looked for as they are, not as the terminal that the tests run in would fold them.
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def frenzy(alone: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs the command with no server in reach."""

    def call(*arguments: str) -> Said:
        capsys.readouterr()
        status = run(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Said(status, captured.out, captured.err)

    return call


@pytest.fixture
def online(frenzy: Callable[..., Said], world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs the command against the server of ``world``."""
    for name, value in (("URL", world.url), ("USER", "frenzy"), ("PASSWORD", "secret")):
        monkeypatch.setenv(f"FRENZY_{name}", value)
    return frenzy


@pytest.fixture
def spec(alone: Path) -> Path:
    """A job's file with its data beside it."""
    (alone / "jobs").mkdir()
    (alone / "jobs/words.txt").write_text("to be or not to be\n" * 200, encoding="utf-8")
    path = alone / "jobs/words.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


@pytest.fixture
def cluster_file(alone: Path) -> Path:
    path = alone / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path
