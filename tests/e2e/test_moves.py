"""Memory runs short in real trainings: each rung of the ladder, a real out-of-memory, a real kill.

The snapshots of a callback are the cause that no specification tells. Every test ends with the
job done, its global batch unchanged, and no GPU held.
"""

from __future__ import annotations

import math
import signal

import pytest
from tests.e2e.growing import Moved, check_moves, growing, plans_of, rungs_of
from tests.e2e.together import Run, Together
from tests.e2e.walker import MODEL, Walker, long_training, on_slow_gpus

from frenzy.core.lifecycle.reschedule import Rung
from frenzy.core.runs.ledger import JobState
from frenzy.core.values.errors import ReasonCode


@pytest.fixture(scope="module")
def killed(walker: Walker) -> Run:
    """A run that trains until its test, on GPUs that no other test of these wants at that time."""
    return walker.start("killed", training=long_training(), checkpoint={"every_steps": 4}, constraints=on_slow_gpus(2))


@pytest.mark.usefixtures("killed")
def test_rising_memory_is_forecast_and_the_run_moves_before_it_fails(walker: Walker, moved: Moved) -> None:
    view = moved.view
    check_moves(view)
    first = view.attempts[0]
    assert first.outcome is not None
    assert first.outcome.code is ReasonCode.MEMORY_PRESSURE_FORECAST, plans_of(view)
    assert first.result is not None
    assert first.result.exit_code == 98
    assert view.attempts[-1].plan.gpu_memory_bytes > first.plan.gpu_memory_bytes
    assert all(a.outcome is not None and a.outcome.code is not ReasonCode.BUDGET_EXCEEDED for a in view.attempts)
    check_decide_never_failed(walker, moved.dag_id, moved.run_id)


def test_the_launch_task_holds_its_slots_in_the_pool_of_its_gpu_type_on_every_attempt(moved: Moved) -> None:
    plans = [attempt.plan for attempt in moved.view.attempts[:2]]
    assert [(each.pool, each.num_slots) for each in moved.slots] == [
        (f"gpu_{plan.gpu_type}", plan.num_gpus) for plan in plans
    ]
    assert all(each.num_given >= each.num_slots for each in moved.slots)


def test_a_trainer_killed_in_mid_step_goes_on_from_its_last_checkpoint(walker: Walker, killed: Run) -> None:
    dag_id, run_id = killed
    view = walker.wait_for_step(dag_id, run_id, 9)
    ranks = [each for each in walker.workers_of(view.run.run_key) if not each.children()]
    ranks[-1].send_signal(signal.SIGKILL)
    view = walker.wait_for_step(dag_id, run_id, view.attempts[0].last_step + 1, attempt=2)
    first = view.attempts[0]
    assert first.outcome is not None
    assert first.outcome.code is ReasonCode.WORKER_KILLED
    assert first.result is not None
    assert first.result.exit_code == 137
    walker.cancel(dag_id, run_id)
    walker.wait_for_state(dag_id, run_id, JobState.CANCELLED)


def check_decide_never_failed(walker: Walker, dag_id: str, run_id: str) -> None:
    """A move is no error: not in Airflow's tries, and not in the log that a person opens."""
    decide = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/train.decide"
    tries = walker.http.get(f"{decide}/tries").json()["task_instances"]
    assert [(each["try_number"], each["state"]) for each in tries] == [(1, "success")]
    links = walker.http.get(f"{decide}/links").json()["extra_links"]
    assert set(links) == {"Training", "Plans", "Worker log"}
    assert walker.http.get(links["Worker log"]).text, "a link that leads somewhere"
    log = walker.http.get(f"{decide}/logs/1").text
    assert "this is no error" in log
    assert "Task failed" not in log and "Traceback" not in log


@pytest.mark.thorough
def test_predicted_and_measured_peak_agree_before_growth(walker: Walker, together: Together) -> None:
    (attempt,) = walker.succeed(*together.evaluated).attempts
    assert attempt.explained_peak_bytes is not None
    assert math.isclose(attempt.explained_peak_bytes, attempt.plan.memory.peak_allocated_bytes, rel_tol=0.08)


@pytest.mark.thorough
def test_an_out_of_memory_that_happens_is_recovered_from_the_last_checkpoint(
    walker: Walker, ladder: dict[str, Run]
) -> None:
    view = walker.succeed(*ladder["bursting"])
    check_moves(view)
    assert view.attempts[0].outcome is not None
    assert view.attempts[0].outcome.code is ReasonCode.BUDGET_EXCEEDED
    assert view.attempts[0].result is not None
    assert view.attempts[0].result.exit_code == 96


# test_sweep has the lowest rung.
LADDER = {
    # One long sequence: nothing to cut, but activations to compute again.
    Rung.CHECKPOINTING: {
        "model": {"config": {**MODEL, "n_positions": 512}, "tokenizer": "byte"},
        "data": {"sequence_length": 512},
        "training": growing(40, max_steps=34, global_batch_size=1),
        "constraints": {"gpu_types": ["t-small"], "max_gpus": 1},
    },
    # Deep, short and not to be recomputed: only sharding the weights is left.
    Rung.ZERO_STAGE: {
        "model": {"config": {**MODEL, "n_embd": 320, "n_layer": 8}, "tokenizer": "byte"},
        "data": {"sequence_length": 32},
        "training": growing(3, every_steps=4, max_steps=14, global_batch_size=4, gradient_checkpointing="off"),
        "constraints": {"gpu_types": ["t-slow"]},
    },
}


@pytest.fixture(scope="module")
def ladder(walker: Walker) -> dict[str, Run]:
    """A run for each rung, by its name, and one that nothing warns; they train beside each other."""
    unwarned = {"training": growing(60, max_steps=60), "on_memory_pressure": {"forecast": False, "min_run_s": 0}}
    jobs = {"bursting": unwarned, **{rung.name.lower(): sections for rung, sections in LADDER.items()}}
    return dict(zip(jobs, walker.start_all(jobs), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("rung", LADDER)
def test_each_lower_rung_of_the_ladder_is_really_run(walker: Walker, ladder: dict[str, Run], rung: Rung) -> None:
    view = walker.succeed(*ladder[rung.name.lower()])
    check_moves(view)
    assert rungs_of(view)[0] is rung, plans_of(view)
