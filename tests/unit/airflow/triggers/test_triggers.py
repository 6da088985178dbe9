"""Triggers go on from what the API and the run directory say, and end what a person has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from tests.unit.airflow.conftest import World

from frenzy.adapters.memory import InMemoryRunStore
from frenzy.airflow.connection import api_client, async_api_client
from frenzy.airflow.tasks.settle import end_unwatched
from frenzy.airflow.tasks.sweep import _look
from frenzy.airflow.tasks.workers import Workers, using, workers
from frenzy.airflow.triggers.triggers import LaunchTrigger, MonitorTrigger, PlaceTrigger, RunTrigger
from frenzy.airflow.triggers.watch import Watch
from frenzy.app.cancel import cancel
from frenzy.app.observe import attempt_launching, attempt_started
from frenzy.app.settle import end_attempt
from frenzy.core.runs.ledger import JobState, LeaseState
from frenzy.core.runs.protocol import AttemptStarted, EndReport, SweepTarget
from frenzy.core.values.errors import Reason, ReasonCode, SpecError, TemporaryError
from frenzy.core.values.job import MemoryPressureSpec
from frenzy.core.values.launch import AttemptResult, ControlAction, LaunchSpec
from frenzy.core.values.telemetry import StepRecord
from frenzy.ports import WorkersState

Run = Callable[[Coroutine[Any, Any, Any]], Any]
CONN = "frenzy_default"


async def first_event(trigger: Any) -> TriggerEvent:
    async for event in trigger.run():
        return event
    raise AssertionError("the trigger ended without an event")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def started(world: World, **job: Any) -> LaunchSpec:
    """A run whose workers run, as the launch task leaves it."""
    spec = world.placed(**job)
    attempt_launching(world.services, spec.run_key, 1)
    world.runs.put_spec(spec)
    reference = world.launcher.launch(spec)
    attempt_started(world.services, spec.run_key, 1, AttemptStarted(launcher_ref=reference))
    return spec


def of(kind: type[RunTrigger], spec: LaunchSpec) -> Any:
    return kind(run_key=spec.run_key, attempt=spec.attempt, conn_id=CONN)  # type: ignore[call-arg]


def belongs_to(trigger: Any, world: World, task_id: str, state: str | None) -> None:
    """The trigger's task instance, and what Airflow says of it."""
    identity = world.view(trigger.run_key).run.identity
    trigger._task_instance = SimpleNamespace(
        dag_id=identity.dag_id, run_id=identity.run_id, task_id=task_id, map_index=-1
    )
    trigger.task_id = task_id
    world.airflow.task_states[task_id] = state


def steps(spec: LaunchSpec, first: int, last: int, *, grows_bytes: int = 0) -> tuple[StepRecord, ...]:
    """Telemetry of rank 0; ``grows_bytes`` more at each step."""
    capacity = spec.gpu.memory_bytes
    return tuple(
        StepRecord(
            rank=0,
            step=step,
            time_s=time.time() - 60.0 + step,
            loss=5.0 - 0.01 * step,
            step_time_s=1.0,
            tokens_per_s=100.0,
            allocated_peak_bytes=capacity // 2 + grows_bytes * (step - first),
            reserved_peak_bytes=capacity // 2 + grows_bytes * (step - first),
            device_used_bytes=capacity // 2,
            capacity_bytes=capacity,
        )
        for step in range(first, last + 1)
    )


def report(world: World, spec: LaunchSpec, records: tuple[StepRecord, ...]) -> None:
    """Every rank reports ``records``."""
    for rank in range(spec.plan.num_gpus):
        world.runs.write_chunk(spec.run_key, spec.attempt, [replace(each, rank=rank) for each in records])


@pytest.mark.parametrize("kind", [LaunchTrigger, MonitorTrigger])
def test_a_trigger_is_made_again_from_what_it_serializes(kind: Any) -> None:
    classpath, arguments = kind(run_key="abc", attempt=2, conn_id=CONN).serialize()
    assert classpath == f"frenzy.airflow.triggers.triggers.{kind.__name__}"
    assert kind(**arguments).serialize() == (classpath, arguments)


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


def held(world: World) -> Any:
    with world.services.ledger.reading() as tx:
        return tx.held_leases()


def test_a_cancelled_run_goes_back_to_its_task(world: World, run_async: Run) -> None:
    waiting = world.waiting().run
    cancel(world.services, waiting.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    event = run_async(first_event(PlaceTrigger(run_key=waiting.run_key, conn_id=CONN)))
    assert not isinstance(event, TaskSuccessEvent)
    assert event.payload["reason"]["code"] == ReasonCode.CANCELLED_BY_USER


@pytest.mark.parametrize(
    ("exit_code", "kind", "state"),
    [
        (0, TaskSuccessEvent, JobState.SUCCEEDED),
        (98, TaskSuccessEvent, JobState.RECOVERING),
        (96, TaskFailedEvent, JobState.RECOVERING),
        (1, TaskFailedEvent, JobState.RECOVERING),
    ],
)
def test_launch_ends_from_its_trigger_once_the_ledger_knows(
    world: World, run_async: Run, exit_code: int, kind: type, state: JobState
) -> None:
    spec = started(world)

    async def scenario() -> TriggerEvent:
        event = asyncio.create_task(first_event(of(LaunchTrigger, spec)))
        await asyncio.sleep(0.1)
        assert not event.done(), "the workers run"
        world.runs.write_result(spec.run_key, 1, result(exit_code))
        await asyncio.sleep(0.1)
        assert not event.done(), "a result is not proof that the workers are gone"
        world.launcher.finish(spec)
        return await event

    assert isinstance(run_async(scenario()), kind)
    view = world.view(spec.run_key)
    assert view.run.state is state
    assert view.lease is None or view.lease.state is LeaseState.ENDED


def result(exit_code: int) -> AttemptResult:
    return AttemptResult(exit_code=exit_code, last_step=7 if exit_code else 100, total_steps=100)


def test_workers_that_vanish_without_a_result_are_reported_lost(world: World, run_async: Run) -> None:
    spec = started(world)
    world.launcher.finish(spec)
    assert isinstance(run_async(first_event(of(LaunchTrigger, spec))), TaskFailedEvent)
    outcome = world.view(spec.run_key).attempts[0].outcome
    assert outcome is not None
    assert outcome.code is ReasonCode.WORKERS_LOST


def test_what_the_launcher_knows_of_lost_workers_reaches_the_ledger_and_nothing_is_left(
    world: World, run_async: Run
) -> None:
    spec = started(world)
    (node, *_) = (each.node for each in spec.placement.allocations)
    world.launcher.lose(spec, Reason(code=ReasonCode.NODE_LOST, detail="It went away."), node)
    assert isinstance(run_async(first_event(of(LaunchTrigger, spec))), TaskFailedEvent)
    view = world.view(spec.run_key)
    assert view.attempts[0].outcome == Reason(code=ReasonCode.NODE_LOST, detail="It went away.")
    assert view.attempts[0].lost_nodes == (node,)
    assert world.launcher.remains() == ()


class Unreadable(InMemoryRunStore):
    """Run directories of which nothing can be read."""

    def result(self, run_key: str, attempt: int) -> AttemptResult | None:
        raise RecursionError("maximum recursion depth exceeded")


@pytest.fixture
def unreadable(world: World) -> Iterator[None]:
    """While it lasts, what workers left cannot be read."""
    with using(replace(workers(), runs=Unreadable())):
        yield


@pytest.mark.usefixtures("unreadable")
def test_a_run_directory_that_cannot_be_read_keeps_no_gpus(world: World, run_async: Run) -> None:
    spec = started(world)
    world.launcher.finish(spec)
    assert isinstance(run_async(first_event(of(LaunchTrigger, spec))), TaskFailedEvent)
    assert not world.view(spec.run_key).attempts[0].is_live


@pytest.mark.usefixtures("unreadable")
def test_an_unwatched_attempt_ends_though_its_run_directory_cannot_be_read(world: World) -> None:
    spec = started(world)
    end_unwatched(api_client(CONN), spec.run_key, logging.getLogger(__name__))
    assert not world.view(spec.run_key).attempts[0].is_live


@pytest.mark.usefixtures("unreadable")
def test_the_sweep_reports_what_the_launcher_proves_though_the_run_directory_cannot_be_read(world: World) -> None:
    spec = started(world)
    world.launcher.finish(spec)
    target = SweepTarget(run_key=spec.run_key, attempt=spec.attempt, spec=spec, suspect=True, stop=False)
    finding = _look(workers(), target, logging.getLogger(__name__))
    assert (finding.workers, finding.result) == (WorkersState.GONE, None)


def test_workers_that_cannot_be_seen_are_waited_for(world: World, run_async: Run) -> None:
    spec = started(world)
    world.launcher.lose_sight(spec)

    async def scenario() -> bool:
        event = asyncio.create_task(first_event(of(LaunchTrigger, spec)))
        await asyncio.sleep(0.5)
        done = event.done()
        event.cancel()
        return done

    assert not run_async(scenario())
    assert world.view(spec.run_key).attempts[0].is_live


def test_the_monitor_reports_progress_and_ends_with_the_attempt(world: World, run_async: Run) -> None:
    spec = started(world)
    report(world, spec, steps(spec, 1, 5))

    async def scenario() -> TriggerEvent:
        event = asyncio.create_task(first_event(of(MonitorTrigger, spec)))
        await until(lambda: world.view(spec.run_key).attempts[0].last_step == 5)
        assert world.view(spec.run_key).run.state is JobState.RUNNING
        end_attempt(world.services, spec.run_key, 1, EndReport(result=result(0)))
        return await event

    event = run_async(scenario())
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms is not None
    assert event.xcoms["return_value"]["steps_seen"] == 5


def test_the_monitor_asks_for_a_checkpoint_when_memory_will_not_last(world: World, run_async: Run) -> None:
    spec = started(world)
    growth = spec.gpu.memory_bytes // 30
    report(world, spec, steps(spec, 1, 14, grows_bytes=growth))

    async def scenario() -> None:
        event = asyncio.create_task(first_event(of(MonitorTrigger, spec)))
        await until(lambda: (spec.run_key, 1) in world.runs.controls)
        event.cancel()

    run_async(scenario())
    control = world.runs.controls[spec.run_key, 1]
    assert control.action is ControlAction.CHECKPOINT_AND_STOP
    assert control.reason.code in (ReasonCode.MEMORY_PRESSURE_FORECAST, ReasonCode.MEMORY_PRESSURE_USAGE)
    assert world.view(spec.run_key).run.state is JobState.CHECKPOINTING


@pytest.mark.parametrize("last_step", ["asked to stop", "of the run"])
def test_near_an_attempts_end_the_next_look_knows_that_it_has_ended(
    world: World, run_async: Run, last_step: str
) -> None:
    spec = started(world)
    total = world.view(spec.run_key).run.total_steps
    assert total is not None
    if last_step == "of the run":
        report(world, spec, steps(spec, total - 1, total))
    else:
        report(world, spec, steps(spec, 1, 14, grows_bytes=spec.gpu.memory_bytes // 30))

    async def scenario() -> bool:
        client = await async_api_client(CONN)
        view = world.view(spec.run_key)
        watch = Watch(spec=spec, view=view, workers=workers(), client=client, log=logging.getLogger(__name__))
        await watch.look()
        end_attempt(world.services, spec.run_key, 1, EndReport(result=result(0)))
        await watch.look()
        return watch.ended

    assert run_async(scenario())


def test_workers_that_do_not_stop_in_time_are_ended(world: World, run_async: Run) -> None:
    spec = started(world)
    report(world, spec, steps(spec, 1, 14, grows_bytes=spec.gpu.memory_bytes // 30))

    async def scenario() -> None:
        event = asyncio.create_task(first_event(of(MonitorTrigger, spec)))
        await until(lambda: bool(world.launcher.stopped))
        event.cancel()

    run_async(scenario())
    assert (spec.run_key, 1) in world.runs.controls, "asked first"


def test_workers_that_hang_are_ended_even_with_the_forecast_off(world: World, run_async: Run) -> None:
    spec = started(world, on_memory_pressure=MemoryPressureSpec(forecast=False))
    long_ago = tuple(replace(each, time_s=each.time_s - 3600.0) for each in steps(spec, 1, 4))
    report(world, spec, long_ago)

    async def scenario() -> None:
        event = asyncio.create_task(first_event(of(MonitorTrigger, spec)))
        await until(lambda: world.launcher.state(spec) is WorkersState.GONE)
        event.cancel()

    run_async(scenario())


@pytest.mark.parametrize(("began_s_ago", "hangs"), [(None, False), (60.0, False), (3600.0, True)])
def test_workers_that_only_wait_do_not_hang_however_long_ago_they_were_launched(
    world: World, run_async: Run, began_s_ago: float | None, hangs: bool
) -> None:
    spec = started(world)
    with world.services.ledger.transaction() as tx:
        tx.put_attempt(replace(tx.attempts(spec.run_key)[0], started_s=time.time() - 7200.0))
    world.launcher.begin(spec, None if began_s_ago is None else time.time() - began_s_ago)

    async def scenario() -> None:
        client = await async_api_client(CONN)
        log = logging.getLogger(__name__)
        await Watch(spec=spec, view=world.view(spec.run_key), workers=workers(), client=client, log=log).look()

    run_async(scenario())
    assert (world.launcher.state(spec) is WorkersState.GONE) is hangs


def test_the_monitor_ends_the_workers_of_a_cancelled_run(world: World, run_async: Run) -> None:
    spec = started(world)

    async def scenario() -> None:
        event = asyncio.create_task(first_event(of(MonitorTrigger, spec)))
        await asyncio.sleep(0.1)
        cancel(world.services, spec.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
        await until(lambda: world.launcher.state(spec) is WorkersState.GONE)
        event.cancel()

    run_async(scenario())


def test_a_monitor_that_was_away_for_longer_than_a_lease_goes_on(world: World, run_async: Run) -> None:
    spec = started(world)
    with world.services.ledger.transaction() as tx:
        lease = tx.lease(spec.run_key, 1)
        assert lease is not None
        tx.put_lease(replace(lease, state=LeaseState.SUSPECT, expires_s=0.0))
    report(world, spec, steps(spec, 1, 3))

    async def scenario() -> None:
        event = asyncio.create_task(first_event(of(MonitorTrigger, spec)))
        await until(lambda: world.view(spec.run_key).attempts[0].last_step == 3)
        event.cancel()

    run_async(scenario())
    assert [lease.state for lease in held(world)] == [LeaseState.LIVE]


@pytest.mark.parametrize("kind", [LaunchTrigger, MonitorTrigger])
@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_ending_a_task_by_hand_ends_the_workers_and_frees_their_gpus(
    world: World, run_async: Run, kind: Any, state: str
) -> None:
    spec = started(world)
    trigger = of(kind, spec)
    belongs_to(trigger, world, "train.launch", state)
    run_async(trigger.on_kill())
    assert world.launcher.state(spec) is WorkersState.GONE
    assert world.view(spec.run_key).run.state is JobState.CANCELLED
    assert held(world) == ()


def test_cancelling_outlives_the_triggerers_second_cancellation(world: World, run_async: Run) -> None:
    spec = started(world)
    trigger = of(LaunchTrigger, spec)
    belongs_to(trigger, world, "train.launch", "failed")

    async def scenario() -> None:
        killed = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(0)
        killed.cancel()
        await until(lambda: world.view(spec.run_key).run.state is JobState.CANCELLED)

    run_async(scenario())


def test_clearing_the_launch_task_stops_the_workers_but_not_the_run(world: World, run_async: Run) -> None:
    spec = started(world)
    trigger = of(LaunchTrigger, spec)
    belongs_to(trigger, world, "train.launch", None)
    run_async(trigger.on_kill())
    assert world.launcher.stopped == [(spec.run_key, 1, 0.5)], "with the time to write a checkpoint"
    assert not world.view(spec.run_key).run.cancel_requested


def test_clearing_the_monitor_leaves_the_training_alone(world: World, run_async: Run) -> None:
    spec = started(world)
    trigger = of(MonitorTrigger, spec)
    belongs_to(trigger, world, "train.monitor", "scheduled")
    run_async(trigger.on_kill())
    assert world.launcher.stopped == []
    assert not world.view(spec.run_key).run.cancel_requested


def test_ending_the_place_task_takes_the_run_out_of_the_queue(world: World, run_async: Run) -> None:
    run = world.waiting().run
    trigger = PlaceTrigger(run_key=run.run_key, conn_id=CONN)
    belongs_to(trigger, world, "train.place", "failed")
    run_async(trigger.on_kill())
    assert world.view(run.run_key).run.state is JobState.CANCELLED


def forged(world: World, spec: LaunchSpec, victim: LaunchSpec) -> None:
    """The job writes into its run directory that it is another run, with other GPUs, elsewhere."""
    wide = replace(spec.plan, num_gpus=10**6, dp=10**6)
    lie = replace(victim, plan=wide, run_dir="/srv/frenzy/airflow", job=replace(victim.job, name="../../x"))
    world.runs._specs[spec.run_key, spec.attempt] = lie


@pytest.mark.parametrize("kind", [LaunchTrigger, MonitorTrigger])
def test_a_job_that_rewrites_its_spec_ends_nobody_elses_workers(world: World, run_async: Run, kind: Any) -> None:
    victim, spec = started(world, name="victim"), started(world)
    forged(world, spec, victim)
    trigger = of(kind, spec)
    belongs_to(trigger, world, "train.launch", "failed")
    run_async(trigger.on_kill())
    assert world.launcher.state(spec) is WorkersState.GONE
    assert world.launcher.state(victim) is WorkersState.ALIVE
    assert world.view(victim.run_key).attempts[0].is_live


def test_a_trigger_takes_its_spec_from_the_ledger_alone(world: World, run_async: Run) -> None:
    spec = started(world)
    forged(world, spec, spec)
    assert run_async(of(LaunchTrigger, spec).spec()) == spec


def test_the_end_of_an_unwatched_attempt_is_that_of_the_ledgers_spec(world: World) -> None:
    victim, spec = started(world, name="victim"), started(world)
    forged(world, spec, victim)
    client = api_client(CONN)
    end_unwatched(client, spec.run_key, logging.getLogger(__name__))
    assert world.launcher.state(spec) is WorkersState.GONE
    assert world.launcher.state(victim) is WorkersState.ALIVE
    assert not world.view(spec.run_key).attempts[0].is_live


def test_the_monitor_believes_no_step_that_the_run_does_not_have(
    world: World, run_async: Run, caplog: pytest.LogCaptureFixture
) -> None:
    spec = started(world)
    lies = [replace(each, step=10**9 + index) for index, each in enumerate(steps(spec, 1, 50))]
    report(world, spec, (*steps(spec, 1, 3), *lies))

    async def scenario() -> None:
        client = await async_api_client(CONN)
        log = logging.getLogger(__name__)
        watch = Watch(spec=spec, view=world.view(spec.run_key), workers=workers(), client=client, log=log)
        await watch.look()
        await watch.look()

    with caplog.at_level(logging.WARNING):
        run_async(scenario())
    assert world.view(spec.run_key).attempts[0].last_step == 3
    assert [each.message for each in caplog.records if "dropped" in each.message] != []
    assert len([each for each in caplog.records if "dropped" in each.message]) == 1


def test_a_training_that_diverged_is_shown_without_a_loss_and_without_what_is_no_json(
    world: World, run_async: Run
) -> None:
    spec = started(world)
    report(world, spec, steps(spec, 1, 2))
    report(world, spec, tuple(replace(each, loss=None) for each in steps(spec, 3, 3)))

    async def scenario() -> None:
        client = await async_api_client(CONN)
        log = logging.getLogger(__name__)
        await Watch(spec=spec, view=world.view(spec.run_key), workers=workers(), client=client, log=log).look()

    run_async(scenario())
    attempt = world.view(spec.run_key).attempts[0]
    assert (attempt.last_step, attempt.last_loss) == (3, None)
