"""A job has a DAG of its own: it appears, fires by itself, and its runs share nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.growing import growing
from tests.e2e.walker import Walker, job_text

from frenzy.core.runs.ledger import JobState


def test_a_submitted_job_has_its_dag_within_ten_seconds_and_shows_its_spec(walker: Walker) -> None:
    began = time.monotonic()
    dag_id = walker.store(job_text("prompt", walker.corpus))
    assert time.monotonic() - began < 10.0
    assert "sequence_length" in walker.airflow("GET", f"/dags/{dag_id}/details")["doc_md"]


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


def test_the_launch_task_holds_its_slots_in_the_pool_of_its_gpu_type_on_every_attempt(walker: Walker) -> None:
    dag_id, run_id = walker.start("pooled", training=growing(60, max_steps=60))
    for attempt in (1, 2):
        view = walker.wait_for_step(dag_id, run_id, 1, attempt=attempt)
        plan = view.attempts[attempt - 1].plan
        task = walker.task(dag_id, run_id, "train.launch")
        assert (task["pool"], task["pool_slots"]) == (f"gpu_{plan.gpu_type}", plan.num_gpus)
        pool = walker.airflow("GET", f"/pools/gpu_{plan.gpu_type}")
        held = pool["occupied_slots"] + pool["deferred_slots"]
        assert held >= plan.num_gpus, pool
    walker.succeed(dag_id, run_id)


@pytest.mark.thorough
@pytest.mark.usefixtures("timed")
def test_two_overlapping_and_two_consecutive_runs_share_nothing(walker: Walker) -> None:
    dag_id = walker.store(job_text("repeated", walker.corpus, training={"max_steps": 4}))
    overlapping = [walker.trigger(dag_id) for _ in range(2)]
    views = [walker.succeed(dag_id, run_id) for run_id in overlapping]
    views.append(walker.succeed(dag_id, walker.trigger(dag_id)))
    assert len({view.run.run_key for view in views}) == 3
    assert all(len(view.attempts) == 1 for view in views)
    results = [view.attempts[0].result for view in views]
    assert all(result is not None and result.resumed_from_step is None for result in results)


@pytest.mark.thorough
def test_an_asset_event_really_fires(walker: Walker) -> None:
    producer, producer_run = walker.start("upstream", training={"max_steps": 2})
    consumer = walker.store(
        job_text(
            "downstream", walker.corpus, trigger={"assets": ["frenzy://models/upstream"]}, training={"max_steps": 2}
        )
    )
    walker.airflow("PATCH", f"/dags/{consumer}", {"is_paused": False})
    walker.succeed(producer, producer_run)
    walker.succeed(producer, walker.trigger(producer))

    def fired() -> str | None:
        runs = walker.airflow("GET", f"/dags/{consumer}/dagRuns")["dag_runs"]
        found = [run["dag_run_id"] for run in runs if run["run_type"] == "asset_triggered"]
        return found[0] if found else None

    walker.succeed(consumer, walker.eventually("a run triggered by the Asset", fired))


def test_a_finished_run_leaves_a_model_an_asset_event_and_an_evaluation(walker: Walker) -> None:
    dag_id, run_id = walker.start("complete", evaluation={"enabled": True, "max_new_tokens": 8, "max_sequences": 4})
    view = walker.succeed(dag_id, run_id)
    assert view.run.state is JobState.SUCCEEDED
    assert walker.task(dag_id, run_id, "evaluate")["state"] == "success"
    events = walker.airflow("GET", f"/assets/events?source_dag_id={dag_id}")["asset_events"]
    assert any(event["source_run_id"] == run_id for event in events)


def test_large_data_are_prepared_before_gpus_are_asked_for(walker: Walker, tmp_path: Path) -> None:
    corpus = tmp_path / "large.txt"
    corpus.write_text(walker.corpus.read_text(encoding="utf-8") * 3, encoding="utf-8")
    dag_id = walker.store(job_text("prepared", corpus, training={"max_steps": 4}, evaluation={"enabled": True}))
    run_ids = [walker.trigger(dag_id), walker.trigger(dag_id)]
    views = [walker.succeed(dag_id, run_id) for run_id in run_ids]
    assert [walker.task(dag_id, run_id, "train.prepare")["state"] for run_id in run_ids] == ["success"] * 2
    first, second = (view.run.prepared for view in views)
    assert first is not None
    assert first == second
    assert walker.task(dag_id, run_ids[0], "evaluate")["state"] == "success"
    states = [event.text.partition(":")[0] for event in views[0].events if event.kind == "state"]
    assert states.index("PREPARING") < states.index("QUEUED")


def test_small_data_are_left_to_the_workers_and_the_task_is_skipped(walker: Walker) -> None:
    dag_id, run_id = walker.start("unprepared", training={"max_steps": 2})
    assert walker.succeed(dag_id, run_id).run.prepared is None
    assert walker.task(dag_id, run_id, "train.prepare")["state"] == "skipped"


@pytest.mark.thorough
def test_a_cron_schedule_really_fires(walker: Walker, timed: str) -> None:
    def scheduled() -> list[str] | None:
        runs = walker.airflow("GET", f"/dags/{timed}/dagRuns")["dag_runs"]
        done = [run["dag_run_id"] for run in runs if run["run_type"] == "scheduled" and run["state"] == "success"]
        return done if len(done) >= 2 else None

    first, second = walker.eventually("two scheduled runs ended", scheduled, patience_s=420.0)[:2]
    keys = [view.run.run_key for run in (first, second) if (view := walker.view(timed, run)) is not None]
    assert len(set(keys)) == 2
