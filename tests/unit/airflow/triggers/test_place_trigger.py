"""Waiting for a place, from what the API says."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from tests.unit.airflow.conftest import World
from tests.unit.airflow.triggering import CONN, Run, belongs_to, first_event, held, of, started

from frenzy.airflow.tasks.workers import Workers, workers
from frenzy.airflow.triggers.triggers import LaunchTrigger, PlaceTrigger
from frenzy.app.cancellation import cancel
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import EndReport
from frenzy.core.values.errors import Reason, ReasonCode, SpecError, TemporaryError


def test_a_waiting_run_is_placed_when_another_ends(world: World, run_async: Run) -> None:
    waiting = world.waiting().run

    async def scenario() -> TriggerEvent:
        event = asyncio.create_task(first_event(PlaceTrigger(run_key=waiting.run_key, conn_id=CONN)))
        await asyncio.sleep(0.2)
        assert not event.done(), "there is no room yet"
        for view in (world.view(lease.run_key) for lease in held(world)):
            end_attempt(world.services, view.run.run_key, 1, EndReport(reason=Reason(code=ReasonCode.WORKERS_LOST)))
        return await event

    event = run_async(scenario())
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms is not None
    assert event.xcoms["return_value"]["run_key"] == waiting.run_key


def test_settings_that_cannot_be_read_yet_are_waited_for(world: World, run_async: Run) -> None:
    spec = started(world)
    reach = workers()
    unknown = TemporaryError(Reason(code=ReasonCode.API_UNREACHABLE), retry_after_s=0.01)
    answers: list[Any] = [unknown, SpecError([]), reach]

    def read() -> Workers:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return reach

    trigger = of(LaunchTrigger, spec)
    assert run_async(trigger.reach(read, retry_s=0.01)) is reach
    assert answers == []


def test_a_cancelled_run_goes_back_to_its_task(world: World, run_async: Run) -> None:
    waiting = world.waiting().run
    cancel(world.services, waiting.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    event = run_async(first_event(PlaceTrigger(run_key=waiting.run_key, conn_id=CONN)))
    assert not isinstance(event, TaskSuccessEvent)
    assert event.payload["reason"]["code"] == ReasonCode.CANCELLED_BY_USER


def test_ending_the_place_task_takes_the_run_out_of_the_queue(world: World, run_async: Run) -> None:
    run = world.waiting().run
    trigger = PlaceTrigger(run_key=run.run_key, conn_id=CONN)
    belongs_to(trigger, world, "train.place", "failed")
    run_async(trigger.on_kill())
    assert world.view(run.run_key).run.state is JobState.CANCELLED


def test_a_task_that_another_triggerer_ended_at_its_place_keeps_the_run(world: World, run_async: Run) -> None:
    spec = world.placed()
    trigger = PlaceTrigger(run_key=spec.run_key, conn_id=CONN)
    belongs_to(trigger, world, "train.place", "success")
    run_async(trigger.on_kill())
    assert world.view(spec.run_key).run.state is JobState.PLACED
