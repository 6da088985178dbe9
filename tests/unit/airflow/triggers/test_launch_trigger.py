"""The end of an attempt, from what its workers leave and what the launcher knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.airflow.conftest import World
from tests.unit.airflow.triggering import CONN, Run, belongs_to, first_event, of, report, result, started, steps

from frenzy.airflow.connection import api_client
from frenzy.airflow.tasks import settle
from frenzy.airflow.tasks.reconcile import _look, reconcile_once
from frenzy.airflow.tasks.settle import end_unwatched
from frenzy.airflow.tasks.workers import using, workers
from frenzy.airflow.triggers import triggers, watch
from frenzy.airflow.triggers.triggers import LaunchTrigger
from frenzy.app.observe import report_progress
from frenzy.core.runs.ledger import JobState, LeaseState
from frenzy.core.runs.protocol import ProgressReport, ReconcileTarget
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.ports import TelemetryCursor, TelemetryPage, WorkersState


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


class Noting(InMemoryRunStore):
    """Run directories whose telemetry is read as it notes."""

    steps_read: list[int]

    def telemetry(self, run_key: str, attempt: int, cursor: TelemetryCursor) -> TelemetryPage:
        page = super().telemetry(run_key, attempt, cursor)
        self.steps_read.extend(each.step for each in page.records)
        return page


def test_of_a_long_attempt_only_what_the_ledger_was_not_told_is_read_at_its_end(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 ranks 3,500 steps took a minute, for which their GPUs were held."""
    monkeypatch.setattr(watch, "_MANY_RECORDS", 4)
    monkeypatch.setattr(watch, "_AGAIN_STEPS", 1)
    spec, runs = started(world), world.runs
    peaks = PeakMemory(allocated_bytes=10**15)
    told = ProgressReport(last_step=5, last_loss=4.0, step_time_s=1.0, peaks=peaks, explained_peak_bytes=10**15)
    report_progress(world.services, spec.run_key, 1, told)
    report(world, spec, steps(spec, 1, 9, grows_bytes=spec.gpu.memory_bytes // 30))
    monkeypatch.setattr(runs, "__class__", Noting)
    runs.steps_read = []  # type: ignore[attr-defined]
    world.launcher.finish(spec)
    run_async(first_event(of(LaunchTrigger, spec)))
    attempt = world.view(spec.run_key).attempts[0]
    assert sorted({*runs.steps_read}) == [5, 6, 7, 8, 9]  # type: ignore[attr-defined]
    assert (attempt.last_step, attempt.step_time_s, attempt.measured_peak_bytes) == (9, 1.0, 10**15)
    assert (attempt.explained_peak_bytes, attempt.growth_step) == (10**15, None), "less than at the start is no growth"


class Unreadable(InMemoryRunStore):
    """Run directories of which nothing can be read."""

    def result(self, run_key: str, attempt: int) -> AttemptResult | None:
        raise RecursionError("maximum recursion depth exceeded")


@pytest.fixture
def unreadable(world: World) -> Iterator[None]:
    """While it lasts, what workers left cannot be read."""
    with using(replace(workers(), runs=Unreadable())):
        yield


class Throttled(InMemoryRunStore):
    """Run directories of a store that refuses some reads of results."""

    refusals: list[OSError]

    def result(self, run_key: str, attempt: int) -> AttemptResult | None:
        if self.refusals:
            raise self.refusals.pop()
        return super().result(run_key, attempt)


def test_a_store_that_throttles_does_not_make_a_finished_training_a_lost_one(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "_RESULT_PATIENCE_S", 0.0)
    spec = started(world)
    world.runs.write_result(spec.run_key, 1, result(0))
    world.launcher.finish(spec)
    monkeypatch.setattr(world.runs, "__class__", Throttled)
    world.runs.refusals = [OSError("503 SlowDown")] * 3  # type: ignore[attr-defined]
    assert isinstance(run_async(first_event(of(LaunchTrigger, spec))), TaskSuccessEvent)
    assert world.view(spec.run_key).run.state is JobState.SUCCEEDED


def test_a_store_that_throttled_while_workers_trained_is_waited_for_at_their_end_all_the_same(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "_RESULT_PATIENCE_S", 0.0)
    monkeypatch.setattr(triggers, "_STORE_PATIENCE_S", 0.5)
    spec = started(world)
    monkeypatch.setattr(world.runs, "__class__", Throttled)
    world.runs.refusals = [OSError("503 SlowDown")] * 10**6  # type: ignore[attr-defined]

    async def scenario() -> TriggerEvent:
        event = asyncio.create_task(first_event(of(LaunchTrigger, spec)))
        await asyncio.sleep(0.8)
        world.runs.refusals = [OSError("503 SlowDown")]  # type: ignore[attr-defined]
        world.runs.write_result(spec.run_key, 1, result(0))
        world.launcher.finish(spec)
        return await event

    assert isinstance(run_async(scenario()), TaskSuccessEvent)


@pytest.mark.usefixtures("unreadable")
def test_a_person_who_ends_a_task_frees_its_gpus_though_its_run_directory_cannot_be_read(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "_RESULT_PATIENCE_S", 0.1)
    monkeypatch.setattr(triggers, "_CANCEL_PATIENCE_S", 5.0)
    spec = started(world)
    launch = of(LaunchTrigger, spec)
    belongs_to(launch, world, "train.launch", "failed")
    run_async(launch.on_kill())
    assert not world.view(spec.run_key).attempts[0].is_live


@pytest.mark.usefixtures("unreadable")
def test_a_run_directory_that_cannot_be_read_keeps_no_gpus(
    world: World, run_async: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "_STORE_PATIENCE_S", 0.0)
    spec = started(world)
    world.launcher.finish(spec)
    assert isinstance(run_async(first_event(of(LaunchTrigger, spec))), TaskFailedEvent)
    assert not world.view(spec.run_key).attempts[0].is_live


@pytest.mark.parametrize("found_by", ["settling", "reconciliation"])
def test_whoever_else_finds_that_a_training_is_done_waits_for_a_store_that_throttles(
    world: World, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    spec, log = started(world), logging.getLogger(__name__)
    world.runs.write_result(spec.run_key, 1, result(0))
    world.launcher.finish(spec)
    with world.services.ledger.transaction() as tx:
        (lease,) = tx.held_leases()
        tx.put_lease(replace(lease, state=LeaseState.SUSPECT))
    monkeypatch.setattr(world.runs, "__class__", Throttled)
    world.runs.refusals = [OSError("503 SlowDown")] * 3  # type: ignore[attr-defined]
    if found_by == "settling":
        end_unwatched(api_client(CONN), spec.run_key, log)
    else:
        reconcile_once(api_client(CONN), log)
    assert world.view(spec.run_key).run.state is JobState.SUCCEEDED


@pytest.mark.usefixtures("unreadable")
def test_an_unwatched_attempt_ends_though_its_run_directory_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_STORE_PATIENCE_S", 0.0)
    spec = started(world)
    end_unwatched(api_client(CONN), spec.run_key, logging.getLogger(__name__))
    assert not world.view(spec.run_key).attempts[0].is_live


@pytest.mark.usefixtures("unreadable")
def test_reconciliation_reports_what_the_launcher_proves_though_the_run_directory_cannot_be_read(world: World) -> None:
    spec = started(world)
    world.launcher.finish(spec)
    target = ReconcileTarget(run_key=spec.run_key, attempt=spec.attempt, spec=spec, suspect=True, stop=False)
    finding = _look(workers(), target, logging.getLogger(__name__), until_s=0.0)
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
