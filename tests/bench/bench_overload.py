"""Airflow on SQLite under more load than two cores carry: does every part live, and does every caller get an answer.

200 jobs wait in the ledger's queue, twelve tasks talk to Airflow at every moment, thirteen clients poll what the pages
show, one of them also triggers DAG runs, and trainings come, run and end. The waiting jobs' DAG is paused: their DAG
runs stand still in Airflow, so that the load does not fade while they come to their place in the queue.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from tests.bench.report import figure, publish
from tests.e2e.walker import MODEL, Walker, job_text, write_cluster, write_corpus
from tests.embedded_stack import Stack

from frenzy.cli.embedded.airflow_env import SERVICE_USER
from frenzy.cli.embedded.stack import COMPONENTS
from frenzy.core.runs.ledger import DataFacts, JobState, RunIdentity
from frenzy.core.runs.protocol import PlaceView, RegisterRun, RunView
from frenzy.core.values.codec import encode
from frenzy.core.values.job import ConstraintsSpec, DataSpec, ModelSpec, TrainingJob, TrainingSpec

LOAD_S: Final = float(os.environ.get("OVERLOAD_S", "180"))
NUM_WAITING: Final = 200
NUM_CLIENTS: Final = 13
NUM_TASKS: Final = 12
NUM_TRAININGS: Final = 3
SLOWEST_GOAL_S: Final = 10.0
_AT_ONCE: Final = 4  # what a page asks for as it is opened
_PAUSE_S: Final = 0.5
_TRIGGER_EVERY_S: Final = 10.0
_TIMEOUT_S: Final = 120.0
_WAITING_DAG: Final = "overload_waiting"
_BUSY_DAG: Final = "overload_busy"
_DAGS: Final = f'''"""A DAG whose runs wait, and one whose tasks talk to Airflow without a pause."""

from airflow.sdk import DAG, task

with DAG("{_WAITING_DAG}", schedule=None, is_paused_upon_creation=True, max_active_runs=1):

    @task
    def never():
        pass

    never()

with DAG("{_BUSY_DAG}", schedule=None):

    @task
    def talk(number, ti=None):
        import time

        until = time.monotonic() + {LOAD_S:g}
        while time.monotonic() < until:
            ti.xcom_push(key="said", value=time.time())
            ti.xcom_pull(task_ids="talk", key="said", map_indexes=number)
            time.sleep(1)

    talk.expand(number=list(range({NUM_TASKS})))

with DAG("overload_short", schedule=None):

    @task
    def at_once():
        pass

    at_once()
'''
# What a person with the pages open, and the command line, ask for.
_PATHS: Final = (
    "/frenzy/api/v1/runs?limit=200",
    "/frenzy/api/v1/queue",
    "/frenzy/api/v1/gpus",
    "/api/v2/dags?limit=50",
    "/api/v2/dags/~/dagRuns?limit=50",
    "/api/v2/dags/~/dagRuns/~/taskInstances?limit=50",
    f"/api/v2/dags/{_BUSY_DAG}/dagRuns",
    "/ui/dags?dag_runs_limit=14",
    "/ui/dashboard/dag_stats",
    "/api/v2/monitor/health",
    "/api/v2/eventLogs?limit=50",
)


@dataclass(slots=True)
class Seen:
    """Every reply's status (0: none came) and seconds."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    faults: Counter[str] = field(default_factory=Counter)

    def note(self, path: str, status: int, took_s: float) -> None:
        self.statuses[status] += 1
        self.seconds.append(took_s)
        self.slowest = max(self.slowest, (took_s, path))
        if status == 0 or status >= 500:
            self.faults[f"{status} {path}"] += 1


def main() -> list[dict[str, Any]]:
    """Start an Airflow on SQLite, load it, look what is left of it."""
    with tempfile.TemporaryDirectory(prefix="frenzy-overload-") as folder:
        root = Path(folder)
        with Stack.running(root / "home", env={"FRENZY_CLUSTER": str(write_cluster(root))}) as stack:
            return publish("overload", _under_load(stack, Walker(stack, write_corpus(root))))


def _under_load(stack: Stack, walker: Walker) -> list[dict[str, Any]]:
    (stack.settings.jobs_folder / "overload.py").write_text(_DAGS, encoding="utf-8")
    for dag_id in (_WAITING_DAG, _BUSY_DAG, "overload_short"):
        walker.eventually(dag_id, lambda dag_id=dag_id: walker.http.get(f"/api/v2/dags/{dag_id}").is_success)
    waiting = [_waiting_run(walker, number) for number in range(NUM_WAITING)]
    names = [walker.store(job_text(f"overload-{n}", walker.corpus)) for n in range(NUM_TRAININGS)]
    pids = {each.name: each.pid for each in stack.status()}
    busy = walker.trigger(_BUSY_DAG)
    trainings = [(dag_id, walker.trigger(dag_id)) for dag_id in names]
    print(f"{NUM_WAITING} jobs wait; load for {LOAD_S:.0f} s", flush=True)
    seen = asyncio.run(_poll(stack.base_url, stack.headers("admin"), time.monotonic() + LOAD_S))
    changed = [each.name for each in stack.status() if each.pid is None or each.pid != pids[each.name]]
    lost = _lost(walker, waiting, trainings)
    walker.eventually("the twelve tasks' end", lambda: walker.dag_run_state(_BUSY_DAG, busy) in ("success", "failed"))
    ended_badly = int(walker.dag_run_state(_BUSY_DAG, busy) != "success")
    print(f"slowest: {seen.slowest}; components: {changed or 'none'} died; faults: {dict(seen.faults)}")
    print(f"lines in the logs: {_told(stack)}")
    return _figures(seen, len(changed), lost, ended_badly)


def _waiting_run(walker: Walker, number: int) -> str:
    """A job in the queue for the type of GPU that the trainings leave alone; the first four hold all there are."""
    run_id = str(walker.airflow("POST", f"/dags/{_WAITING_DAG}/dagRuns", {"logical_date": None})["dag_run_id"])
    job = TrainingJob(
        name=f"waiting-{number}",
        model=ModelSpec(config=MODEL),
        data=DataSpec(path=str(walker.corpus), sequence_length=64),
        training=TrainingSpec(max_steps=100_000, global_batch_size=4),
        constraints=ConstraintsSpec(gpu_types=("t-slow",), max_gpus=1),
    )
    config = {**MODEL, "n_inner": None, "tie_word_embeddings": True, "activation_function": "gelu_new"}
    identity = RunIdentity(dag_id=_WAITING_DAG, run_id=run_id, task_group="train")
    request = RegisterRun(identity=identity, job=job, model_config=config, data_facts=DataFacts(num_tokens=100_000))
    view = walker.frenzy("POST", "/runs", RunView, encode(request), user=SERVICE_USER)
    walker.frenzy("POST", f"/runs/{view.run.run_key}/enqueue", PlaceView, user=SERVICE_USER)
    return view.run.run_key


async def _poll(base_url: str, headers: dict[str, str], until_s: float) -> Seen:
    seen = Seen()
    limits = httpx.Limits(max_connections=2 * _AT_ONCE * NUM_CLIENTS)
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=_TIMEOUT_S, trust_env=False, limits=limits
    ) as client:
        await asyncio.gather(*(_client(client, seen, number, until_s) for number in range(NUM_CLIENTS)))
    return seen


async def _client(client: httpx.AsyncClient, seen: Seen, number: int, until_s: float) -> None:
    turn, next_trigger_s = number, time.monotonic()
    while time.monotonic() < until_s:
        paths = [_PATHS[(turn + each) % len(_PATHS)] for each in range(_AT_ONCE)]
        await asyncio.gather(*(_ask(client, seen, "GET", path) for path in paths))
        turn += _AT_ONCE
        if number == 0 and time.monotonic() > next_trigger_s:
            next_trigger_s = time.monotonic() + _TRIGGER_EVERY_S
            await _ask(client, seen, "POST", "/api/v2/dags/overload_short/dagRuns", {"logical_date": None})
        await asyncio.sleep(_PAUSE_S)


async def _ask(client: httpx.AsyncClient, seen: Seen, method: str, path: str, body: Any = None) -> None:
    began = time.monotonic()
    try:
        status = (await client.request(method, path, json=body)).status_code
    except httpx.HTTPError:
        status = 0
    seen.note(f"{method} {path}", status, time.monotonic() - began)


def _lost(walker: Walker, waiting: list[str], trainings: list[tuple[str, str]]) -> int:
    """Jobs that neither wait any more nor ended well."""
    queued = {row.run_key for row in walker.queue().waiting} | {row.run_key for row in walker.queue().running}
    lost = [run_key for run_key in waiting if run_key not in queued]
    ended = [walker.wait_for_end(*run).run for run in trainings]
    lost += [run.run_key for run in ended if run.state is not JobState.SUCCEEDED]
    if lost:
        print("lost:", *lost, *(f"{run.job.name} {run.state} {run.reason}" for run in ended))
    return len(lost)


def _told(stack: Stack) -> dict[str, int]:
    """How often the components' logs speak of a lock or a connection that could not be had."""
    texts = {name: stack.log_path(name).read_text(encoding="utf-8", errors="replace") for name in COMPONENTS}
    found = {
        f"{name}: {what}": text.count(what)
        for name, text in texts.items()
        for what in ("database is locked", "QueuePool limit")
    }
    return {name: count for name, count in found.items() if count}


def _figures(seen: Seen, num_dead: int, num_lost: int, ended_badly: int) -> list[dict[str, Any]]:
    seconds = sorted(seen.seconds)
    statuses = {status: count for status, count in sorted(seen.statuses.items())}
    errors = sum(count for status, count in statuses.items() if status == 0 or (status >= 500 and status != 503))
    return [
        figure(f"components that died, of {len(COMPONENTS)}", num_dead, "", goal=0),
        figure(f"jobs lost, of {NUM_WAITING + NUM_TRAININGS}", num_lost, "", goal=0),
        figure(f"DAG run of {NUM_TASKS} tasks that failed", ended_badly, "", goal=0),
        *(figure(f"replies with status {status or 'none at all'}", count, "") for status, count in statuses.items()),
        figure("replies that are errors of the server, 503 apart", errors, "", goal=0),
        figure("reply, median", seconds[len(seconds) // 2], "s"),
        figure("reply, p99", seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))], "s"),
        figure("reply, slowest", seconds[-1], "s", goal=SLOWEST_GOAL_S),
    ]
