"""Triggers go on from what the API and the run directory say, and end what a person has ended."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.airflow.conftest import World
from tests.unit.airflow.triggering import CONN, Run, belongs_to, held, moved, of, result, started, until

from frenzy.airflow.connection import api_client
from frenzy.airflow.tasks.settle import end_unwatched
from frenzy.airflow.triggers.triggers import LaunchTrigger, MonitorTrigger
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import EndReport
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import ExitCode
from frenzy.ports import WorkersState


@pytest.mark.parametrize("kind", [LaunchTrigger, MonitorTrigger])
def test_a_trigger_is_made_again_from_what_it_serializes(kind: Any) -> None:
    classpath, arguments = kind(run_key="abc", attempt=2, conn_id=CONN).serialize()
    assert classpath == f"frenzy.airflow.triggers.triggers.{kind.__name__}"
    assert kind(**arguments).serialize() == (classpath, arguments)


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
    control = world.runs.controls[spec.run_key, spec.attempt]
    assert control.reason is not None
    assert control.reason.code is ReasonCode.CANCELLED_BY_USER


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


def test_a_task_that_waits_for_another_trigger_was_cleared(world: World, run_async: Run) -> None:
    spec = started(world)
    trigger = of(LaunchTrigger, spec)
    moved(trigger, world, "train.launch")
    trigger.trigger_id = 6
    run_async(trigger.on_kill())
    assert world.launcher.stopped == [(spec.run_key, 1, 0.5)]


@pytest.fixture(params=[LaunchTrigger, MonitorTrigger])
def watching(request: pytest.FixtureRequest, world: World) -> Any:
    """A trigger of a run whose workers are alive."""
    return of(request.param, started(world))


def test_a_trigger_that_another_triggerer_has_now_leaves_the_training_alone(
    world: World, run_async: Run, watching: Any
) -> None:
    moved(watching, world, "train.launch")
    run_async(watching.on_kill())
    assert world.launcher.stopped == []
    assert not world.view(watching.run_key).run.cancel_requested


def test_a_task_that_ended_with_its_attempt_in_another_triggerer_cancels_nothing(
    world: World, run_async: Run, watching: Any
) -> None:
    run_async(watching.spec())
    end_attempt(world.services, watching.run_key, 1, EndReport(result=result(ExitCode.CHECKPOINTED)))
    belongs_to(watching, world, "train.launch", "success")
    run_async(watching.on_kill())
    assert not world.view(watching.run_key).run.cancel_requested


def test_nothing_is_ended_while_the_state_of_the_task_is_not_known(world: World, run_async: Run) -> None:
    spec = started(world)
    trigger = of(LaunchTrigger, spec)
    belongs_to(trigger, world, "train.launch", "failed")
    world.airflow.refuses = True
    run_async(trigger.on_kill())
    assert world.launcher.state(spec) is WorkersState.ALIVE
    assert not world.view(spec.run_key).run.cancel_requested


def test_clearing_the_monitor_leaves_the_training_alone(world: World, run_async: Run) -> None:
    spec = started(world)
    trigger = of(MonitorTrigger, spec)
    belongs_to(trigger, world, "train.monitor", "scheduled")
    run_async(trigger.on_kill())
    assert world.launcher.stopped == []
    assert not world.view(spec.run_key).run.cancel_requested


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


def test_a_trigger_of_no_number_is_one_of_the_attempt_that_is_placed(world: World, run_async: Run) -> None:
    spec = started(world)
    trigger = MonitorTrigger(run_key=spec.run_key, conn_id=CONN)
    assert run_async(trigger.spec()) == spec
    assert trigger.attempt == 1


def test_the_end_of_an_unwatched_attempt_is_that_of_the_ledgers_spec(world: World) -> None:
    victim, spec = started(world, name="victim"), started(world)
    forged(world, spec, victim)
    client = api_client(CONN)
    end_unwatched(client, spec.run_key, logging.getLogger(__name__))
    assert world.launcher.state(spec) is WorkersState.GONE
    assert world.launcher.state(victim) is WorkersState.ALIVE
    assert not world.view(spec.run_key).attempts[0].is_live
