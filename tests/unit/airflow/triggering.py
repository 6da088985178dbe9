"""What tests of triggers share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from airflow.triggers.base import TriggerEvent
from tests.unit.airflow.conftest import World

from frenzy.airflow.triggers.triggers import RunTrigger
from frenzy.app.observe import attempt_launching, attempt_started
from frenzy.core.runs.protocol import AttemptStarted
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.telemetry import StepRecord

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


def held(world: World) -> Any:
    with world.services.ledger.reading() as tx:
        return tx.held_leases()


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


def moved(trigger: Any, world: World, task_id: str) -> None:
    """The task waits for the trigger still, which another triggerer has now."""
    belongs_to(trigger, world, task_id, "deferred")
    trigger.trigger_id = world.airflow.task_triggers[task_id] = 7


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
            peaks=PeakMemory(
                allocated_bytes=capacity // 2 + grows_bytes * (step - first),
                reserved_bytes=capacity // 2 + grows_bytes * (step - first),
                device_used_bytes=capacity // 2,
            ),
            capacity_bytes=capacity,
        )
        for step in range(first, last + 1)
    )


def report(world: World, spec: LaunchSpec, records: tuple[StepRecord, ...]) -> None:
    """Every rank reports ``records``."""
    for rank in range(spec.plan.num_gpus):
        world.runs.write_chunk(spec.run_key, spec.attempt, [replace(each, rank=rank) for each in records])


def result(exit_code: int) -> AttemptResult:
    return AttemptResult(exit_code=exit_code, last_step=7 if exit_code else 100, total_steps=100)
