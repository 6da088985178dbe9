"""A small cluster, a job, and a driver that plays Airflow's tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.in_memory.sources import FakeClock
from tests.unit.installation import CONFIG

from frenzy.app.observe import attempt_launching, attempt_started, report_pressure, report_progress
from frenzy.app.place import enqueue, place_status
from frenzy.app.queries import gpus_view
from frenzy.app.register import register_run
from frenzy.app.services import Services
from frenzy.app.settlement import decide, end_attempt
from frenzy.core.runs.ledger import DataFacts, RunIdentity
from frenzy.core.runs.protocol import (
    AttemptStarted,
    Directive,
    EndReport,
    PlaceStatus,
    PlaceView,
    PressureReport,
    ProgressReport,
    RegisterRun,
    RunView,
    Verdict,
)
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import DataSpec, MemoryPressureSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.launch import AttemptResult

FORECAST = Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="It rises.")


def make_job(name: str = "job", *, max_reschedules: int = 3, forecast: bool = True, batch: int = 8) -> TrainingJob:
    return TrainingJob(
        name=name,
        model=ModelSpec(config=CONFIG),
        data=DataSpec(path="text", sequence_length=128),
        training=TrainingSpec(max_steps=100, global_batch_size=batch),
        on_memory_pressure=MemoryPressureSpec(max_reschedules=max_reschedules, forecast=forecast, min_run_s=0),
    )


@dataclass
class Airflow:
    """Plays the tasks of one run against the use cases."""

    services: Services
    clock: FakeClock
    key: str = ""

    def register(self, job: TrainingJob, run_id: str = "r1", asked_model: str = "") -> RunView:
        identity = RunIdentity(dag_id=f"job_{job.name}", run_id=run_id, task_group="train")
        self.key = identity.run_key
        facts = DataFacts(num_tokens=10**6)
        request = RegisterRun(
            identity=identity, job=job, model_config=CONFIG, data_facts=facts, asked_model=asked_model
        )
        return register_run(self.services, request)

    def place(self) -> PlaceView:
        return enqueue(self.services, self.key)

    def launch(self, attempt: int) -> Directive:
        directive = attempt_launching(self.services, self.key, attempt)
        attempt_started(self.services, self.key, attempt, AttemptStarted(launcher_ref="pid 1"))
        return directive

    def step(self, attempt: int, number: int) -> Directive:
        progress = ProgressReport(last_step=number, last_loss=3.0, step_time_s=1.0, first_step_s=self.clock.now_s())
        return report_progress(self.services, self.key, attempt, progress)

    def press(self, attempt: int, *, extra: int, number: int = 10) -> Directive:
        report = PressureReport(
            reason=FORECAST,
            progress=ProgressReport(last_step=number, checkpoint_step=number),
            extra_bytes_per_gpu=extra,
            forecast_extra_bytes_per_gpu=extra,
        )
        return report_pressure(self.services, self.key, attempt, report)

    def end(self, attempt: int, exit_code: int, last_step: int = 10) -> RunView:
        result = AttemptResult(exit_code=exit_code, last_step=last_step, total_steps=100, checkpoint_step=last_step)
        return end_attempt(self.services, self.key, attempt, EndReport(result=result))

    def decide(self) -> Verdict:
        return decide(self.services, self.key)

    def another(self) -> Airflow:
        return replace(self, key="")

    def submitted(self, job: TrainingJob, run_id: str = "r1") -> Airflow:
        """Another run on the same services, which has asked for its place."""
        run = self.another()
        run.register(job, run_id)
        run.place()
        return run

    def begun(self, job: TrainingJob | None = None, run_id: str = "r1") -> Airflow:
        """This run, at the first step of its first attempt."""
        self.register(job or make_job(), run_id)
        self.place()
        self.launch(1)
        self.step(1, 1)
        return self

    @property
    def free_gpus(self) -> int:
        return sum(row.num_free for row in gpus_view(self.services).types)

    @property
    def is_placed(self) -> bool:
        return place_status(self.services, self.key).status is PlaceStatus.PLACED
