"""What the scheduler asks of running jobs really happens: at a checkpoint, once, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.app.moving import (
    DONE,
    FOR_ANOTHER,
    KILLED,
    OUT_OF_MEMORY,
    STOPPED,
    ScriptedScheduler,
    a_pass,
    facts_of,
    moves,
    on_a,
    on_small,
    plan_of,
    preempt,
    resize,
    run_on,
    running_job,
)
from tests.unit.app.playing import Airflow

from frenzy.app.cancellation import cancel
from frenzy.app.place import place_status
from frenzy.app.queries import gpus_view, run_view
from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import DirectiveKind, PlaceStatus, VerdictKind
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Action, Preempt, Resize, SchedulingFacts, Start
from frenzy.core.values.units import MIB


def test_a_resize_stops_the_job_at_a_checkpoint_and_goes_on_from_there(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    resize(long, scheduler, 1)
    view = run_view(long.services, long.key)
    assert view.run.state is JobState.CHECKPOINTING
    assert view.run.reason is not None
    assert view.run.reason.code is ReasonCode.MOVED_TO_SHRINK
    told = long.step(1, 21)
    assert (told.kind, told.reason) == (DirectiveKind.CHECKPOINT_AND_STOP, view.run.reason)
    long.end(1, STOPPED, last_step=22)
    assert long.decide().kind is VerdictKind.RETRY
    spec = long.place().spec
    assert spec is not None
    assert (spec.attempt, spec.plan.gpu_type, spec.plan.num_gpus) == (2, "small", 1)
    assert spec.plan.global_batch_size == 8
    second = run_view(long.services, long.key).attempts[1]
    assert second.next_attempt.checkpoint_step == 22


def test_the_same_move_is_not_made_twice_while_one_is_under_way(long: Airflow, scheduler: ScriptedScheduler) -> None:
    again = running_job(long)
    resize(long, scheduler, 1)
    before = run_view(long.services, long.key)
    scheduler.script = lambda facts: (
        Resize(run_key=long.key, plan=plan_of(again.plans, 1), placement=on_a(1)),
        Preempt(run_key=long.key, reason=FOR_ANOTHER),
    )
    long.clock.advance(1)
    a_pass(long)
    assert run_view(long.services, long.key) == before


def test_where_a_job_is_already_it_is_not_moved_to(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 2)
    assert run_view(long.services, long.key).run.state is JobState.RUNNING


def test_moves_leave_the_users_budget_of_reschedules_alone(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    services = replace(airflow.services, schedule=scheduler, elastic=ElasticRules(min_run_s=0.0))
    job = replace(airflow, services=services)
    run_on(job, scheduler, on_small("moved", max_reschedules=1), 2, step=20)
    for attempt in moves(job, scheduler, iter([1, 2, 1])):
        last = attempt
    assert run_view(job.services, job.key).run.num_reschedules == 0
    job.end(last, KILLED, last_step=30)
    assert job.decide().kind is VerdictKind.RETRY
    job.place()
    job.launch(last + 1)
    job.end(last + 1, KILLED, last_step=31)
    assert job.decide().reason.code is ReasonCode.RESCHEDULE_BUDGET_SPENT


def test_moves_have_a_budget_of_their_own_that_refills_with_running(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    left = []
    for _ in moves(long, scheduler, iter([1, 2])):
        elastic = running_job(long).elasticity
        assert elastic is not None
        left.append(elastic.moves_left)
    assert left == [2.0, 1.0]
    long.clock.advance(long.services.elastic.refill_s)
    resize(long, scheduler, 1)
    long.end(3, STOPPED, last_step=30)
    long.decide()
    long.place()
    long.launch(4)
    long.step(4, 31)
    elastic = running_job(long).elasticity
    assert elastic is not None
    assert elastic.moves_left == pytest.approx(1.0)


def waiting_short(long: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    """A short job that is to start on the GPU that ``long`` is to give up, both decided in one pass."""
    short = long.another()
    short.register(on_small("short"), run_id="r2")
    one = plan_of(running_job(long).plans, 1)

    def shrink_and_start(facts: SchedulingFacts) -> tuple[Action, ...]:
        queued = {each.run_key: each for each in facts.queued}
        start = Start(run_key=short.key, plan=plan_of(queued[short.key].plans, 1), placement=on_a(1))
        return (start, Resize(run_key=long.key, plan=one, placement=on_a(1)))

    scheduler.script = shrink_and_start
    assert short.place().status is PlaceStatus.WAITING
    scheduler.script = None
    return short


def test_a_start_on_gpus_that_a_moving_job_still_holds_waits_until_they_are_free(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    short = waiting_short(long, scheduler)
    told = place_status(short.services, short.key)
    assert told.reason is not None
    assert told.reason.code is ReasonCode.WAITING_FOR_MOVE
    assert "job long has saved a checkpoint and left a" in told.reason.sentence
    reason = run_view(long.services, long.key).run.reason
    assert reason is not None
    assert "so that job short can start" in reason.sentence
    a_pass(long)
    assert place_status(short.services, short.key).status is PlaceStatus.WAITING
    assert sum(row.num_free for row in gpus_view(long.services).types if row.gpu_type == "small") == 0
    long.end(1, STOPPED, last_step=22)
    assert place_status(short.services, short.key).status is PlaceStatus.PLACED
    assert place_status(short.services, short.key).spec is not None
    long.decide()
    spec = long.place().spec
    assert spec is not None
    assert spec.plan.num_gpus == 1


def test_the_place_a_job_moves_to_is_kept_while_it_is_between_attempts(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    resize(long, scheduler, 1)
    long.end(1, STOPPED, last_step=22)
    kept = running_job(long)
    assert (kept.plan.num_gpus, kept.placement, kept.elasticity) == (1, on_a(1), None)
    long.clock.advance(60)
    assert facts_of(long).running == ()


def test_the_target_is_a_preference_and_no_promise(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    long.end(1, STOPPED, last_step=22)
    long.decide()
    scheduler.script = lambda facts: ()
    assert long.place().status is PlaceStatus.WAITING
    (waiting,) = facts_of(long).queued
    assert waiting.ordered
    assert (waiting.plans[0].num_gpus, len({plan.num_gpus for plan in waiting.plans})) == (1, 2)
    assert waiting.elasticity is not None
    assert waiting.elasticity.moves_left == 2.0


def test_a_preempted_job_waits_with_its_reason_and_resumes(long: Airflow, scheduler: ScriptedScheduler) -> None:
    preempt(long, scheduler)
    assert long.step(1, 21).kind is DirectiveKind.CHECKPOINT_AND_STOP
    long.end(1, STOPPED, last_step=22)
    verdict = long.decide()
    assert (verdict.kind, verdict.reason) == (VerdictKind.RETRY, FOR_ANOTHER)
    scheduler.script = lambda facts: ()
    assert long.place().status is PlaceStatus.WAITING
    view = run_view(long.services, long.key)
    assert (view.run.state, view.run.reason) == (JobState.QUEUED, FOR_ANOTHER)
    scheduler.script = None
    a_pass(long)
    second = run_view(long.services, long.key).attempts[-1]
    assert (second.attempt, second.next_attempt.checkpoint_step) == (2, 22)


def test_a_job_that_is_being_preempted_counts_as_waiting(long: Airflow, scheduler: ScriptedScheduler) -> None:
    preempt(long, scheduler)
    facts = facts_of(long)
    assert [each.run_key for each in facts.queued] == [long.key]
    assert facts.running == ()
    a_pass(long)  # the product's scheduler starts it again at once; it cannot while its workers are there
    assert run_view(long.services, long.key).queue_entry is None


def test_workers_that_did_not_stop_in_time_are_moved_all_the_same(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    long.end(1, KILLED, last_step=20)
    assert long.decide().reason.code is ReasonCode.MOVED_TO_SHRINK
    long.place()
    assert run_view(long.services, long.key).run.num_reschedules == 0


def test_memory_that_runs_out_while_a_job_is_moved_is_treated_as_such(
    anywhere: Airflow, scheduler: ScriptedScheduler
) -> None:
    first = running_job(anywhere).plan
    resize(anywhere, scheduler, 1)
    anywhere.end(1, OUT_OF_MEMORY, last_step=20)
    assert facts_of(anywhere).running == ()
    anywhere.decide()
    anywhere.place()
    view = run_view(anywhere.services, anywhere.key)
    assert view.run.num_reschedules == 1
    assert first.shape in view.attempts[-1].next_attempt.excluded_shapes


def test_a_job_that_ends_before_it_is_moved_is_done(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    long.end(1, DONE, last_step=100)
    assert long.decide().kind is VerdictKind.DONE
    assert sum(row.num_free for row in gpus_view(long.services).types) == 4


def test_a_job_cancelled_while_it_is_moved_stays_cancelled(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    cancel(long.services, long.key, Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Enough."))
    assert long.step(1, 21).kind is DirectiveKind.KILL
    assert running_job(long).placement == on_a(2)
    long.end(1, STOPPED, last_step=22)
    assert long.decide().kind is VerdictKind.FAIL
    assert run_view(long.services, long.key).run.state is JobState.CANCELLED


def test_what_memory_taught_before_a_move_is_known_after_it(anywhere: Airflow, scheduler: ScriptedScheduler) -> None:
    assert anywhere.press(1, extra=16 * MIB, number=21).kind is DirectiveKind.CHECKPOINT_AND_STOP
    anywhere.end(1, STOPPED, last_step=22)
    anywhere.decide()
    anywhere.place()
    anywhere.launch(2)
    anywhere.step(2, 25)
    before = run_view(anywhere.services, anywhere.key).attempts[1].next_attempt
    assert before.extra_bytes_per_gpu == 16 * MIB
    preempt(anywhere, scheduler)
    anywhere.end(2, STOPPED, last_step=26)
    following = anywhere.decide().next_attempt
    assert following is not None
    assert following.excluded_shapes == before.excluded_shapes
    assert following.extra_bytes_per_gpu == before.extra_bytes_per_gpu
    assert following.forecast_extra_bytes_per_gpu == before.forecast_extra_bytes_per_gpu
