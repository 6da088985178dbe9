"""The watch over an attempt, from its telemetry."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import pytest
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.airflow.conftest import World
from tests.unit.airflow.triggering import CONN, Run, first_event, held, of, report, result, started, steps, until

from frenzy.airflow.connection import async_api_client
from frenzy.airflow.tasks.workers import workers
from frenzy.airflow.triggers import watch as watching
from frenzy.airflow.triggers.triggers import MonitorTrigger
from frenzy.airflow.triggers.watch import Watch
from frenzy.app.cancellation import cancel
from frenzy.app.observe import report_progress
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import JobState, LeaseState
from frenzy.core.runs.protocol import EndReport, ProgressReport
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import MemoryPressureSpec
from frenzy.core.values.launch import ControlAction, LaunchSpec
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.telemetry import Heartbeat
from frenzy.ports import TelemetryCursor, TelemetryPage, WorkersState


async def watch_of(world: World, spec: LaunchSpec) -> Watch:
    client, log = await async_api_client(CONN), logging.getLogger(__name__)
    return Watch(spec=spec, view=world.view(spec.run_key), workers=workers(), client=client, log=log)


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


@pytest.mark.parametrize(
    ("phase", "beat_s_ago", "ended"),
    [("saving a checkpoint: bytes written", 0.0, False), ("saving a checkpoint: bytes written", 60.0, True),
     ("saving the finished model", 0.0, True)],
)  # fmt: skip
def test_workers_asked_to_stop_have_as_long_as_their_checkpoint_grows(
    world: World, run_async: Run, phase: str, beat_s_ago: float, ended: bool
) -> None:
    spec = started(world)
    report(world, spec, steps(spec, 1, 14, grows_bytes=spec.gpu.memory_bytes // 30))

    async def scenario() -> None:
        watch = await watch_of(world, spec)
        sign = Heartbeat(phase=phase, time_s=time.time() - beat_s_ago, done=10**9)
        world.runs.write_heartbeat(spec.run_key, 1, 0, sign)
        await watch.look()
        last_step = steps(spec, 1, 14)[-1].step_time_s
        await asyncio.sleep(2 * last_step + workers().settings.stop_grace_s + 0.1)
        await watch.look()

    run_async(scenario())
    assert (spec.run_key, 1) in world.runs.controls, "asked first"
    assert bool(world.launcher.stopped) is ended


def test_workers_that_hang_are_ended_even_with_the_forecast_off(world: World, run_async: Run) -> None:
    spec = started(world, on_memory_pressure=MemoryPressureSpec(forecast=False))
    long_ago = tuple(replace(each, time_s=each.time_s - 3600.0) for each in steps(spec, 1, 4))
    report(world, spec, long_ago)

    async def scenario() -> None:
        event = asyncio.create_task(first_event(of(MonitorTrigger, spec)))
        await until(lambda: world.launcher.state(spec) is WorkersState.GONE)
        event.cancel()

    run_async(scenario())


@pytest.mark.parametrize(("step_s_ago", "hangs"), [(300.0, False), (3600.0, True)])
def test_of_a_long_attempt_a_monitor_that_is_started_anew_reads_the_last_steps_and_finds_a_hang_by_them(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch, step_s_ago: float, hangs: bool
) -> None:
    monkeypatch.setattr(watching, "_MANY_RECORDS", 4)
    spec = started(world)
    report_progress(world.services, spec.run_key, 1, ProgressReport(last_step=60))
    with world.services.ledger.transaction() as tx:
        tx.put_attempt(replace(tx.attempts(spec.run_key)[0], started_s=time.time() - 7200.0))
    world.launcher.begin(spec, time.time() - 7100.0)
    report(world, spec, tuple(replace(each, time_s=time.time() - step_s_ago) for each in steps(spec, 1, 60)))

    async def scenario() -> int:
        watch = await watch_of(world, spec)
        for _ in range(2):
            await watch.look()
        return int(watch.summary()["steps_seen"])

    assert run_async(scenario()) == 16
    assert (world.launcher.state(spec) is WorkersState.GONE) is hangs


def test_of_a_long_attempt_a_monitor_that_is_started_anew_finds_no_growth_below_the_known_peak(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_MANY_RECORDS", 4)
    spec = started(world)
    known_bytes = spec.gpu.memory_bytes * 9 // 10
    told = ProgressReport(last_step=60, peaks=PeakMemory(allocated_bytes=known_bytes), explained_peak_bytes=known_bytes)
    report_progress(world.services, spec.run_key, 1, told)
    report(world, spec, steps(spec, 45, 62, grows_bytes=spec.gpu.memory_bytes // 60))

    async def scenario() -> None:
        await (await watch_of(world, spec)).look()

    run_async(scenario())
    attempt = world.view(spec.run_key).attempts[0]
    assert (attempt.last_step, attempt.growth_step, attempt.explained_peak_bytes) == (62, None, known_bytes)


class InPages(InMemoryRunStore):
    """Run directories of whose telemetry a look reads four steps, of the rank that is read least far."""

    def telemetry(self, run_key: str, attempt: int, cursor: TelemetryCursor) -> TelemetryPage:
        page = super().telemetry(run_key, attempt, cursor)
        first = min(((each.step, each.rank) for each in page.records), default=(0, 0))
        records = tuple(each for each in page.records if each.step < first[0] + 4 and each.rank == first[1])
        known = {**dict(cursor.steps), **{each.rank: each.step for each in records}}
        return TelemetryPage(records=records, cursor=replace(cursor, steps=tuple(sorted(known.items()))))


def test_a_monitor_that_is_started_anew_ends_no_workers_of_whose_steps_it_has_yet_to_read_the_newest(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look reads 20,000 records. Those of any long attempt are hours old, and of a wide one not of all its ranks."""
    spec = started(world)
    assert spec.plan.num_gpus == 2
    with world.services.ledger.transaction() as tx:
        tx.put_attempt(replace(tx.attempts(spec.run_key)[0], started_s=time.time() - 7200.0))
    world.launcher.begin(spec, time.time() - 7100.0)
    monkeypatch.setattr(world.runs, "__class__", InPages)
    report(world, spec, tuple(replace(each, time_s=each.time_s - 3600.0) for each in steps(spec, 1, 8)))
    report(world, spec, steps(spec, 9, 10))

    async def scenario() -> int:
        watch = await watch_of(world, spec)
        for _ in range(7):
            await watch.look()
        return int(watch.summary()["steps_seen"])

    assert run_async(scenario()) == 10
    assert world.launcher.state(spec) is WorkersState.ALIVE


def test_a_clock_that_jumps_ahead_ends_no_workers_that_go_on(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sets it, or the machine slept: all trainings would seem to hang at once."""
    spec, real = started(world), time.time

    async def scenario() -> None:
        watch = await watch_of(world, spec)
        await watch.look()
        report(world, spec, steps(spec, 1, 4))
        await watch.look()
        monkeypatch.setattr(time, "time", lambda: real() + 3600.0)
        await watch.look()
        report(world, spec, tuple(replace(each, time_s=real()) for each in steps(spec, 5, 6)))
        await watch.look()

    run_async(scenario())
    assert world.launcher.state(spec) is WorkersState.ALIVE


def test_a_clock_that_jumps_ahead_before_the_first_step_ends_no_workers(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, real = started(world), time.time
    world.launcher.begin(spec, real())

    async def scenario() -> None:
        watch = await watch_of(world, spec)
        await watch.look()
        monkeypatch.setattr(time, "time", lambda: real() + 3600.0)
        for _ in range(2):
            await watch.look()

    run_async(scenario())
    assert world.launcher.state(spec) is WorkersState.ALIVE


@pytest.mark.parametrize(("began_s_ago", "hangs"), [(None, False), (60.0, False), (3600.0, True)])
def test_workers_that_only_wait_do_not_hang_however_long_ago_they_were_launched(
    world: World, run_async: Run, began_s_ago: float | None, hangs: bool
) -> None:
    spec = started(world)
    with world.services.ledger.transaction() as tx:
        tx.put_attempt(replace(tx.attempts(spec.run_key)[0], started_s=time.time() - 7200.0))
    world.launcher.begin(spec, None if began_s_ago is None else time.time() - began_s_ago)

    async def scenario() -> None:
        await (await watch_of(world, spec)).look()

    run_async(scenario())
    assert (world.launcher.state(spec) is WorkersState.GONE) is hangs


@pytest.mark.parametrize(("beat_s_ago", "hangs"), [(30.0, False), (3600.0, True)])
def test_a_start_that_shows_progress_is_left_alone_however_long_it_takes(
    world: World, run_async: Run, beat_s_ago: float, hangs: bool
) -> None:
    spec = started(world)
    now_s = time.time()
    with world.services.ledger.transaction() as tx:
        tx.put_attempt(replace(tx.attempts(spec.run_key)[0], started_s=now_s - 7200.0))
    world.launcher.begin(spec, now_s - 7100.0)
    world.runs.write_heartbeat(spec.run_key, 1, 0, Heartbeat(phase="tokenising", time_s=now_s - beat_s_ago))

    async def scenario() -> None:
        await (await watch_of(world, spec)).look()

    run_async(scenario())
    assert (world.launcher.state(spec) is WorkersState.GONE) is hangs


def test_the_monitor_ends_the_workers_of_a_cancelled_run(world: World, run_async: Run) -> None:
    spec = started(world)

    async def scenario() -> None:
        event = asyncio.create_task(first_event(of(MonitorTrigger, spec)))
        await asyncio.sleep(0.1)
        cancel(world.services, spec.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
        await until(lambda: (spec.run_key, 1) in world.runs.controls)
        event.cancel()

    run_async(scenario())
    assert world.launcher.state(spec) is WorkersState.GONE
    control = world.runs.controls[spec.run_key, 1]
    assert control.reason.code is ReasonCode.CANCELLED_BY_USER, "what trackers say of the end"


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


def test_the_monitor_believes_no_step_that_the_run_does_not_have(
    world: World, run_async: Run, caplog: pytest.LogCaptureFixture
) -> None:
    spec = started(world)
    lies = [replace(each, step=10**9 + index) for index, each in enumerate(steps(spec, 1, 50))]
    report(world, spec, (*steps(spec, 1, 3), *lies))

    async def scenario() -> None:
        watch = await watch_of(world, spec)
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
        await (await watch_of(world, spec)).look()

    run_async(scenario())
    attempt = world.view(spec.run_key).attempts[0]
    assert (attempt.last_step, attempt.last_loss) == (3, None)
