"""Whose run a job may start from: its pods are let read the whole of that run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.in_memory.sources import FixedQueues
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.stored_jobs import store_job
from frenzy.core.runs.access import Caller
from frenzy.core.values.errors import SpecError
from frenzy.core.values.job import CheckpointSpec, DataSpec, ModelSpec, TrainingJob
from frenzy.core.values.queue_rules import QueueRules, TeamRule

RULES = QueueRules(teams=(TeamRule(name="readers", members=("ada", "ben")),))


def run_of(airflow: Airflow, job: TrainingJob, user: str) -> str:
    """The key of a run of the job, which ``user`` stores."""
    store_job(airflow.services, job, f"name: {job.name}", caller=Caller(name=user))
    return airflow.register(job).run.run_key


def from_run(name: str, key: str, how: str, *, team: str = "default") -> TrainingJob:
    job = replace(make_job(name), team=team)
    if how == "model":
        return replace(job, model=ModelSpec(path=f"/var/lib/frenzy/runs/{key}/model"))
    if how == "tokenizer":
        return replace(job, model=replace(job.model, tokenizer=f"s3://bucket/runs/{key}/tokenizer/"))
    warm_start = {"key": key, "path": f"/runs/x/../{key}/model", "url": f"file:///runs/{key}"}[how]
    return replace(job, checkpoint=CheckpointSpec(warm_start=warm_start))


@pytest.fixture
def shared(airflow: Airflow) -> Airflow:
    return replace(airflow, services=replace(airflow.services, queues=FixedQueues(RULES)))


@pytest.mark.parametrize("place", ["????????????/attempt-*/spec.json", ".dat?/**", "*/model/*.json", ""])
@pytest.mark.parametrize("field", ["data", "validation"])
def test_no_pattern_and_no_folder_reads_the_runs_of_all(shared: Airflow, field: str, place: str) -> None:
    given = shared.services.runs.run_dir(place)
    job = make_job("curious")
    spec = DataSpec(path=given) if field == "data" else replace(job.validation, path=given)
    with pytest.raises(SpecError, match=f"{field}.path: .* takes in the folders of runs"):
        run_of(shared, replace(job, **{field: spec}), "ben")


@pytest.mark.parametrize("how", ["key", "path", "url", "model", "tokenizer"])
def test_nobody_starts_from_the_run_of_another(shared: Airflow, how: str) -> None:
    key = run_of(shared, replace(make_job("mine"), team="readers"), "ada")
    with pytest.raises(SpecError, match=f"{key} is another's"):
        run_of(shared, from_run("theft", key, how), "eve")
    assert run_of(shared, from_run("again", key, how), "ada")
    assert run_of(shared, from_run("ours", key, how, team="readers"), "ben")
