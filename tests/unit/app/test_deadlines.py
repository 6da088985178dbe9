"""Deadlines in the product: who starts first, and that a run which has begun is not given up for one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from tests.unit.app.conftest import Airflow, make_job

from frenzy.app.facts import scheduling_facts
from frenzy.app.place import place_status
from frenzy.core.job import ConstraintsSpec, TrainingJob
from frenzy.core.protocol import PlaceStatus, VerdictKind

KILLED = 137


def due(airflow: Airflow, name: str, in_s: float) -> TrainingJob:
    """A job for the GPUs of node a, with so much time to its deadline."""
    at = datetime.fromtimestamp(airflow.clock.now_s() + in_s, UTC).isoformat()
    return replace(make_job(name), constraints=ConstraintsSpec(gpu_types=("small",), max_gpus=1, deadline=at))


def on_a(name: str) -> TrainingJob:
    return replace(make_job(name), constraints=ConstraintsSpec(gpu_types=("small",), max_gpus=1))


def submitted(airflow: Airflow, job: TrainingJob) -> Airflow:
    run = airflow.another()
    run.register(job)
    run.place()
    return run


def is_placed(airflow: Airflow) -> bool:
    return place_status(airflow.services, airflow.key).status is PlaceStatus.PLACED


def test_a_job_whose_deadline_is_at_risk_takes_the_next_gpus(airflow: Airflow) -> None:
    first, _ = (submitted(airflow, on_a(name)) for name in ("first", "second"))
    calm = submitted(airflow, on_a("calm"))
    airflow.clock.advance(1)
    late = submitted(airflow, due(airflow, "late", 5.0))
    assert (is_placed(calm), is_placed(late)) == (False, False)
    first.launch(1)
    first.end(1, 0, last_step=100)
    assert (is_placed(calm), is_placed(late)) == (False, True)


def test_the_scheduler_knows_the_deadlines_of_all_jobs(airflow: Airflow) -> None:
    submitted(airflow, due(airflow, "timed", 500.0))
    submitted(airflow, on_a("other"))
    submitted(airflow, due(airflow, "waits", 900.0))
    with airflow.services.ledger.reading() as tx:
        facts = scheduling_facts(tx, airflow.services.elastic, airflow.clock.now_s())
    now_s = airflow.clock.now_s()
    assert {job.job_name: job.deadline_s for job in (*facts.running, *facts.queued)} == {
        "timed": now_s + 500.0,
        "other": None,
        "waits": now_s + 900.0,
    }


def test_a_run_that_has_begun_goes_on_after_its_deadline(airflow: Airflow) -> None:
    run = submitted(airflow, due(airflow, "timed", 5.0))
    run.launch(1)
    run.step(1, 10)
    run.clock.advance(60)
    run.end(1, KILLED, last_step=10)
    assert run.decide().kind is VerdictKind.RETRY
    assert run.place().status is PlaceStatus.PLACED
