"""Twenty small runs of one sweep compete for the seven GPUs of the laptop cluster, in the product's own use cases."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from tests.in_memory.sources import FakeClock, FixedInventory
from tests.unit.app.playing import Airflow
from tests.unit.installation import CONFIG, in_memory_services

from frenzy.adapters.spec.cluster_file import load_cluster
from frenzy.adapters.spec.combinations import combinations
from frenzy.adapters.spec.job_spec import job_from_document
from frenzy.app.place import place_status
from frenzy.app.register import register_run
from frenzy.core.runs.ledger import DataFacts, RunIdentity
from frenzy.core.runs.protocol import PlaceStatus, RegisterRun, VerdictKind
from frenzy.core.values.job import TrainingJob
from frenzy.settings import CHECKOUT

SETTINGS: dict[str, Any] = {
    "training.learning_rate": [1e-3, 2e-3, 3e-3, 5e-3, 1e-2],
    "model.config.n_layer": [1, 2],
    "training.seed": [1, 2],
}
BETWEEN_SUBMISSIONS_S = 0.01
NUM_STEPS = 100  # as the player of tasks tells


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run: when it was submitted, started and done, and on how many GPUs."""

    name: str
    submitted_s: float
    started_s: float
    ended_s: float
    num_gpus: int


@dataclass
class Sweep:
    """Plays all runs to their ends. idle_s: for how long GPUs were free while some run waited."""

    airflow: Airflow
    waiting: dict[str, tuple[Airflow, float]] = field(default_factory=dict)
    running: dict[str, tuple[Airflow, Ran]] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)
    idle_s: float = 0.0

    def play(self, jobs: list[TrainingJob]) -> None:
        for job in jobs:
            self._pass_time(BETWEEN_SUBMISSIONS_S)
            self._submit(job)
        while self.waiting or self.running:
            self._pass_time(self._first_end_s() - self.airflow.clock.now_s())

    def _submit(self, job: TrainingJob) -> None:
        run = self.airflow.another()
        identity = RunIdentity(dag_id=f"job_{job.name}", run_id="r1", task_group="train")
        run.key = identity.run_key
        config = {**CONFIG, **(job.model.config or {})}
        facts = DataFacts(num_tokens=10**6)
        register_run(run.services, RegisterRun(identity=identity, job=job, model_config=config, data_facts=facts))
        run.place()
        self.waiting[job.name] = (run, self.airflow.clock.now_s())
        self._start()

    def _start(self) -> None:
        """Launch whatever was placed."""
        for name, (run, submitted_s) in list(self.waiting.items()):
            view = place_status(run.services, run.key)
            if view.status is PlaceStatus.PLACED:
                assert view.spec is not None
                run.launch(1)
                run.step(1, 1)
                now_s, plan = self.airflow.clock.now_s(), view.spec.plan
                ended_s = now_s + plan.predicted_run_s
                ran = Ran(name=name, submitted_s=submitted_s, started_s=now_s, ended_s=ended_s, num_gpus=plan.num_gpus)
                del self.waiting[name]
                self.running[name] = (run, ran)

    def _first_end_s(self) -> float:
        return min(ran.ended_s for _, ran in self.running.values())

    def _pass_time(self, seconds: float) -> None:
        until_s = self.airflow.clock.now_s() + seconds
        while self.running and self._first_end_s() <= until_s:
            self._advance(self._first_end_s())
            run, ran = self.running.pop(min(self.running, key=lambda name: self.running[name][1].ended_s))
            run.end(1, 0, last_step=NUM_STEPS)
            assert run.decide().kind is VerdictKind.DONE
            self.ran.append(ran)
            self._start()
        self._advance(until_s)

    def _advance(self, until_s: float) -> None:
        seconds = until_s - self.airflow.clock.now_s()
        self.idle_s += seconds if self.waiting and self.airflow.free_gpus else 0.0
        self.airflow.clock.advance(seconds)


@pytest.fixture
def sweep() -> Sweep:
    clock, cluster = FakeClock(), load_cluster(CHECKOUT / "include/clusters/laptop.yaml")
    services = in_memory_services(clock=clock, inventory=FixedInventory(cluster))
    with services.ledger.transaction() as tx:
        tx.put_cluster(cluster)
    return Sweep(Airflow(services=services, clock=clock))


def jobs() -> list[TrainingJob]:
    found = combinations(CHECKOUT / "include/jobs/sweep/tiny.yaml", SETTINGS)
    made = (job_from_document(each) for each in found)
    return [replace(each, elastic="off", training=replace(each.training, max_steps=NUM_STEPS)) for each in made]


def test_of_twenty_runs_equal_ones_start_in_their_order_and_no_gpu_is_idle_while_one_waits(sweep: Sweep) -> None:
    asked = jobs()
    sweep.play(asked)
    by_name = {ran.name: ran for ran in sweep.ran}
    assert set(by_name) == {job.name for job in asked}, "all have ended"
    assert sweep.idle_s == 0.0
    for layers in ("layer1", "layer2"):
        starts = [by_name[job.name].started_s for job in asked if layers in job.name]
        assert len(starts) == 10
        assert all(earlier <= later for earlier, later in pairwise(starts)), "none overtakes an equal one"
