"""A run walks from its spec to its end, whatever happens on the way, and holds no GPU afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.app.playing import Airflow, make_job, small_cluster

from frenzy.adapters.memory import FixedInventory, InMemoryLedger
from frenzy.app.cancel import cancel
from frenzy.app.observe import attempt_launching
from frenzy.app.place import place_status
from frenzy.app.queries import explain, gpus_view, queue_view, run_view
from frenzy.app.settle import UnsettledError, end_attempt
from frenzy.app.sweep import apply_sweep, sweep_targets
from frenzy.core.cluster import Cluster, NodeAllocation, Placement
from frenzy.core.errors import Reason, ReasonCode
from frenzy.core.launch import AttemptResult
from frenzy.core.ledger import JobState, LeaseState
from frenzy.core.protocol import DirectiveKind, EndReport, PlaceStatus, SweepFinding, SweepReport, VerdictKind
from frenzy.core.queue import Start
from frenzy.core.units import GIB, MIB
from frenzy.ports import WorkersState

BY_USER = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Pressed by a test.")


def free_gpus(airflow: Airflow) -> int:
    return sum(row.num_free for row in gpus_view(airflow.services).types)


def running(airflow: Airflow, job_name: str = "job", **job: int) -> Airflow:
    airflow.register(make_job(job_name, **job))
    airflow.place()
    airflow.launch(1)
    airflow.step(1, 1)
    return airflow


def test_an_undisturbed_run_succeeds_and_frees_its_gpus(airflow: Airflow) -> None:
    assert airflow.register(make_job()).run.state is JobState.PLANNED
    placed = airflow.place()
    assert placed.status is PlaceStatus.PLACED
    assert placed.spec is not None
    assert placed.spec.attempt == 1
    assert airflow.launch(1).kind is DirectiveKind.CONTINUE
    airflow.step(1, 1)
    assert run_view(airflow.services, airflow.key).run.state is JobState.RUNNING
    airflow.end(1, 0, last_step=100)
    assert airflow.decide().kind is VerdictKind.DONE
    assert free_gpus(airflow) == 4


def test_pressure_moves_the_run_to_a_plan_with_more_room(airflow: Airflow) -> None:
    running(airflow)
    first = run_view(airflow.services, airflow.key).attempts[0].plan
    extra = first.gpu_memory_bytes - first.memory.peak_allocated_bytes
    assert airflow.press(1, extra=extra).kind is DirectiveKind.CHECKPOINT_AND_STOP
    airflow.end(1, 98)
    assert airflow.decide().kind is VerdictKind.RETRY
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.attempt == 2
    second = placed.spec.plan
    assert second.shape != first.shape
    assert second.global_batch_size == first.global_batch_size
    assert second.gpu_memory_bytes - second.memory.peak_allocated_bytes > extra


def test_pressure_is_not_acted_upon_when_no_plan_has_more_room(airflow: Airflow) -> None:
    running(airflow)
    assert airflow.press(1, extra=100 * GIB).kind is DirectiveKind.CONTINUE
    view = run_view(airflow.services, airflow.key)
    assert view.run.state is JobState.RUNNING
    assert any("NO_OTHER_PLAN" in event.text for event in view.events)


def test_pressure_is_not_acted_upon_when_the_forecast_is_off(airflow: Airflow) -> None:
    running(airflow, forecast=False)
    assert airflow.press(1, extra=MIB).kind is DirectiveKind.CONTINUE


def test_out_of_memory_recovers_on_another_plan(airflow: Airflow) -> None:
    running(airflow)
    first = run_view(airflow.services, airflow.key).attempts[0].plan
    airflow.end(1, 97)
    assert airflow.decide().kind is VerdictKind.RETRY
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.plan.shape != first.shape


def test_a_killed_worker_is_retried_and_a_repeated_crash_fails(airflow: Airflow) -> None:
    running(airflow, max_reschedules=50)
    for attempt in (1, 2):
        airflow.end(attempt, 137, last_step=5)
        assert airflow.decide().kind is VerdictKind.RETRY
        airflow.place()
        airflow.launch(attempt + 1)
    airflow.end(3, 137, last_step=5)
    verdict = airflow.decide()
    assert verdict.kind is VerdictKind.FAIL
    assert run_view(airflow.services, airflow.key).run.state is JobState.FAILED


def test_the_budget_of_moves_bounds_recovery(airflow: Airflow) -> None:
    running(airflow, max_reschedules=0)
    airflow.end(1, 97)
    verdict = airflow.decide()
    assert verdict.kind is VerdictKind.FAIL
    assert verdict.reason.code is ReasonCode.RESCHEDULE_BUDGET_SPENT
    assert run_view(airflow.services, airflow.key).run.state is JobState.FAILED_OOM


def test_decide_asked_again_says_the_same(airflow: Airflow) -> None:
    running(airflow)
    airflow.end(1, 97)
    assert airflow.decide() == airflow.decide()


def test_enqueue_and_end_repeated_change_nothing(airflow: Airflow) -> None:
    running(airflow)
    assert airflow.place().spec == airflow.place().spec
    once = airflow.end(1, 0, last_step=100)
    assert airflow.end(1, 97) == once
    assert free_gpus(airflow) == 4


def test_registering_again_keeps_the_frozen_spec(airflow: Airflow) -> None:
    before = airflow.register(make_job(batch=8))
    after = airflow.register(make_job(batch=16))
    assert after.run.job == before.run.job


def test_a_job_that_fits_nowhere_is_refused_with_a_remedy(airflow: Airflow) -> None:
    job = make_job()
    tight = job.__class__(
        **{
            **{name: getattr(job, name) for name in job.__dataclass_fields__},
            "constraints": job.constraints.__class__(gpu_types=("no-such-type",)),
        }
    )
    view = airflow.register(tight)
    assert view.run.state is JobState.FAILED_NO_RESOURCE
    assert view.run.reason is not None
    assert view.run.reason.remedy


def test_two_jobs_for_the_last_gpus_run_one_after_the_other(airflow: Airflow) -> None:
    others = [airflow.another() for _ in range(8)]
    for index, each in enumerate(others):
        each.register(make_job(f"job{index}"), run_id=f"r{index}")
        each.place()
    view = queue_view(airflow.services)
    assert view.waiting, "more jobs than GPUs: one must wait"
    assert all(row.reason is not None for row in view.waiting)
    assert [row.position for row in view.waiting] == list(range(1, len(view.waiting) + 1))
    waiter = next(each for each in others if each.key == view.waiting[0].run_key)
    for each in others:
        if each is not waiter and place_status(each.services, each.key).status is PlaceStatus.PLACED:
            each.launch(1)
            each.end(1, 0, last_step=100)
    assert place_status(waiter.services, waiter.key).status is PlaceStatus.PLACED


def test_a_queued_run_is_cancelled_at_once(airflow: Airflow) -> None:
    airflow.register(make_job())
    cancel(airflow.services, airflow.key, BY_USER)
    assert run_view(airflow.services, airflow.key).run.state is JobState.CANCELLED


def test_a_placed_run_that_never_launched_frees_its_gpus_at_once(airflow: Airflow) -> None:
    airflow.register(make_job())
    airflow.place()
    cancel(airflow.services, airflow.key, BY_USER)
    assert free_gpus(airflow) == 4
    assert airflow.launch(1).kind is DirectiveKind.ENDED


def test_a_running_run_holds_its_gpus_until_its_workers_are_gone(airflow: Airflow) -> None:
    running(airflow)
    cancel(airflow.services, airflow.key, BY_USER)
    assert free_gpus(airflow) < 4
    assert airflow.step(1, 2).kind is DirectiveKind.KILL
    airflow.end(1, 137)
    assert free_gpus(airflow) == 4
    assert run_view(airflow.services, airflow.key).run.state is JobState.CANCELLED
    assert airflow.decide().kind is VerdictKind.FAIL


def test_a_cancelled_run_that_finished_first_counts_as_done(airflow: Airflow) -> None:
    running(airflow)
    cancel(airflow.services, airflow.key, BY_USER)
    airflow.end(1, 0, last_step=100)
    assert run_view(airflow.services, airflow.key).run.state is JobState.SUCCEEDED


def test_an_overdue_lease_is_suspect_and_still_holds_its_gpus(airflow: Airflow) -> None:
    running(airflow)
    airflow.clock.advance(61)
    (target,) = sweep_targets(airflow.services)
    assert target.suspect
    assert free_gpus(airflow) < 4
    airflow.step(1, 2)
    lease = run_view(airflow.services, airflow.key).lease
    assert lease is not None
    assert lease.state is LeaseState.LIVE


def test_a_suspect_lease_is_released_once_its_workers_are_proved_gone(airflow: Airflow) -> None:
    running(airflow)
    airflow.clock.advance(61)
    sweep_targets(airflow.services)
    alive = SweepFinding(run_key=airflow.key, attempt=1, workers=WorkersState.ALIVE)
    apply_sweep(airflow.services, SweepReport(findings=(alive,)))
    assert free_gpus(airflow) < 4
    gone = SweepFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE)
    summary = apply_sweep(airflow.services, SweepReport(findings=(gone,)))
    assert summary.num_released == 1
    assert free_gpus(airflow) == 4
    assert airflow.decide().kind is VerdictKind.RETRY


def test_workers_that_are_gone_like_their_launch_task_are_released_though_a_monitor_renews_the_lease(
    airflow: Airflow,
) -> None:
    running(airflow)
    gone = SweepFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE)
    apply_sweep(airflow.services, SweepReport(findings=(gone,)))
    assert free_gpus(airflow) < 4, "its launch task is about to report it"
    assert isinstance(airflow.services.ledger, InMemoryLedger)
    airflow.services.ledger.over_launches.add(run_view(airflow.services, airflow.key).run.identity)
    apply_sweep(airflow.services, SweepReport(findings=(gone,)))
    assert free_gpus(airflow) == 4


def test_the_sweep_takes_the_workers_own_account_where_they_left_one(airflow: Airflow) -> None:
    running(airflow)
    airflow.clock.advance(61)
    sweep_targets(airflow.services)
    done = AttemptResult(exit_code=0, last_step=100, total_steps=100)
    gone = SweepFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE, result=done)
    apply_sweep(airflow.services, SweepReport(findings=(gone,)))
    assert run_view(airflow.services, airflow.key).run.state is JobState.SUCCEEDED


def test_decide_waits_for_workers_that_are_not_proved_gone(airflow: Airflow) -> None:
    running(airflow)
    with pytest.raises(UnsettledError):
        airflow.decide()


def test_a_launch_that_never_began_is_tried_again_and_not_charged(airflow: Airflow) -> None:
    airflow.register(make_job(max_reschedules=0))
    airflow.place()
    assert airflow.decide().kind is VerdictKind.RETRY
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.attempt == 2


def sweep_at(airflow: Airflow, seconds: float) -> None:
    """So long later a sweep finds that no worker was started."""
    airflow.clock.advance(seconds)
    sweep_targets(airflow.services)
    nobody = SweepFinding(run_key=airflow.key, attempt=1, workers=WorkersState.NOT_STARTED)
    apply_sweep(airflow.services, SweepReport(findings=(nobody,)))


def test_a_launch_task_that_an_executor_has_yet_to_begin_keeps_its_gpus(airflow: Airflow) -> None:
    airflow.register(make_job())
    airflow.place()
    sweep_at(airflow, 1800)
    assert free_gpus(airflow) < 4
    assert airflow.launch(1).kind is DirectiveKind.CONTINUE


@pytest.mark.parametrize(("launch_is_over", "waited_s"), [(True, 241), (False, 3601)])
def test_a_launch_that_does_not_come_gives_its_gpus_back_and_is_not_charged(
    airflow: Airflow, launch_is_over: bool, waited_s: float
) -> None:
    identity = airflow.register(make_job(max_reschedules=0)).run.identity
    airflow.place()
    if launch_is_over:
        assert isinstance(airflow.services.ledger, InMemoryLedger)
        airflow.services.ledger.over_launches.add(identity)
    sweep_at(airflow, waited_s)
    assert free_gpus(airflow) == 4
    assert airflow.launch(1).kind is DirectiveKind.ENDED, "should it come after all"
    assert airflow.decide().kind is VerdictKind.RETRY
    run = run_view(airflow.services, airflow.key).run
    assert (run.num_reschedules, run.state) == (0, JobState.RECOVERING)


def begun(airflow: Airflow) -> Airflow:
    """A placed run whose launch task was told to start workers, and has not come to it yet."""
    airflow.register(make_job())
    airflow.place()
    assert attempt_launching(airflow.services, airflow.key, 1).kind is DirectiveKind.CONTINUE
    return airflow


def test_a_sweep_that_looked_before_the_workers_began_frees_no_gpus_under_them(airflow: Airflow) -> None:
    begun(airflow)
    cancel(airflow.services, airflow.key, BY_USER)
    (target,) = sweep_targets(airflow.services)
    assert target.stop
    nobody = SweepFinding(run_key=airflow.key, attempt=1, workers=WorkersState.NOT_STARTED)
    apply_sweep(airflow.services, SweepReport(findings=(nobody,)))
    assert free_gpus(airflow) < 4, "they may begin at any moment"
    apply_sweep(airflow.services, SweepReport(findings=(replace(nobody, workers=WorkersState.GONE),)))
    assert free_gpus(airflow) == 4
    assert run_view(airflow.services, airflow.key).run.state is JobState.CANCELLED


def test_a_launch_task_that_began_and_ended_without_workers_gives_its_gpus_back(airflow: Airflow) -> None:
    begun(airflow)
    assert isinstance(airflow.services.ledger, InMemoryLedger)
    airflow.services.ledger.over_launches.add(run_view(airflow.services, airflow.key).run.identity)
    sweep_at(airflow, 241)
    assert free_gpus(airflow) == 4


def test_a_launch_task_that_is_stuck_before_its_workers_is_stopped_by_the_next_sweep(airflow: Airflow) -> None:
    begun(airflow)
    sweep_at(airflow, 3601)
    assert free_gpus(airflow) < 4
    (target,) = sweep_targets(airflow.services)
    assert target.stop
    assert attempt_launching(airflow.services, airflow.key, 1).kind is DirectiveKind.KILL


def test_a_run_that_failed_runs_again_when_its_tasks_are_cleared(airflow: Airflow) -> None:
    running(airflow, max_reschedules=0)
    airflow.end(1, 97)
    airflow.decide()
    airflow.clock.advance(10)
    assert airflow.register(make_job(batch=16)).run.state is JobState.PLANNED
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.attempt == 2
    assert placed.spec.job.training.global_batch_size == 16


def test_every_state_has_an_explanation(airflow: Airflow) -> None:
    running(airflow)
    lines = explain(airflow.services, airflow.key).lines
    assert lines[0] == "Job 'job' is RUNNING."
    assert any("Attempt 1" in line for line in lines)


def test_a_gpu_type_that_leaves_the_inventory_while_held_stays_known(airflow: Airflow) -> None:
    running(airflow)
    view = run_view(airflow.services, airflow.key)
    assert view.lease is not None
    gone = view.lease.gpu_type
    whole = small_cluster()
    left = Cluster(
        gpu_types=tuple(each for each in whole.gpu_types if each.name != gone),
        nodes=tuple(each for each in whole.nodes if each.gpu_type != gone),
    )
    assert isinstance(airflow.services.inventory, FixedInventory)
    airflow.services.inventory.replace(left)
    (target,) = sweep_targets(airflow.services)
    assert target.spec.gpu.name == gone
    assert place_status(airflow.services, airflow.key).spec is not None
    apply_sweep(airflow.services, SweepReport(findings=()))
    airflow.end(1, 0, last_step=100)
    sweep_targets(airflow.services)
    assert [row.gpu_type for row in gpus_view(airflow.services).types] == [each.name for each in left.gpu_types]


def test_the_sweep_ends_an_attempt_whose_workers_left_an_account_that_nobody_reports(airflow: Airflow) -> None:
    running(airflow)
    done = AttemptResult(exit_code=0, last_step=100, total_steps=100)
    gone = SweepFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE, result=done)
    apply_sweep(airflow.services, SweepReport(findings=(gone,)))
    assert run_view(airflow.services, airflow.key).run.state is JobState.SUCCEEDED
    assert free_gpus(airflow) == 4


def test_a_refused_lease_does_not_undo_the_end_of_another_run(airflow: Airflow) -> None:
    running(airflow, "first", batch=1)
    others = [airflow.another() for _ in range(8)]
    for number, each in enumerate(others):
        each.register(make_job(f"other-{number}"))
        each.place()
    (waiting, *_) = [e for e in others if place_status(e.services, e.key).status is PlaceStatus.WAITING]
    with airflow.services.ledger.reading() as tx:
        entry = tx.queue_entry(waiting.key)
    assert entry is not None
    nowhere = Placement(allocations=(NodeAllocation(node="no such node", num_gpus=1),))
    start = Start(run_key=waiting.key, plan=entry.plans[0], placement=nowhere)
    services = replace(airflow.services, schedule=lambda facts, now_s, policy: (start,))
    assert replace(airflow, services=services).end(1, 0, last_step=100).run.state is JobState.SUCCEEDED
    assert place_status(waiting.services, waiting.key).status is PlaceStatus.WAITING


def test_a_second_alarm_does_not_replace_the_reason_of_a_stop(airflow: Airflow) -> None:
    running(airflow)
    with pytest.raises(UnsettledError):
        airflow.decide()
    assert airflow.press(1, extra=MIB).kind is DirectiveKind.KILL
    assert run_view(airflow.services, airflow.key).run.state is JobState.RUNNING


def test_workers_that_did_not_stop_in_time_are_moved_all_the_same(airflow: Airflow) -> None:
    running(airflow)
    first = run_view(airflow.services, airflow.key).attempts[0].plan
    assert airflow.press(1, extra=MIB).kind is DirectiveKind.CHECKPOINT_AND_STOP
    airflow.end(1, 137)
    assert airflow.decide().reason.code is ReasonCode.MEMORY_PRESSURE_FORECAST
    placed = airflow.place()
    assert placed.spec is not None
    assert placed.spec.plan.shape != first.shape


def test_a_clock_that_is_set_back_loses_no_attempt(airflow: Airflow) -> None:
    airflow.register(make_job(max_reschedules=1))
    airflow.clock.advance(-5)
    airflow.place()
    for attempt in (1, 2):
        airflow.launch(attempt)
        airflow.end(attempt, 97)
        verdict = airflow.decide()
        airflow.place()
    assert verdict.reason.code is ReasonCode.RESCHEDULE_BUDGET_SPENT


def test_the_trainers_own_count_of_steps_replaces_the_estimate(airflow: Airflow) -> None:
    running(airflow)
    result = AttemptResult(exit_code=98, last_step=10, total_steps=90)
    end_attempt(airflow.services, airflow.key, 1, EndReport(result=result))
    assert run_view(airflow.services, airflow.key).run.total_steps == 90
    assert run_view(airflow.services, airflow.key).run.state is JobState.RECOVERING


def test_a_crash_in_a_cluster_that_is_gone_is_not_called_a_lack_of_memory(airflow: Airflow) -> None:
    running(airflow)
    assert isinstance(airflow.services.inventory, FixedInventory)
    airflow.services.inventory.replace(Cluster(gpu_types=(), nodes=()))
    airflow.end(1, 137)
    sweep_targets(airflow.services)
    verdict = airflow.decide()
    assert verdict.kind is VerdictKind.FAIL
    assert "no plan fits the cluster any more" in verdict.reason.sentence
