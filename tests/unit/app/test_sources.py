"""Whose run a job may start from: its pods are let read the whole of that run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.in_memory.run_store import InMemoryRunStore
from tests.in_memory.sources import FixedQueues
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.queries import run_view
from frenzy.app.services import require_run
from frenzy.app.stored_jobs import store_job
from frenzy.core.runs.access import Caller
from frenzy.core.runs.ledger import JobState
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


def finished(airflow: Airflow, job: TrainingJob, run_id: str, *, with_model: bool = True) -> str:
    """The key of a run of the job that has ended well."""
    airflow.clock.advance(60)
    run = airflow.another()
    run.begun(job, run_id)
    run.end(1, 0, 100)
    assert run_view(airflow.services, run.key).run.state is JobState.SUCCEEDED
    if with_model:
        store = airflow.services.runs
        assert isinstance(store, InMemoryRunStore)
        store.write_model(run.key, {"config.json": b"{}"})
    return run.key


def from_newest(name: str, of: str = "newest") -> TrainingJob:
    return replace(make_job(name), checkpoint=CheckpointSpec(warm_start=of))


def begins_with(airflow: Airflow, job: TrainingJob, run_id: str = "next") -> tuple[str | None, str]:
    """Where its run starts from, and what its history says of that."""
    view = airflow.another().register(job, run_id)
    return view.run.job.checkpoint.warm_start, " ".join(each.text for each in view.events if each.kind == "model")


@pytest.mark.parametrize("of", ["newest", "newest:nightly"])
def test_a_run_starts_from_the_newest_model_that_is_still_there(airflow: Airflow, of: str) -> None:
    nightly = make_job("nightly")
    store_job(airflow.services, nightly, "name: nightly", caller=Caller(name="ada", is_admin=True))
    asked = from_newest("nightly" if of == "newest" else "other", of)
    assert begins_with(airflow, asked, "first") == (
        None,
        "nightly has no finished model yet: this run starts from the model of its own specification.",
    )
    finished(airflow, nightly, "old")
    newest = finished(airflow, nightly, "new")
    finished(airflow, nightly, "cleaned", with_model=False)
    assert begins_with(airflow, asked) == (newest, f"Starts from the model of nightly {newest}, its newest.")


def of_job(airflow: Airflow, job: TrainingJob, run_key: str) -> None:
    """The run is one of ``job``, in the same DAG."""
    with airflow.services.ledger.transaction() as tx:
        tx.put_run(replace(require_run(tx, run_key), job=job))


def test_newer_runs_of_other_jobs_in_the_same_dag_hide_no_model(airflow: Airflow) -> None:
    ours = finished(airflow, make_job("nightly"), "ours")
    for index in range(25):
        of_job(airflow, make_job("other"), finished(airflow, make_job("nightly"), f"other-{index}"))
    assert begins_with(airflow, from_newest("nightly"))[0] == ours


def test_models_that_were_all_cleaned_are_told_as_such(airflow: Airflow) -> None:
    finished(airflow, make_job("nightly"), "cleaned", with_model=False)
    assert begins_with(airflow, from_newest("nightly")) == (
        None,
        "No finished model of nightly's last runs is left: this run starts from the model of its own specification.",
    )


def test_a_cleared_run_does_not_start_from_the_model_that_it_left_itself(airflow: Airflow) -> None:
    before = finished(airflow, make_job("nightly"), "before")
    finished(airflow, from_newest("nightly"), "again")
    assert begins_with(airflow, from_newest("nightly"), "again")[0] == before


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_cleared_run_that_goes_on_from_its_checkpoint_keeps_the_model_that_it_began_with(
    airflow: Airflow, goes_on: bool
) -> None:
    before = finished(airflow, make_job("nightly"), "before")
    cleared = finished(airflow, from_newest("nightly"), "cleared", with_model=False)
    store = airflow.services.runs
    assert isinstance(store, InMemoryRunStore)
    store.write_checkpoint(cleared, 50)
    newer = finished(airflow, make_job("nightly"), "newer")
    asked = from_newest("nightly") if goes_on else replace(from_newest("nightly"), data=DataSpec(path="other"))
    start, said = begins_with(airflow, asked, "cleared")
    assert start == (before if goes_on else newer)
    assert said.count("Starts from the model") == (1 if goes_on else 2)


def test_the_newest_model_of_a_job_that_is_nowhere_is_refused(airflow: Airflow) -> None:
    with pytest.raises(SpecError, match="there is no stored job 'nihgtly'"):
        begins_with(airflow, from_newest("other", "newest:nihgtly"))


def test_nobody_starts_from_the_newest_model_of_another(shared: Airflow) -> None:
    store_job(shared.services, make_job("mine"), "name: mine", caller=Caller(name="ada"))
    key = finished(shared, make_job("mine"), "r1")
    with pytest.raises(SpecError, match=f"{key} is another's"):
        run_of(shared, from_newest("theft", "newest:mine"), "eve")


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
