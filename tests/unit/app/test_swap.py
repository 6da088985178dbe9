"""A job under memory pressure gets the larger GPUs of a job that fits elsewhere, through the whole loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.app.moving import ScriptedScheduler, facts_of, plan_of, run_on, told_to_stop
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.place import place_status
from frenzy.app.queries import explain, run_view
from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.runs.protocol import DirectiveKind, PlaceStatus, VerdictKind
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.scheduling_facts import Start
from frenzy.core.values.units import GIB

STOPPED = 98


def holding_the_large(airflow: Airflow, scheduler: ScriptedScheduler, job: TrainingJob) -> Airflow:
    """``job``, which fits anywhere, runs on both large GPUs."""
    services = replace(airflow.services, schedule=scheduler, elastic=ElasticRules(min_run_s=0.0))
    holder = replace(airflow, services=services)
    holder.register(job)
    both = Placement(allocations=(NodeAllocation(node="b", num_gpus=2),))
    scheduler.script = lambda facts: tuple(
        Start(run_key=each.run_key, plan=plan_of(each.plans, 2, "large"), placement=both) for each in facts.queued
    )
    assert holder.place().status is PlaceStatus.PLACED
    scheduler.script = None
    holder.launch(1)
    holder.clock.advance(5)
    holder.step(1, 20)
    return holder


def outgrowing(holder: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    """A job on the small GPUs whose memory grows beyond them; it has stopped and waits again."""
    pressed = holder.another()
    run_on(pressed, scheduler, make_job("pressed"), 2, step=10)
    assert pressed.press(1, extra=2 * GIB, number=11).kind is DirectiveKind.CHECKPOINT_AND_STOP
    pressed.end(1, STOPPED, last_step=12)
    assert pressed.decide().kind is VerdictKind.RETRY
    pressed.place()
    return pressed


@pytest.fixture
def holder(airflow: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    return holding_the_large(airflow, scheduler, make_job("holder"))


def test_the_holder_moves_at_a_checkpoint_and_both_go_on(holder: Airflow, scheduler: ScriptedScheduler) -> None:
    pressed = outgrowing(holder, scheduler)
    waits = place_status(pressed.services, pressed.key)
    assert waits.reason is not None
    assert waits.reason.code is ReasonCode.WAITING_FOR_MOVE
    assert "job holder has saved a checkpoint and left b" in waits.reason.sentence
    reason = told_to_stop(holder, 1, 21)
    assert "job pressed needs more memory than its GPUs had" in reason.sentence
    holder.end(1, STOPPED, last_step=22)
    spec = place_status(pressed.services, pressed.key).spec
    assert spec is not None
    assert spec.plan.gpu_type == "large"
    holder.decide()
    again = holder.place().spec
    assert again is not None
    assert run_view(holder.services, holder.key).run.num_reschedules == 0
    assert run_view(holder.services, holder.key).attempts[-1].next_attempt.checkpoint_step == 22


def test_what_both_were_told_can_be_read_later(holder: Airflow, scheduler: ScriptedScheduler) -> None:
    pressed = outgrowing(holder, scheduler)
    waiting = "\n".join(explain(pressed.services, pressed.key).lines)
    assert "MEMORY_PRESSURE_FORECAST" in waiting
    assert "It waits: WAITING_FOR_MOVE: Starts as " in waiting
    assert "It would start now" not in waiting
    with pressed.services.ledger.reading() as tx:
        entry = tx.queue_entry(pressed.key)
    assert entry is not None
    assert f"After {run_view(pressed.services, pressed.key).attempts[0].plan.plan_id} it takes " in waiting
    assert entry.plans[0].plan_id in waiting
    assert "Ranked first" not in waiting
    holder.end(1, STOPPED, last_step=22)
    holder.decide()
    holder.place()
    moved = "\n".join(explain(holder.services, holder.key).lines)
    assert "job pressed needs more memory than its GPUs had, and gets these" in moved


def test_a_move_for_memory_names_the_rung_and_the_forecast_wherever_its_plan_is_shown(
    holder: Airflow, scheduler: ScriptedScheduler
) -> None:
    pressed = outgrowing(holder, scheduler)
    holder.end(1, STOPPED, last_step=22)
    view = run_view(pressed.services, pressed.key)
    assert view.run.reason is not None
    assert view.run.reason.code is ReasonCode.MOVED_FOR_MEMORY
    assert "after MEMORY_PRESSURE_FORECAST, by another count or type of GPU (rung 4 of 4)" in view.run.reason.sentence
    assert "2.0 GiB more than predicted were seen on each GPU" in view.run.reason.sentence
    shape = view.attempts[-1].plan.shape
    (shown,) = [each for each in view.candidates if each.plan.shape == shape]
    assert shown.reason == view.run.reason
    lines = "\n".join(explain(pressed.services, pressed.key).lines)
    assert "Why this plan: MOVED_FOR_MEMORY: " in lines
    assert "Best plan" not in lines


def test_facts_tell_who_gave_up_gpus_for_its_memory(holder: Airflow, scheduler: ScriptedScheduler) -> None:
    pressed = outgrowing(holder, scheduler)
    (waiting,) = facts_of(pressed).queued
    assert waiting.memory_constrained
    holder.end(1, STOPPED, last_step=22)
    pressed.launch(2)
    pressed.step(2, 15)
    marked = {each.run_key: each.memory_constrained for each in facts_of(pressed).running}
    assert marked == {holder.key: False, pressed.key: True}


def test_why_the_holder_stays_is_told_while_the_other_waits(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    holder = holding_the_large(airflow, scheduler, replace(make_job("holder"), elastic="off"))
    pressed = outgrowing(holder, scheduler)
    lines = explain(pressed.services, pressed.key).lines
    assert "holder keeps b (2): it may not be moved, or not yet." in lines
