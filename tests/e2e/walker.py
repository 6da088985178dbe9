"""Drives Frenzy as its users do: over HTTP, against a real Airflow with real workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import yaml
from tests.embedded_stack import Stack

from frenzy.core.runs.ledger import FINAL_STATES, JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import GpusView, QueueView
from frenzy.core.values.codec import decode

T = TypeVar("T")

# Shared machines are slow at times; a test that waits in vain fails with what it waited for.
PATIENCE_S = 480.0
RECONCILE = "frenzy_reconcile"
# DAG files that change are read at once. By default Airflow reads all others anew twice a minute, too: with the jobs of
# all tests, much. Still within a test's patience, for a file that was written while it was read.
READ_SELDOM = {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "180"}
_TRIES = 6


def _gpu_type(memory_mib: int, *, gflops: float = 4, price: float = 0.2) -> dict[str, Any]:
    return {"kind": "virtual", "memory": f"{memory_mib} MiB", "flops": f"{gflops} GFLOPS", "price_per_hour": price}


def _node(name: str, gpu_type: str, gpus: int = 1) -> dict[str, Any]:
    return {"name": name, "gpu_type": gpu_type, "gpus": gpus, "cpus": max(4, 2 * gpus), "host_memory": "4 GiB"}


CLUSTER: dict[str, Any] = {
    "gpu_types": {
        "t-small": _gpu_type(72, price=0.1),
        "t-medium": _gpu_type(128),
        "t-large": _gpu_type(256, price=0.4),
        # So slow that only a job that names it runs there.
        "t-slow": _gpu_type(160, gflops=0.8, price=0.3),
    },
    "nodes": [_node("a", "t-small", 4), _node("b", "t-medium"), _node("c", "t-large"), _node("d", "t-slow", 4)],
}
# Beside these, types of one GPU: a job that holds it cannot shrink. Slow ones: while a step waits for its GPU it leaves
# this machine's cores to others.
ELASTIC_CLUSTER: dict[str, Any] = {
    "gpu_types": {
        **CLUSTER["gpu_types"],
        "t-tight": _gpu_type(128, gflops=1),
        "t-roomy": _gpu_type(256, gflops=1.5, price=0.4),
        "t-single": _gpu_type(128, gflops=0.8),
        "t-twin": _gpu_type(128, gflops=0.8),
    },
    "nodes": [
        *CLUSTER["nodes"],
        _node("tight", "t-tight"),
        _node("roomy", "t-roomy"),
        _node("single", "t-single"),
        _node("twin-1", "t-twin"),
        _node("twin-2", "t-twin"),
    ],
}
MODEL = {
    "model_type": "gpt2",
    "vocab_size": 264,
    "n_positions": 64,
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 4,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 256,
    "eos_token_id": 256,
}


def write_cluster(folder: Path, cluster: Mapping[str, Any] = CLUSTER) -> Path:
    """The test cluster's file, or that of another."""
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(dict(cluster)), encoding="utf-8")
    return path


def write_corpus(folder: Path) -> Path:
    """A text of a few thousand lines that is no part of the examples."""
    path = folder / "corpus.txt"
    lines = (
        f"Line {number} says that {number} times {number % 7} is {number * (number % 7)}." for number in range(4000)
    )
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def job_text(name: str, corpus: Path, **sections: Mapping[str, Any] | str | int) -> str:
    """A small job; ``sections`` are merged over its sections."""
    document: dict[str, Any] = {
        "name": name,
        "model": {"config": MODEL, "tokenizer": "byte"},
        "data": {"path": str(corpus), "sequence_length": 64},
        "training": {"global_batch_size": 4, "max_steps": 6, "precision": "fp32", "learning_rate": 0.001, "seed": 7},
        "checkpoint": {"every_steps": 5, "keep": 2},
        "on_memory_pressure": {"min_run_s": 0},
        "evaluation": {"enabled": False},
    }
    for section, values in sections.items():
        before = document.get(section)
        document[section] = {**before, **values} if isinstance(before, dict) else values
    return yaml.safe_dump(document, sort_keys=False)


def on_slow_gpus(max_gpus: int | None = None) -> dict[str, Any]:
    """The type with four GPUs, so slow that steps are waited for: a run that only has to be there costs little."""
    return {"gpu_types": ["t-slow"], "max_gpus": max_gpus}


def long_training(steps: int = 5000) -> dict[str, Any]:
    """A training that will not end while the test looks."""
    return {"max_steps": steps}


class Walker:
    """One user of one stack."""

    def __init__(self, stack: Stack, corpus: Path) -> None:
        self.stack, self.corpus = stack, corpus
        self.http = httpx.Client(base_url=stack.base_url, headers=stack.headers("admin"), timeout=60.0, trust_env=False)

    @property
    def database(self) -> str:
        """The URL of Airflow's and the ledger's database."""
        return self.stack.environment()["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]

    # waiting

    def eventually(self, what: str, look: Callable[[], T | None], patience_s: float = PATIENCE_S) -> T:
        """The first true answer of ``look``; the API may be away for a while."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            try:
                found = look()
            except (httpx.TransportError, httpx.HTTPStatusError):
                found = None
            if found:
                return found
            time.sleep(0.3)
        raise AssertionError(f"not within {patience_s:.0f} s: {what}; runs: {self.summary()}")

    def summary(self) -> str:
        try:
            views = self._runs()
        except httpx.HTTPError as error:
            return repr(error)
        return "; ".join(
            f"{view.run.job.name} {view.run.state} {[(a.attempt, a.plan.plan_id, a.last_step) for a in view.attempts]} "
            f"{view.run.reason}"
            for view in views[:6]
        )

    # asking

    def airflow(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._ask(method, f"/api/v2{path}", body)
        return answer.json() if answer.content else None

    def _ask(self, method: str, path: str, body: Any) -> httpx.Response:
        """The answer; asked again after a 5xx.

        On SQLite Airflow's audit log can lose the race for the write lock. It does so before the
        call has any effect, so that asking again is safe.
        """
        for _ in range(_TRIES):
            answer = self.http.request(method, path, json=body)
            if not answer.is_server_error:
                break
            time.sleep(1.0)
        answer.raise_for_status()
        return answer

    def frenzy(self, method: str, path: str, kind: type[T], body: Any = None, *, user: str = "admin") -> T:
        headers = {} if user == "admin" else self.stack.headers(user)
        answer = self.http.request(method, f"/frenzy/api/v1{path}", json=body, headers=headers)
        answer.raise_for_status()
        return decode(kind, answer.json())

    def _runs(self) -> tuple[RunView, ...]:
        answer = self.http.get("/frenzy/api/v1/runs")
        answer.raise_for_status()
        return tuple(decode(RunView, each) for each in answer.json())

    def gpus(self) -> GpusView:
        return self.frenzy("GET", "/gpus", GpusView)

    def queue(self) -> QueueView:
        return self.frenzy("GET", "/queue", QueueView)

    def num_free(self) -> int:
        return sum(row.num_free for row in self.gpus().types)

    def num_gpus(self) -> int:
        return sum(row.num_gpus for row in self.gpus().types)

    def view(self, dag_id: str, run_id: str) -> RunView | None:
        """The training run of a DAG run with one training task group."""
        answer = self.http.get(f"/frenzy/api/v1/runs/by-dag/{dag_id}/{run_id}")
        answer.raise_for_status()
        found = answer.json()
        return decode(RunView, found[0]) if found else None

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.airflow("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return found

    def dag_run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.airflow("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    # doing

    def store(self, text: str) -> str:
        """Submit the spec; returns its DAG's id once Airflow shows that DAG."""
        (dag_id,) = self.store_all([text])
        return dag_id

    def store_all(self, texts: Iterable[str]) -> list[str]:
        """Submit each spec, then wait for all of their DAGs, whose ids it returns in that order."""
        answers = [self._ask("POST", "/frenzy/api/v1/jobs", {"yaml_text": text}) for text in texts]
        dag_ids = [str(answer.json()["dag_id"]) for answer in answers]
        for dag_id in dag_ids:
            self.eventually(
                f"{dag_id} visible", lambda path=f"/api/v2/dags/{dag_id}": self.http.get(path).status_code == 200
            )
        return dag_ids

    def trigger(self, dag_id: str) -> str:
        self.airflow("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        return str(self.airflow("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": {}})["dag_run_id"])

    def start(self, name: str, **sections: Mapping[str, Any] | str | int) -> tuple[str, str]:
        (run,) = self.start_all({name: sections})
        return run

    def start_all(self, jobs: Mapping[str, Mapping[str, Mapping[str, Any] | str | int]]) -> list[tuple[str, str]]:
        """Start each job, a name and its sections, once the DAGs of all are there: that takes most of the time."""
        dag_ids = self.store_all(job_text(name, self.corpus, **sections) for name, sections in jobs.items())
        return [(dag_id, self.trigger(dag_id)) for dag_id in dag_ids]

    def cancel(self, dag_id: str, run_id: str) -> None:
        """End the DAG run as a person does in the UI."""
        self.airflow("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", {"state": "failed"})

    @contextmanager
    def reconciliation_paused(self) -> Iterator[None]:
        """No reconciliation runs meanwhile: it ends every run whose DAG run Airflow does not know."""
        self.airflow("PATCH", f"/dags/{RECONCILE}", {"is_paused": True})
        try:
            self.eventually("the end of the running reconciliation", self._no_reconciliation)
            yield
        finally:
            self.airflow("PATCH", f"/dags/{RECONCILE}", {"is_paused": False})

    def _no_reconciliation(self) -> bool:
        found = self.airflow("GET", f"/dags/{RECONCILE}/dagRuns/~/taskInstances?state=queued&state=running")
        return int(found["total_entries"]) == 0

    def wait_for_state(self, dag_id: str, run_id: str, *states: JobState) -> RunView:
        def look() -> RunView | None:
            view = self.view(dag_id, run_id)
            return view if view is not None and view.run.state in states else None

        return self.eventually(f"{dag_id} {run_id} in {states}", look)

    def wait_for_step(self, dag_id: str, run_id: str, step: int, attempt: int = 1) -> RunView:
        def look() -> RunView | None:
            view = self.view(dag_id, run_id)
            reached = view is not None and any(a.attempt == attempt and a.last_step >= step for a in view.attempts)
            return view if reached else None

        return self.eventually(f"{dag_id} {run_id} attempt {attempt} at step {step}", look)

    def wait_for_end(self, dag_id: str, run_id: str) -> RunView:
        """The run in its final state, its DAG run ended too."""
        view = self.wait_for_state(dag_id, run_id, *FINAL_STATES)
        self.eventually(
            f"{dag_id} {run_id} ended in Airflow",
            lambda: self.dag_run_state(dag_id, run_id) in ("success", "failed"),
        )
        return view

    def succeed(self, dag_id: str, run_id: str) -> RunView:
        """The run, which must end well, with nothing left behind."""
        view = self.wait_for_end(dag_id, run_id)
        assert view.run.state is JobState.SUCCEEDED, self.summary()
        assert self.dag_run_state(dag_id, run_id) == "success"
        assert view.lease is None
        self.no_workers_of(view.run.run_key)
        return view

    def workers_of(self, run_key: str) -> list[psutil.Process]:
        """Live processes that carry the run's key in their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("FRENZY_RUN_KEY") == run_key and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def no_workers_of(self, run_key: str, patience_s: float = 20.0) -> None:
        self.eventually(f"no process of {run_key}", lambda: not self.workers_of(run_key), patience_s)
