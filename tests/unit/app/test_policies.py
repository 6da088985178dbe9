"""The product's scheduling pass under each policy that an installation can set."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.place import place_status
from frenzy.app.queries import explain, queue_view, run_view
from frenzy.app.queue_snapshot import queue_snapshot
from frenzy.app.reconciliation import reconcile
from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import DirectiveKind, ReconcileReport
from frenzy.core.scheduling import SchedulingState, decide, policy_named
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.job import ConstraintsSpec, TrainingJob, TrainingSpec
from frenzy.settings import PlacementPolicy
from frenzy.sim.engine import simulate
from frenzy.sim.registry import scheduler_named
from frenzy.sim.snapshot import product_scheduler, scenario_of

DONE = 0
MOVES_NOBODY = (PlacementPolicy.BACKFILL, PlacementPolicy.FIFO, PlacementPolicy.FRENZY_PAPER)


def under(airflow: Airflow, policy: str) -> Airflow:
    """The same installation with ``FRENZY_POLICY`` set to ``policy``; jobs may be moved at any time."""
    rules = ElasticRules(min_run_s=0.0, restart_s=1.0)
    return replace(airflow, services=replace(airflow.services, policy=policy_named(policy), elastic=rules))


def on(gpu_type: str, name: str, *, steps: int = 100, priority: int = 0) -> TrainingJob:
    """A job that may only use the two GPUs of one node."""
    return replace(
        make_job(name),
        training=TrainingSpec(max_steps=steps, global_batch_size=8),
        constraints=ConstraintsSpec(gpu_types=(gpu_type,)),
        priority=priority,
    )


def submit(airflow: Airflow, job: TrainingJob) -> Airflow:
    run = airflow.submitted(job)
    run.clock.advance(1)
    return run


def train(airflow: Airflow) -> None:
    """Its first step is done; ten seconds later it reports its twentieth."""
    airflow.launch(1)
    airflow.step(1, 1)
    airflow.clock.advance(10)
    airflow.step(1, 20)


def finish(airflow: Airflow, attempt: int = 1) -> None:
    airflow.launch(attempt)
    airflow.end(attempt, DONE, last_step=100)


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_jobs_start_wait_with_a_reason_and_follow_under_each_policy(airflow: Airflow, policy: PlacementPolicy) -> None:
    home = under(airflow, policy)
    jobs = [submit(home, on("small", f"job{number}")) for number in range(4)]
    unfinished = list(jobs)
    while unfinished:
        for row in queue_view(home.services).waiting:
            assert row.reason is not None
            assert explain(home.services, row.run_key).lines
        first = next(each for each in unfinished if each.is_placed)
        finish(first)
        unfinished.remove(first)
    assert {run_view(each.services, each.key).run.state for each in jobs} == {JobState.SUCCEEDED}


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_a_queue_goes_on_in_the_simulator_under_the_policy_that_is_set(
    airflow: Airflow, policy: PlacementPolicy
) -> None:
    home = under(airflow, policy)
    for number in range(3):
        submit(home, on("small", f"job{number}"))
    snapshot = queue_snapshot(home.services)
    assert product_scheduler(snapshot).rules == home.services.policy
    assert len(scenario_of(snapshot).jobs) + len(scenario_of(snapshot).running) == 3


def test_a_job_that_only_starts_is_moved_later_when_its_queue_is_simulated(airflow: Airflow) -> None:
    home = under(airflow, PlacementPolicy.HAS)
    long = submit(home, on("small", "long", steps=100_000))
    submit(home, on("small", "short", steps=10))
    (starting,) = queue_snapshot(home.services).facts.running
    assert (starting.run_key, starting.elasticity is None, len(starting.plans) > 1) == (long.key, False, True)
    result = simulate(scenario_of(queue_snapshot(home.services)), scheduler_named("has"))
    ends = {job.job_name: job.end_s or 0.0 for job in result.jobs}
    assert ends["short"] < ends["long"]


@pytest.mark.parametrize("policy", MOVES_NOBODY)
def test_a_policy_that_moves_nobody_lets_a_long_job_run_on(airflow: Airflow, policy: PlacementPolicy) -> None:
    home = under(airflow, policy)
    longs = [submit(home, on("small", f"long{number}", steps=100_000)) for number in range(2)]
    for long in longs:
        if long.is_placed:
            train(long)
    submit(home, on("small", "short", steps=10, priority=5))
    reconcile(home.services, ReconcileReport(findings=()))
    for long in longs:
        if long.is_placed:
            assert long.step(1, 21).kind is DirectiveKind.CONTINUE


def test_fifo_starts_in_order_of_submission_though_a_later_job_would_fit(airflow: Airflow) -> None:
    home = under(airflow, PlacementPolicy.FIFO)
    jobs = [submit(home, on("small", name, steps=steps)) for name, steps in (("a", 900), ("b", 800), ("c", 700))]
    other = submit(home, on("large", "other", steps=1))
    assert [each.is_placed for each in (*jobs, other)] == [True, True, False, False]
    told = place_status(other.services, other.key).reason
    assert told is not None
    assert (told.code, "c is first in line" in told.sentence) == (ReasonCode.WAITING_BEHIND_HEAD, True)
    finish(jobs[1])
    assert [each.is_placed for each in (jobs[2], other)] == [True, True]


@pytest.mark.parametrize("policy", [each for each in PlacementPolicy if each is not PlacementPolicy.FRENZY_PAPER])
def test_the_simulator_decides_what_the_product_decides(airflow: Airflow, policy: PlacementPolicy) -> None:
    home = under(airflow, policy)
    train(submit(home, on("small", "long", steps=100_000)))
    for number in range(3):
        submit(home, on("small", f"short{number}", steps=10))
    simulated, snapshot = scheduler_named(policy), queue_snapshot(home.services)
    assert simulated.decide(SchedulingState.of(snapshot.facts, simulated.rules), snapshot.taken_s) == decide(
        snapshot.facts, snapshot.taken_s, home.services.policy
    )
