"""Parts of Airflow die, people cancel, specs change, jobs compete: nothing is lost or held twice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.e2e.conftest import LEASE_S
from tests.e2e.growing import growing
from tests.e2e.together import Run, Together
from tests.e2e.walker import Walker, job_text, long_training

from frenzy.cli.embedded.stack import COMPONENTS
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ReasonCode

CANCEL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordeal:
    """A run at its end, during which its spec was edited and all of Airflow killed.

    num_free: GPUs when the triggerer had been away for longer than a lease. num_alive: components after the last was
    killed. healthy: all that were, started again.
    """

    view: RunView
    num_free: int
    num_alive: int
    healthy: tuple[str, ...]


@pytest.fixture(scope="module")
def ordeal(walker: Walker) -> Ordeal:
    stack = walker.stack
    run = walker.start("ordeal", training={"max_steps": 200})
    walker.wait_for_step(*run, 3)
    walker.store(job_text("ordeal", walker.corpus, training={"max_steps": 9, "learning_rate": 0.5}))
    stack.kill("triggerer")
    time.sleep(LEASE_S + 5)
    num_free = walker.num_free()
    for name in COMPONENTS:
        stack.kill(name)
    num_alive = sum(each.pid is not None for each in stack.status())
    stack.start()
    healthy = tuple(each.name for each in stack.status() if each.is_healthy)
    return Ordeal(view=walker.succeed(*run), num_free=num_free, num_alive=num_alive, healthy=healthy)


@pytest.mark.thorough
def test_a_run_outlives_the_death_of_every_part_of_airflow(ordeal: Ordeal) -> None:
    assert ordeal.num_alive == 0
    assert ordeal.healthy == tuple(COMPONENTS)
    assert len(ordeal.view.attempts) == 1, "the workers never noticed"


@pytest.mark.thorough
def test_a_lease_of_a_triggerer_away_for_longer_is_suspect_and_not_free(walker: Walker, ordeal: Ordeal) -> None:
    assert ordeal.num_free < walker.num_gpus()


@pytest.mark.thorough
def test_a_spec_edited_in_mid_run_changes_nothing_in_that_run(ordeal: Ordeal) -> None:
    assert ordeal.view.run.job.training.max_steps == 200
    assert ordeal.view.attempts[-1].last_step == 200


@pytest.fixture(scope="module")
def dags(walker: Walker) -> Mapping[str, str]:
    """The DAGs of the jobs below, stored at once: one takes as long to appear as all."""
    only = {"constraints": {"gpu_types": ["t-large"]}}
    too_large = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1024, "n_layer": 24, "n_head": 16}
    jobs: Mapping[str, Mapping[str, Any]] = {
        "first-of-three": {"training": long_training(), **only},
        "second-of-three": only,
        "third-of-three": only,
        "cancel-moving": {"training": growing(90, start_step=3, **long_training())},
        "impossible": {"model": {"config": too_large, "tokenizer": "byte"}},
    }
    texts = [job_text(name, walker.corpus, **sections) for name, sections in jobs.items()]
    return dict(zip(jobs, walker.store_all(texts), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Three jobs want the last GPU of a type: one has it, one waits, one is cancelled while it waits.

    hold: why it waited. waiting: who still did after that, by their keys. second: who had the GPU once its holder was
    cancelled.
    """

    holder: RunView
    cancelled: RunView
    hold: ReasonCode
    waiting: tuple[str, ...]
    second: RunView


@pytest.fixture(scope="module")
def contest(walker: Walker, dags: Mapping[str, str]) -> Contest:
    first = dags["first-of-three"], walker.trigger(dags["first-of-three"])
    walker.wait_for_step(*first, 2)
    second, third = ((dags[each], walker.trigger(dags[each])) for each in ("second-of-three", "third-of-three"))
    # Airflow promises no order: the run triggered first may be the last to be in line.
    walker.eventually("a reason to wait", lambda: _hold(walker, second))
    hold = walker.eventually("a reason to wait", lambda: _hold(walker, third))
    walker.cancel(*third)
    cancelled = walker.wait_for_state(*third, JobState.CANCELLED)
    waiting = tuple(row.run_key for row in walker.queue().waiting)
    walker.cancel(*first)
    holder = walker.wait_for_state(*first, JobState.CANCELLED)
    return Contest(holder=holder, cancelled=cancelled, hold=hold, waiting=waiting, second=walker.succeed(*second))


def test_cancelling_a_queued_job_takes_it_out_of_the_queue(contest: Contest) -> None:
    assert contest.hold in (ReasonCode.WAITING_FOR_GPUS, ReasonCode.WAITING_FOR_GPU_MEMORY)
    assert contest.cancelled.attempts == ()
    assert contest.waiting == (contest.second.run.run_key,)


def test_cancelling_a_running_job_ends_its_processes_and_its_gpu_is_that_of_who_waited(
    walker: Walker, contest: Contest
) -> None:
    walker.no_workers_of(contest.holder.run.run_key)
    (ended,), (begun,) = contest.holder.attempts, contest.second.attempts
    assert ended.placement == begun.placement
    walker.eventually("GPUs free", lambda: walker.num_free() == walker.num_gpus(), CANCEL_S)


def _hold(walker: Walker, run: Run) -> ReasonCode | None:
    view = walker.view(*run)
    if view is None or view.queue_entry is None or view.queue_entry.hold is None:
        return None
    return view.queue_entry.hold.code


@pytest.mark.thorough
def test_cancelling_a_job_while_it_is_moved_leaves_nothing(walker: Walker, dags: Mapping[str, str]) -> None:
    dag_id = dags["cancel-moving"]
    run_id = walker.trigger(dag_id)
    moving = (JobState.CHECKPOINTING, JobState.RECOVERING)
    view = walker.wait_for_state(dag_id, run_id, *moving)
    walker.cancel(dag_id, run_id)
    walker.wait_for_state(dag_id, run_id, JobState.CANCELLED)
    walker.eventually("GPUs free", lambda: walker.num_free() == walker.num_gpus(), CANCEL_S)
    walker.no_workers_of(view.run.run_key)


def test_an_impossible_job_fails_in_its_profile_task_with_what_would_help(
    walker: Walker, dags: Mapping[str, str]
) -> None:
    dag_id = dags["impossible"]
    run_id = walker.trigger(dag_id)
    view = walker.wait_for_end(dag_id, run_id)
    assert view.run.state is JobState.FAILED_NO_RESOURCE
    assert view.run.reason is not None
    assert view.run.reason.remedy
    assert walker.task(dag_id, run_id, "train.profile")["state"] == "failed"
    assert view.attempts == ()


def test_more_jobs_at_once_than_gpus_all_end(walker: Walker, together: Together) -> None:
    for run in together.runs:
        walker.succeed(*run)
    assert walker.num_free() == walker.num_gpus()
