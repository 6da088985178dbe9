"""A job has a DAG of its own: it appears, fires by itself, and its runs share nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.e2e.together import Together
from tests.e2e.walker import Walker, job_text

from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView


def test_a_submitted_job_has_its_dag_within_ten_seconds_and_shows_its_spec(walker: Walker) -> None:
    began = time.monotonic()
    dag_id = walker.store(job_text("prompt", walker.corpus))
    assert time.monotonic() - began < 10.0
    assert "sequence_length" in walker.airflow("GET", f"/dags/{dag_id}/details")["doc_md"]


def test_a_form_that_stands_for_no_job_is_refused_with_all_that_is_wrong_and_no_run_is_made(walker: Walker) -> None:
    conf = {"name": "formed", "preset": "none", "training__warmup_steps": 100, "training__max_steps": 10}
    wrong = {**conf, "data__path": str(walker.corpus)}
    walker.eventually("the DAG frenzy_train", lambda: walker.http.get("/api/v2/dags/frenzy_train").is_success)
    before = walker.airflow("GET", "/dags/frenzy_train/dagRuns")["total_entries"]
    answer = walker.http.post("/api/v2/dags/frenzy_train/dagRuns", json={"logical_date": None, "conf": wrong})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("Refused: 2 fields. ")
    assert walker.airflow("GET", "/dags/frenzy_train/dagRuns")["total_entries"] == before


def test_a_finished_run_leaves_a_model_an_asset_event_and_an_evaluation(walker: Walker, together: Together) -> None:
    dag_id, run_id = together.evaluated
    view = walker.succeed(dag_id, run_id)
    assert view.run.state is JobState.SUCCEEDED
    assert walker.task(dag_id, run_id, "evaluate")["state"] == "success"
    events = walker.airflow("GET", f"/assets/events?source_dag_id={dag_id}")["asset_events"]
    assert any(event["source_run_id"] == run_id for event in events)


def test_large_data_are_prepared_before_gpus_are_asked_for(walker: Walker, together: Together) -> None:
    views = [walker.succeed(*run) for run in together.prepared]
    assert [walker.task(*run, "train.prepare")["state"] for run in together.prepared] == ["success"] * 2
    first, second = (view.run.prepared for view in views)
    assert first is not None
    assert first == second
    assert walker.task(*together.prepared[0], "evaluate")["state"] == "success"
    states = [event.text.partition(":")[0] for event in views[0].events if event.kind == "state"]
    assert states.index("PREPARING") < states.index("QUEUED")


def test_small_data_are_left_to_the_workers_and_the_task_is_skipped(walker: Walker, together: Together) -> None:
    assert walker.succeed(*together.plain[0]).run.prepared is None
    assert walker.task(*together.plain[0], "train.prepare")["state"] == "skipped"


def test_two_overlapping_runs_share_nothing_that_they_train(walker: Walker, together: Together) -> None:
    check_apart(*(walker.succeed(*run) for run in together.prepared))


def check_apart(one: RunView, other: RunView) -> None:
    """Two runs of one job know nothing of each other."""
    assert one.run.run_key != other.run.run_key
    for view in (one, other):
        (attempt,) = view.attempts
        assert attempt.result is not None
        assert attempt.result.resumed_from_step is None


@pytest.fixture(scope="module")
def timed(walker: Walker) -> Iterator[str]:
    """The DAG of a job that is due each minute; other tests take the time until it was."""
    text = job_text(
        "timed", walker.corpus, trigger={"cron": "* * * * *", "max_active_runs": 1}, training={"max_steps": 2}
    )
    dag_id = walker.store(text)
    walker.airflow("PATCH", f"/dags/{dag_id}", {"is_paused": False})
    yield dag_id
    walker.airflow("PATCH", f"/dags/{dag_id}", {"is_paused": True})


@pytest.mark.thorough
@pytest.mark.usefixtures("timed")
def test_an_asset_event_of_the_second_of_two_runs_that_share_nothing_really_fires(
    walker: Walker, together: Together
) -> None:
    producer, first_run = together.producer
    first = walker.succeed(producer, first_run)
    consumer = walker.store(
        job_text(
            "downstream", walker.corpus, trigger={"assets": ["frenzy://models/upstream"]}, training={"max_steps": 2}
        )
    )
    walker.airflow("PATCH", f"/dags/{consumer}", {"is_paused": False})
    check_apart(first, walker.succeed(producer, walker.trigger(producer)))

    def fired() -> str | None:
        runs = walker.airflow("GET", f"/dags/{consumer}/dagRuns")["dag_runs"]
        found = [run["dag_run_id"] for run in runs if run["run_type"] == "asset_triggered"]
        return found[0] if found else None

    walker.succeed(consumer, walker.eventually("a run triggered by the Asset", fired))


@pytest.mark.thorough
def test_a_cron_schedule_really_fires(walker: Walker, timed: str) -> None:
    def scheduled() -> list[str] | None:
        runs = walker.airflow("GET", f"/dags/{timed}/dagRuns")["dag_runs"]
        done = [run["dag_run_id"] for run in runs if run["run_type"] == "scheduled" and run["state"] == "success"]
        return done if len(done) >= 2 else None

    first, second = walker.eventually("two scheduled runs ended", scheduled, patience_s=420.0)[:2]
    keys = [view.run.run_key for run in (first, second) if (view := walker.view(timed, run)) is not None]
    assert len(set(keys)) == 2
