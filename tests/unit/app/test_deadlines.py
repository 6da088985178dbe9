"""Deadlines in the product: who starts first, and that a run which has begun is not given up for one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from tests.unit.app.playing import Airflow, make_job

from frenzy.app.facts import scheduling_facts
from frenzy.core.runs.protocol import PlaceStatus, VerdictKind
from frenzy.core.values.job import ConstraintsSpec, TrainingJob

KILLED = 137


def due(airflow: Airflow, name: str, in_s: float) -> TrainingJob:
    """A job for the GPUs of node a, with so much time to its deadline."""
    at = datetime.fromtimestamp(airflow.clock.now_s() + in_s, UTC).isoformat()
    return replace(make_job(name), constraints=ConstraintsSpec(gpu_types=("small",), max_gpus=1, deadline=at))


def on_a(name: str) -> TrainingJob:
    return replace(make_job(name), constraints=ConstraintsSpec(gpu_types=("small",), max_gpus=1))


def test_a_job_whose_deadline_is_at_risk_takes_the_next_gpus(airflow: Airflow) -> None:
    first, _ = (airflow.submitted(on_a(name)) for name in ("first", "second"))
    calm = airflow.submitted(on_a("calm"))
    airflow.clock.advance(1)
    late = airflow.submitted(due(airflow, "late", 5.0))
    assert (calm.is_placed, late.is_placed) == (False, False)
    first.launch(1)
    first.end(1, 0, last_step=100)
    assert (calm.is_placed, late.is_placed) == (False, True)


def test_the_scheduler_knows_the_deadlines_of_all_jobs(airflow: Airflow) -> None:
    airflow.submitted(due(airflow, "timed", 500.0))
    airflow.submitted(on_a("other"))
    airflow.submitted(due(airflow, "waits", 900.0))
    with airflow.services.ledger.reading() as tx:
        facts = scheduling_facts(tx, airflow.services, airflow.clock.now_s())
    now_s = airflow.clock.now_s()
    assert {job.job_name: job.deadline_s for job in (*facts.running, *facts.queued)} == {
        "timed": now_s + 500.0,
        "other": None,
        "waits": now_s + 900.0,
    }


def test_a_run_that_has_begun_goes_on_after_its_deadline(airflow: Airflow) -> None:
    run = airflow.submitted(due(airflow, "timed", 5.0))
    run.launch(1)
    run.step(1, 10)
    run.clock.advance(60)
    run.end(1, KILLED, last_step=10)
    assert run.decide().kind is VerdictKind.RETRY
    assert run.place().status is PlaceStatus.PLACED
