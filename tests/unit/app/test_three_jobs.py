"""The jobs of the elastic demo under the product's own scheduler: one shrinks for another, and grows back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.in_memory.sources import FixedInventory
from tests.unit.app.playing import Airflow

from frenzy.adapters.calibration_file import default_calibration
from frenzy.adapters.spec.cluster_file import load_cluster
from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.app.observe import report_progress
from frenzy.app.place import place_status
from frenzy.app.queries import run_view
from frenzy.app.register import register_run
from frenzy.app.settlement import end_attempt
from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.runs.ledger import DataFacts, JobState, RunIdentity
from frenzy.core.runs.protocol import DirectiveKind, EndReport, PlaceStatus, ProgressReport, RegisterRun
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.launch import AttemptResult
from frenzy.settings import CHECKOUT

RULES = ElasticRules(min_run_s=5.0, restart_s=10.0)
STEP_S = 0.5


@pytest.fixture
def laptop(airflow: Airflow) -> Airflow:
    services = replace(
        airflow.services,
        inventory=FixedInventory(load_cluster(CHECKOUT / "include/clusters/laptop.yaml")),
        calibration=default_calibration(),
        marp_policy="closed-form",
        elastic=RULES,
    )
    return replace(airflow, services=services)


def handed_in(laptop: Airflow, name: str) -> Airflow:
    """The job of that file, registered and asked for a place."""
    job = job_from_yaml((CHECKOUT / f"include/jobs/elastic/{name}.yaml").read_text())
    identity = RunIdentity(dag_id=f"job_{job.name}", run_id="r", task_group="train")
    run = replace(laptop, key=identity.run_key)
    request = RegisterRun(
        identity=identity, job=job, model_config=job.model.config, data_facts=DataFacts(num_tokens=10**6)
    )
    register_run(run.services, request)
    run.place()
    return run


def train(run: Airflow, attempt: int, first: int, last: int) -> DirectiveKind:
    """Ten seconds to start, then a report every two; the last directive."""
    run.launch(attempt)
    run.clock.advance(10)
    first_step_s = run.clock.now_s()
    for step in range(first, last, 4):
        told = report_progress(
            run.services,
            run.key,
            attempt,
            ProgressReport(last_step=step, step_time_s=STEP_S, first_step_s=first_step_s),
        )
        run.clock.advance(4 * STEP_S)
    return told.kind


def end(run: Airflow, attempt: int, exit_code: int, last_step: int, total: int) -> None:
    result = AttemptResult(exit_code=exit_code, last_step=last_step, total_steps=total, checkpoint_step=last_step)
    end_attempt(run.services, run.key, attempt, EndReport(result=result))


def num_gpus(run: Airflow) -> int:
    spec = place_status(run.services, run.key).spec
    assert spec is not None
    return spec.plan.num_gpus


def outcome_of(run: Airflow, attempt: int) -> ReasonCode | None:
    reason = run_view(run.services, run.key).attempts[attempt - 1].stop_reason
    return None if reason is None else reason.code


def test_a_long_job_makes_room_for_a_short_one_and_grows_back(laptop: Airflow) -> None:
    steady = handed_in(laptop, "steady")
    train(steady, 1, 1, 20)
    long = handed_in(laptop, "long")
    assert (num_gpus(steady), num_gpus(long)) == (2, 2)
    assert train(long, 1, 1, 30) is DirectiveKind.CONTINUE

    short = handed_in(laptop, "short")
    assert place_status(short.services, short.key).status is PlaceStatus.WAITING
    assert outcome_of(long, 1) is ReasonCode.MOVED_TO_SHRINK
    end(long, 1, 98, 34, 320)
    assert place_status(short.services, short.key).status is PlaceStatus.PLACED
    long.decide()
    long.place()
    assert num_gpus(long) == 1

    train(short, 1, 1, 40)
    assert train(long, 2, 35, 60) is DirectiveKind.CONTINUE
    end(short, 1, 0, 40, 40)
    assert outcome_of(long, 2) is ReasonCode.MOVED_TO_GROW
    end(long, 2, 98, 64, 320)
    long.decide()
    long.place()
    assert num_gpus(long) == 2
    assert run_view(steady.services, steady.key).run.state is JobState.RUNNING
    assert outcome_of(steady, 1) is None

    train(long, 3, 65, 90)
    end(steady, 1, 0, 180, 180)
    assert outcome_of(long, 3) is ReasonCode.MOVED_TO_GROW
    end(long, 3, 98, 94, 320)
    long.decide()
    long.place()
    assert num_gpus(long) == 4
