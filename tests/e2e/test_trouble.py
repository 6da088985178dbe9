"""Parts of Airflow die, people cancel, specs change, jobs compete: nothing is lost or held twice."""

from __future__ import annotations

import time

import pytest
from tests.e2e.conftest import LEASE_S
from tests.e2e.growing import growing
from tests.e2e.walker import Walker, job_text, long_training

from frenzy.core.runs.ledger import JobState
from frenzy.core.values.errors import ReasonCode

CANCEL_S = 30.0


@pytest.mark.thorough
@pytest.mark.parametrize("component", ["triggerer", "scheduler", "api-server"])
def test_a_run_outlives_the_death_of_a_part_of_airflow(walker: Walker, component: str) -> None:
    dag_id, run_id = walker.start(f"outlives-{component}", training={"max_steps": 40})
    walker.wait_for_step(dag_id, run_id, 3)
    walker.stack.kill(component)
    walker.stack.restart(component)
    view = walker.succeed(dag_id, run_id)
    assert len(view.attempts) == 1, "the workers never noticed"


@pytest.mark.thorough
def test_a_triggerer_away_for_longer_than_a_lease_does_no_harm(walker: Walker) -> None:
    dag_id, run_id = walker.start("away", training={"max_steps": 150})
    walker.wait_for_step(dag_id, run_id, 3)
    walker.stack.kill("triggerer")
    time.sleep(LEASE_S + 5)
    assert walker.num_free() < walker.num_gpus(), "a lease without a heartbeat is suspect, not free"
    walker.stack.restart("triggerer")
    view = walker.succeed(dag_id, run_id)
    assert len(view.attempts) == 1


def test_cancelling_a_running_job_frees_its_gpus_and_ends_its_processes(walker: Walker) -> None:
    dag_id, run_id = walker.start("cancel-running", training=long_training())
    view = walker.wait_for_step(dag_id, run_id, 2)
    walker.cancel(dag_id, run_id)
    walker.eventually("GPUs free", lambda: walker.num_free() == walker.num_gpus(), CANCEL_S)
    walker.no_workers_of(view.run.run_key)
    walker.wait_for_state(dag_id, run_id, JobState.CANCELLED)


@pytest.mark.thorough
def test_cancelling_a_queued_job_takes_it_out_of_the_queue(walker: Walker) -> None:
    holders = [walker.start(f"holder-{n}", training=long_training()) for n in range(4)]
    waiting = None
    while waiting is None:
        dag_id, run_id = walker.start(f"queued-{len(holders)}", training=long_training())
        view = walker.wait_for_state(dag_id, run_id, JobState.QUEUED, JobState.RUNNING)
        waiting = (dag_id, run_id) if view.run.state is JobState.QUEUED else None
        holders += [] if waiting else [(dag_id, run_id)]
    assert view.queue_entry is not None
    assert view.queue_entry.hold is not None, "who waits has a reason"
    walker.cancel(*waiting)
    walker.wait_for_state(*waiting, JobState.CANCELLED)
    assert all(row.run_key != view.run.run_key for row in walker.queue().waiting)
    for holder in holders:
        walker.cancel(*holder)
    walker.eventually("GPUs free", lambda: walker.num_free() == walker.num_gpus(), 2 * CANCEL_S)


@pytest.mark.thorough
def test_cancelling_a_job_while_it_is_moved_leaves_nothing(walker: Walker) -> None:
    training = growing(90, start_step=3, **long_training())
    dag_id, run_id = walker.start("cancel-moving", training=training)
    moving = (JobState.CHECKPOINTING, JobState.RECOVERING)
    view = walker.wait_for_state(dag_id, run_id, *moving)
    walker.cancel(dag_id, run_id)
    walker.wait_for_state(dag_id, run_id, JobState.CANCELLED)
    walker.eventually("GPUs free", lambda: walker.num_free() == walker.num_gpus(), CANCEL_S)
    walker.no_workers_of(view.run.run_key)


@pytest.mark.thorough
def test_a_spec_edited_in_mid_run_changes_nothing_in_that_run(walker: Walker) -> None:
    dag_id, run_id = walker.start("edited", training={"max_steps": 40})
    walker.wait_for_step(dag_id, run_id, 2)
    walker.store(job_text("edited", walker.corpus, training={"max_steps": 9, "learning_rate": 0.5}))
    view = walker.succeed(dag_id, run_id)
    assert view.run.job.training.max_steps == 40
    assert view.attempts[-1].last_step == 40


def test_an_impossible_job_fails_in_its_profile_task_with_what_would_help(walker: Walker) -> None:
    model = {"config": {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1024, "n_layer": 24, "n_head": 16}}
    dag_id, run_id = walker.start("impossible", model={**model, "tokenizer": "byte"})
    view = walker.wait_for_end(dag_id, run_id)
    assert view.run.state is JobState.FAILED_NO_RESOURCE
    assert view.run.reason is not None
    assert view.run.reason.remedy
    assert walker.task(dag_id, run_id, "train.profile")["state"] == "failed"
    assert view.attempts == ()


@pytest.mark.thorough
def test_two_jobs_compete_for_the_last_gpu_and_the_second_has_it_when_the_first_is_gone(walker: Walker) -> None:
    only = {"constraints": {"gpu_types": ["t-large"]}}
    first = walker.start("first-of-two", training=long_training(), elastic="off", **only)
    walker.wait_for_step(*first, 2)
    second = walker.start("second-of-two", **only)
    waiting = walker.wait_for_state(*second, JobState.QUEUED)
    assert waiting.queue_entry is not None
    hold = walker.eventually("a reason to wait", lambda: _hold(walker, second))
    assert hold in (ReasonCode.WAITING_FOR_GPUS, ReasonCode.WAITING_FOR_GPU_MEMORY)
    walker.cancel(*first)
    walker.succeed(*second)


def _hold(walker: Walker, run: tuple[str, str]) -> ReasonCode | None:
    view = walker.view(*run)
    if view is None or view.queue_entry is None or view.queue_entry.hold is None:
        return None
    return view.queue_entry.hold.code


def test_more_jobs_at_once_than_gpus_all_end(walker: Walker) -> None:
    # Six GPUs are of types that a job need not name.
    runs = [walker.start(f"many-{n}", training={"max_steps": 3}) for n in range(7)]
    for run in runs:
        walker.succeed(*run)
    assert walker.num_free() == walker.num_gpus()
