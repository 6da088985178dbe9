"""Which running jobs the scheduler may move, what it is told of them, and what is told of a move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.app.moving import (
    STOPPED,
    ScriptedScheduler,
    a_pass,
    on_a,
    on_small,
    pinned,
    plan_of,
    preempt,
    resize,
    run_on,
    running_job,
    set_node,
)
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.observe import report_progress
from frenzy.app.queries import explain, queue_view, run_view
from frenzy.app.reconciliation import reconcile_targets
from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import ProgressReport
from frenzy.core.values.cluster import NodeAllocation, NodeState, Placement
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.scheduling_facts import Resize, Start
from frenzy.core.values.units import MIB


def test_a_running_job_tells_the_scheduler_what_it_takes_to_move_it(long: Airflow) -> None:
    assert (running_job(long).work_left, running_job(long).work_done) == (0.8, 0.2)
    long.clock.advance(10)
    job = running_job(long)
    run = run_view(long.services, long.key).run
    assert (job.submitted_s, job.objective) == (run.created_s, run.job.objective)
    assert job.ready_s == long.clock.now_s() - 10
    assert job.work_left - job.progress(long.clock.now_s()) == pytest.approx(0.8)
    assert job.plan in job.plans
    assert {plan.num_gpus for plan in job.plans} == {1, 2}
    assert job.elasticity is not None
    assert job.elasticity.restart_s == 5.0  # measured: granted, and five seconds later the first step
    assert job.elasticity.moves_left == 3


def test_work_is_counted_from_the_checkpoint_that_the_plans_were_made_for(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    resize(long, scheduler, 1)
    long.clock.advance(3)
    long.end(1, STOPPED, last_step=60)
    long.decide()
    long.place()
    long.launch(2)
    long.clock.advance(7)
    long.step(2, 80)
    job = running_job(long)
    assert job.work_left == pytest.approx(0.5)
    assert job.work_done == pytest.approx(80 / 40)
    assert job.elasticity is not None
    assert job.elasticity.restart_s == 10.0  # seven seconds to the first step, three to the end before


@pytest.mark.parametrize(
    "job",
    [
        replace(on_small("stays"), elastic="off"),
        on_small("stays", max_reschedules=0),
    ],
    ids=["switched off", "no reschedules"],
)
def test_a_job_whose_user_does_not_want_it_moved_is_not_moved(
    airflow: Airflow, scheduler: ScriptedScheduler, job: TrainingJob
) -> None:
    stays = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(stays, scheduler, job, 2, step=20)
    assert pinned(stays)
    preempt(stays, scheduler)
    assert run_view(stays.services, stays.key).run.state is JobState.RUNNING


def test_a_job_that_has_done_its_last_step_is_not_moved(long: Airflow) -> None:
    long.step(1, 99)
    assert not pinned(long)
    long.step(1, 100)
    assert pinned(long)


def test_a_job_that_goes_on_beyond_its_estimated_steps_can_be_moved(long: Airflow) -> None:
    with long.services.ledger.transaction() as tx:
        tx.put_run(replace(run_view(long.services, long.key).run, total_steps=50))
    long.step(1, 51)
    assert not pinned(long)


def test_of_two_jobs_of_one_name_that_change_places_each_is_told_which_run_the_other_is(
    airflow: Airflow, scheduler: ScriptedScheduler
) -> None:
    services = replace(airflow.services, schedule=scheduler, elastic=ElasticRules(min_run_s=0.0))
    first, second = replace(airflow, services=services), replace(airflow.another(), services=services)
    first.register(on_small("mine"), run_id="r1")
    second.register(on_small("mine"), run_id="r2")
    scheduler.script = lambda facts: tuple(
        Start(run_key=each.run_key, plan=plan_of(each.plans, 1), placement=on_a(1)) for each in facts.queued
    )
    for run in (first, second):
        run.place()
        run.launch(1)
        run.clock.advance(5)
        run.step(1, 20)
    scheduler.script = lambda facts: tuple(
        Resize(run_key=each.run_key, plan=plan_of(each.plans, 2), placement=on_a(2)) for each in facts.running
    )
    a_pass(first)
    reasons = [run_view(run.services, run.key).run.reason for run in (first, second)]
    for reason, other in zip(reasons, (second, first), strict=True):
        assert reason is not None
        assert f"as job mine (run {other.key}) moves to GPUs that it leaves" in reason.sentence
        assert "can start" not in reason.sentence


def test_no_job_is_moved_where_the_setting_is_off(long: Airflow) -> None:
    assert pinned(replace(long, services=replace(long.services, elastic=ElasticRules(enabled=False))))


def test_a_job_whose_memory_grows_keeps_its_plan_but_gives_way(long: Airflow, scheduler: ScriptedScheduler) -> None:
    before = running_job(long)
    assert len(before.plans) > 1
    report_progress(long.services, long.key, 1, ProgressReport(last_step=21, growth_step=20))
    job = running_job(long)
    assert job.plans == (before.plan,)
    assert not pinned(long)
    preempt(long, scheduler)
    long.end(1, STOPPED, last_step=22)
    outcome = run_view(long.services, long.key).attempts[0].outcome
    assert outcome is not None
    assert outcome.code is ReasonCode.PREEMPTED


def test_what_a_job_holds_beyond_its_requirement_goes_on_with_it(long: Airflow, scheduler: ScriptedScheduler) -> None:
    plan = running_job(long).plan
    measured = plan.memory.required_bytes + 5 * MIB
    report_progress(
        long.services, long.key, 1, ProgressReport(last_step=21, peaks=PeakMemory(allocated_bytes=measured))
    )
    assert not pinned(long)
    preempt(long, scheduler)
    long.end(1, STOPPED, last_step=22)
    following = long.decide().next_attempt
    assert following is not None
    assert following.extra_bytes_per_gpu == measured - plan.memory.peak_allocated_bytes


def test_a_job_before_its_first_step_is_not_moved(airflow: Airflow) -> None:
    airflow.register(make_job())
    airflow.place()
    airflow.launch(1)
    assert pinned(airflow)
    job = running_job(airflow)
    assert job.ready_s == job.started_s + airflow.services.elastic.restart_s


def test_a_job_leaves_a_drained_node_at_a_checkpoint(anywhere: Airflow, scheduler: ScriptedScheduler) -> None:
    job = anywhere
    set_node(job, NodeState.DRAINING)
    large = plan_of(running_job(job).plans, 1, "large")
    target = Placement(allocations=(NodeAllocation(node="b", num_gpus=1),))
    scheduler.script = lambda facts: (Resize(run_key=job.key, plan=large, placement=target),)
    a_pass(job)
    scheduler.script = None
    job.end(1, STOPPED, last_step=22)
    assert job.decide().reason.code is ReasonCode.MOVED_TO_OTHER_GPUS
    spec = job.place().spec
    assert spec is not None
    assert spec.placement == target


def test_a_job_on_a_lost_node_cannot_be_asked_to_stop(long: Airflow) -> None:
    set_node(long, NodeState.LOST)
    assert pinned(long)


def test_a_job_that_is_not_heard_of_is_taken_to_be_where_it_was(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    long.clock.advance(61)
    reconcile_targets(long.services)
    assert running_job(long).placement == on_a(2)
    assert pinned(long)


def test_a_job_that_is_not_heard_of_is_not_asked(long: Airflow, scheduler: ScriptedScheduler) -> None:
    long.clock.advance(61)
    reconcile_targets(long.services)
    assert pinned(long)
    preempt(long, scheduler)
    assert run_view(long.services, long.key).run.state is JobState.RUNNING


def test_a_move_under_way_is_told(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    lines = explain(long.services, long.key).lines
    assert any("saving a checkpoint to stop: MOVED_TO_SHRINK" in line for line in lines)
    (row,) = queue_view(long.services).running
    assert row.reason is not None
    assert row.reason.code is ReasonCode.MOVED_TO_SHRINK
    assert any("MOVED_TO_SHRINK" in event.text for event in run_view(long.services, long.key).events)


def test_a_running_job_is_told_which_of_its_plans_it_has(long: Airflow) -> None:
    lines = explain(long.services, long.key).lines
    assert any(line.startswith("It runs number ") or line.startswith("It runs the best of its ") for line in lines)


def test_a_pass_happens_when_a_job_can_be_moved_from_now_on(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    rules = ElasticRules(min_run_s=10.0)
    job = replace(airflow, services=replace(airflow.services, schedule=scheduler, elastic=rules))
    run_on(job, scheduler, on_small("job"), 2, step=1)
    first_step_s = job.clock.now_s()
    passes = len(scheduler.seen)
    for second, number in ((9, 2), (2, 3), (2, 4)):
        job.clock.advance(second)
        progress = ProgressReport(last_step=number, step_time_s=1.0, first_step_s=first_step_s)
        report_progress(job.services, job.key, 1, progress)
    assert len(scheduler.seen) == passes + 1
