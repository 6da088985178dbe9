"""A small installation in memory whose runs were played: what the pages are looked at with.

    python -m tests.pages.stage          serve it, and print the addresses of its pages

Its cluster, ledger, plans and decisions are the product's own; only the workers' steps are made up, and the few
answers of Airflow's API that the pages ask for.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from tests.in_memory.run_store import InMemoryRunStore
from tests.in_memory.sources import FakeClock, FixedInventory
from tests.unit.installation import CONFIG, in_memory_services
from tests.unit.web.conftest import PEOPLE, FakePerson

from frenzy.adapters.calibration_file import default_calibration
from frenzy.app.observe import attempt_launching, attempt_started, report_pressure, report_progress
from frenzy.app.place import enqueue
from frenzy.app.register import register_run
from frenzy.app.services import Services
from frenzy.app.settlement import decide, end_attempt
from frenzy.core.runs.ledger import DataFacts, RunIdentity
from frenzy.core.runs.protocol import (
    AttemptStarted,
    EndReport,
    PlaceView,
    PressureReport,
    ProgressReport,
    RegisterRun,
)
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.job import (
    ConstraintsSpec,
    DataSpec,
    MemoryPressureSpec,
    ModelSpec,
    Objective,
    TrainingJob,
    TrainingSpec,
)
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.telemetry import StepRecord
from frenzy.core.values.units import GIB
from frenzy.web.application import create_app

RUN_ID: Final = "manual__2026-11-25T02:00:00+00:00"
_STEPS: Final = 200
# What is played, by its clock: it ends about now.
_TAKES_S: Final = 325
MODEL: Final = {"config.json": b"{}", "model.safetensors": bytes(13 * 2**20), "tokenizer/vocab.json": b'{"a": 0}'}
_NODES: Final = (("small-1", "v-small", 4), ("small-2", "v-small", 4), ("large-1", "v-large", 2))


def cluster() -> Cluster:
    types = (
        GpuType(name="v-small", memory_bytes=1 * GIB, flops_per_s=3e10, price_per_hour=0.4),
        GpuType(name="v-large", memory_bytes=4 * GIB, flops_per_s=6e10, price_per_hour=1.6),
    )
    nodes = tuple(
        Node(name=name, gpu_type=kind, num_gpus=count, host_memory_bytes=64 * GIB, num_cpus=16)
        for name, kind, count in _NODES
    )
    return Cluster(gpu_types=types, nodes=nodes)


@dataclass
class Played:
    """One run, and the tasks of Airflow that drive it."""

    services: Services
    clock: FakeClock
    runs: InMemoryRunStore
    job: TrainingJob
    began_s: float = 0.0
    last: int = 0
    attempt: int = 0
    place: PlaceView | None = None
    key: str = field(init=False)
    identity: RunIdentity = field(init=False)

    def __post_init__(self) -> None:
        self.identity = RunIdentity(dag_id=f"job_{self.job.name}", run_id=RUN_ID, task_group="train")
        self.key = self.identity.run_key

    def registers(self) -> None:
        self.began_s = self.clock.now_s()
        request = RegisterRun(
            identity=self.identity, job=self.job, model_config=CONFIG, data_facts=DataFacts(num_tokens=10**6)
        )
        register_run(self.services, request)

    def waits(self) -> None:
        self.place = enqueue(self.services, self.key)

    def starts(self, after_s: float = 14.0) -> None:
        self.attempt += 1
        attempt_launching(self.services, self.key, self.attempt)
        self.clock.advance(3)
        attempt_started(self.services, self.key, self.attempt, AttemptStarted(launcher_ref=f"pid {self.attempt}"))
        self.clock.advance(after_s)

    def trains(self, steps: int, *, growth_bytes: int = 0) -> None:
        """So many steps of all its ranks, one second each; growth_bytes: a step, that no plan explains."""
        with self.services.ledger.reading() as tx:
            plan = tx.attempts(self.key)[-1].plan
        first_s, begin = self.clock.now_s(), self.last
        known = peak = round(plan.memory.peak_allocated_bytes * 1.01)
        for step in range(begin + 1, begin + steps + 1):
            peak += growth_bytes if step > begin + steps // 2 else 0
            self._step(step, plan, min(peak, plan.gpu_memory_bytes))
        self.last += steps
        self.runs.write_checkpoint(self.key, self.last)
        report = self.progress(peak, known, first_s, plan)
        report_progress(self.services, self.key, self.attempt, report)

    def progress(self, peak: int, known: int, first_s: float, plan: ResourcePlan) -> ProgressReport:
        return ProgressReport(
            last_step=self.last,
            last_loss=_loss(self.last),
            step_time_s=1.04 * plan.step_time_s,
            first_step_s=first_s,
            peaks=PeakMemory(allocated_bytes=peak),
            explained_peak_bytes=known,
            checkpoint_step=self.last,
        )

    def _step(self, step: int, plan: ResourcePlan, peak: int) -> None:
        step_s = plan.step_time_s * (1.04 + 0.05 * math.sin(step / 3))
        self.clock.advance(step_s)
        for rank in range(plan.num_gpus):
            record = StepRecord(
                rank=rank,
                step=step,
                time_s=self.clock.now_s(),
                loss=_loss(step) + 0.01 * math.sin(step),
                validation_loss=_loss(step) + 0.15 if step % 25 == 0 else None,
                step_time_s=step_s,
                tokens_per_s=1024 / plan.num_gpus / step_s,
                peaks=PeakMemory(allocated_bytes=peak - rank * 2**23, reserved_bytes=peak),
                capacity_bytes=plan.gpu_memory_bytes,
            )
            self.runs.write_chunk(self.key, self.attempt, [record])
            self.runs.write_log(self.key, self.attempt, f"step {step} of {_STEPS} loss {_loss(step):.4f}\n", rank=rank)

    def is_moved(self) -> None:
        """Its memory grows; it saves and gives its GPUs back, and asks for others."""
        reason = Reason(
            code=ReasonCode.MEMORY_PRESSURE_FORECAST,
            detail=f"Peaks rise by 12 MiB a step since step {self.last // 2}; the card is full at {self.last + 22}.",
        )
        pressure = PressureReport(
            reason=reason,
            progress=ProgressReport(last_step=self.last, growth_step=self.last // 2, checkpoint_step=self.last),
            extra_bytes_per_gpu=500 * 2**20,
            forecast_extra_bytes_per_gpu=1700 * 2**20,
        )
        report_pressure(self.services, self.key, self.attempt, pressure)
        self.clock.advance(6)
        self.ends(98)
        self.clock.advance(8)
        self.waits()
        self.clock.advance(4)

    def ends(self, exit_code: int, detail: str = "") -> None:
        result = AttemptResult(
            exit_code=exit_code, last_step=self.last, total_steps=_STEPS, checkpoint_step=self.last, detail=detail
        )
        end_attempt(self.services, self.key, self.attempt, EndReport(result=result))
        decide(self.services, self.key)


def _loss(step: int) -> float:
    return 2.0 + 4.5 * math.exp(-step / 60)


def job_named(name: str, **changes: Any) -> TrainingJob:
    made = TrainingJob(
        name=name,
        model=ModelSpec(config=CONFIG),
        data=DataSpec(path="memory://text", sequence_length=128),
        training=TrainingSpec(max_steps=_STEPS, global_batch_size=8),
        on_memory_pressure=MemoryPressureSpec(min_run_s=0),
    )
    return replace(made, **changes)


@dataclass(frozen=True, slots=True)
class Stage:
    """Runs by what became of them, and where the pages are."""

    root: str
    runs: dict[str, Played]

    def page(self, name: str, run: str | None = None) -> str:
        identity = None if run is None else self.runs[run].identity
        query = "" if identity is None else f"?dag_id={identity.dag_id}&run_id={identity.run_id.replace('+', '%2B')}"
        return f"{self.root}/pages/{name}{query}"


def play(services: Services, clock: FakeClock, runs: InMemoryRunStore) -> dict[str, Played]:
    """One that moved and succeeded, one that runs, one that waits, one that no card can hold, one that crashed."""

    def run(name: str, **changes: Any) -> Played:
        made = Played(services, clock, runs, job_named(name, **changes))
        made.registers()
        clock.advance(2)
        return made

    moved = run("moved", objective=Objective.COST)
    moved.waits()
    clock.advance(20)
    moved.starts()
    moved.trains(90, growth_bytes=12 * 2**20)
    moved.is_moved()
    moved.starts()
    moved.trains(110)
    clock.advance(5)
    moved.ends(0)
    runs.write_model(moved.key, MODEL)
    crashed = run("crashed")
    crashed.waits()
    for number in range(3):
        crashed.starts()
        crashed.ends(1, "ValueError: the tokenizer has 1,200 tokens, the model 1,000")
        clock.advance(3)
        if number < 2:
            crashed.waits()
    refused = run("refused", constraints=ConstraintsSpec(gpu_types=("v-small",), max_cost=1e-9))
    running = run("running")
    running.waits()
    running.starts()
    running.trains(40)
    waiting = run("waiting", constraints=ConstraintsSpec(gpu_types=("v-large",)))
    waiting.waits()
    last = run("last-in-line", constraints=ConstraintsSpec(gpu_types=("v-large",)))
    last.waits()
    clock.advance(3)
    found = {each.job.name: each for each in (moved, crashed, refused, running, waiting, last)}
    return found


EVALUATION: Final = {
    "perplexity": 8.41,
    "held_out": True,
    "prompt": "First Citizen:",
    "sample": " We are accounted poor citizens, the patricians good.",
}


def airflow_answers(app: FastAPI) -> None:
    """What the pages ask Airflow itself."""

    @app.get("/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")
    def tasks(dag_id: str, run_id: str) -> dict[str, Any]:
        task = {"task_id": "evaluate", "operator": "EvaluateOperator", "map_index": -1}
        return {"task_instances": [task]}

    @app.get("/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value")
    def xcom(dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        return {"value": EVALUATION}

    @app.get("/api/v2/dags/{dag_id}/dagRuns/{run_id}/upstreamAssetEvents")
    def upstream(dag_id: str, run_id: str) -> dict[str, Any]:
        return {"asset_events": [{"uri": "s3://plays/new.jsonl", "asset_id": 2}]}

    @app.get("/around", response_class=HTMLResponse)
    def around() -> str:
        """A page without any policy, for a frame like Airflow's."""
        return "<main></main>"

    @app.get("/api/v2/assets/events")
    def events(source_dag_id: str, source_run_id: str) -> dict[str, Any]:
        return {"asset_events": [{"uri": f"frenzy://models/{source_dag_id.removeprefix('job_')}", "asset_id": 1}]}


@contextmanager
def stage(*, empty: bool = False, person: str = "admin") -> Iterator[Stage]:
    """The installation, served until the end. empty: nothing was ever run."""
    clock, runs = FakeClock(time.time() - _TAKES_S), InMemoryRunStore()
    services = in_memory_services(
        clock=clock,
        runs=runs,
        inventory=FixedInventory(cluster()),
        marp_policy="closed-form",
        calibration=default_calibration(),
    )
    with services.ledger.transaction() as tx:
        tx.put_cluster(cluster())
    played = {} if empty else play(services, clock, runs)
    reader: FakePerson = PEOPLE[person]
    app = FastAPI(openapi_url=None)
    app.mount("/frenzy", create_app(lambda: services, lambda: reader))
    airflow_answers(app)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Stage(f"http://127.0.0.1:{port}/frenzy", played)
    finally:
        server.should_exit = True
        thread.join(10)


def main() -> None:
    with stage() as served:
        print(
            served.page("gpus"),
            served.page("new_job"),
            *(served.page("training", each) for each in served.runs),
            sep="\n",
        )
        threading.Event().wait()


if __name__ == "__main__":
    main()
