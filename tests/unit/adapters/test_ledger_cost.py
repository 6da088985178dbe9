"""What the SQL ledger costs: reads do not grow with jobs, and heartbeats overwrite no writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine
from tests.contract import values
from tests.contract.ledgers import DATABASES, SqlWorld, postgres_world, sqlite_world
from tests.in_memory.sources import FakeClock
from tests.unit.installation import in_memory_services

from frenzy.app.observe import report_progress
from frenzy.app.queries import gpus_view, list_runs, queue_view
from frenzy.app.queue_snapshot import queue_snapshot
from frenzy.app.schedule_pass import run_pass
from frenzy.app.services import Services, require_attempt
from frenzy.core.runs.ledger import Attempt, JobState
from frenzy.core.runs.protocol import DirectiveKind, ProgressReport
from frenzy.core.scheduling import Policy
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import SchedulingFacts, Start

MOST_READS = 12
NUM_NODES = 20
ASKED_TO_STOP = Reason(code=ReasonCode.PREEMPTED, detail="Another is to run there.")


@pytest.fixture(params=DATABASES)
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Makes empty ledgers."""
    if request.param == "sqlite":
        return lambda: closing(sqlite_world(tmp_path))
    return lambda: postgres_world(request.getfixturevalue("postgres_server"))


def filled(world: SqlWorld, num_waiting: int, num_running: int, num_nodes: int = NUM_NODES) -> Services:
    """Services on a ledger with so many jobs, and a few that have just ended an attempt."""
    with world.ledger.transaction() as tx:
        tx.put_cluster(values.cluster(*(values.node(f"n{number}") for number in range(num_nodes))))
        for number in range(num_waiting):
            run = values.run(f"waiting{number}")
            tx.put_run(run)
            tx.put_queue_entry(replace(values.queue_entry(run.run_key), plans=(values.plan(2),)))
        for number in range(num_running):
            run = values.run(f"running{number}", state=JobState.RUNNING)
            tx.put_run(run)
            tx.put_attempt(running_attempt(run.run_key, f"n{number % num_nodes}"))
            tx.put_lease(values.lease(run.run_key, **{f"n{number % num_nodes}": 1}))
        for number in range(num_waiting // 10):
            tx.put_run(values.run(f"recovering{number}", state=JobState.RECOVERING))
    return replace(in_memory_services(), ledger=world.ledger)


def running_attempt(run_key: str, node: str) -> Attempt:
    attempt = values.attempt(run_key)
    return replace(
        attempt,
        plan=values.plan(1),
        placement=values.placement(**{node: 1}),
        stop_reason=None,
        stop_asked_s=None,
        move_to=None,
        result=None,
        first_step_s=10.0,
        last_step=1,
    )


@contextmanager
def counted() -> Iterator[list[str]]:
    """The verbs of the statements that reach a database inside."""
    verbs: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        verbs.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", count)
    try:
        yield verbs
    finally:
        event.remove(Engine, "before_cursor_execute", count)


def a_pass(services: Services) -> None:
    with services.ledger.transaction() as tx:
        run_pass(tx, services, services.clock.now_s())


LOOKS: dict[str, Callable[[Services], object]] = {
    "pass": a_pass,
    "queue": queue_view,
    "gpus": gpus_view,
    "runs": lambda services: list_runs(services, limit=1000),
    "snapshot": queue_snapshot,
}


def statements(new_world: Callable[[], Any], num_waiting: int, num_running: int) -> dict[str, list[str]]:
    """By look, what it asks the database once the pass has nothing left to change."""
    found = {}
    with new_world() as world:
        services = filled(world, num_waiting, num_running)
        a_pass(services)
        for name, look in LOOKS.items():
            with counted() as found[name]:
                look(services)
    return found


def test_reads_do_not_grow_with_jobs(new_world: Callable[[], Any]) -> None:
    few, many = statements(new_world, 10, 4), statements(new_world, 100, 40)
    assert {name: len(each) for name, each in few.items()} == {name: len(each) for name, each in many.items()}
    assert max(each.count("SELECT") for each in many.values()) <= MOST_READS
    assert not {"UPDATE", "INSERT", "DELETE"} & set(many["pass"]), "what has not changed is not written"


def test_all_holds_of_a_pass_are_written_by_one_statement(new_world: Callable[[], Any]) -> None:
    with new_world() as world:
        services = filled(world, 30, 40)
        with counted() as verbs:
            a_pass(services)
        assert verbs.count("UPDATE") == 1
        assert all(each.reason is not None for each in queue_view(services).waiting)


def test_all_starts_that_wait_for_jobs_to_leave_are_written_by_one_statement(new_world: Callable[[], Any]) -> None:
    """Each of thirty is to start on a node that a job is to leave for another."""
    with new_world() as world:
        services = filled(world, 30, NUM_NODES)
        with world.ledger.transaction() as tx:
            for lease in tx.held_leases():
                attempt = require_attempt(tx, lease.run_key, 1)
                tx.put_attempt(replace(attempt, stop_reason=Reason(code=ReasonCode.PREEMPTED), stop_asked_s=1.0))
        to_start = replace(services, schedule=starts_on_all_nodes)
        with counted() as verbs:
            a_pass(to_start)
        assert verbs.count("UPDATE") == 1
        reasons = [each.reason for each in queue_view(services).waiting]
        assert {each and each.code for each in reasons} == {ReasonCode.WAITING_FOR_MOVE}


def starts_on_all_nodes(facts: SchedulingFacts, *, now_s: float, policy: Policy) -> tuple[Start, ...]:
    """For each that waits a start on one of the nodes, of all of its GPUs."""
    return tuple(
        Start(run_key=job.run_key, plan=job.plans[0], placement=values.placement(**{f"n{number % NUM_NODES}": 2}))
        for number, job in enumerate(each for each in facts.queued if each.plans[0].num_gpus == 2)
    )


def test_a_heartbeat_is_two_updates_and_waits_for_no_writer(new_world: Callable[[], Any]) -> None:
    with new_world() as world:
        clock = FakeClock()
        services, key = replace(filled(world, 0, 1), clock=clock), values.run("running0").run_key
        report_progress(services, key, 1, ProgressReport(last_step=2))
        clock.advance(10)
        has_one_writer = world.url.startswith("sqlite")  # of all of the database
        with nullcontext() if has_one_writer else world.ledger.transaction(), counted() as verbs:
            report_progress(services, key, 1, ProgressReport(last_step=3))
        assert (verbs.count("UPDATE"), verbs.count("INSERT")) == (2, 0)
        assert verbs.count("SELECT") == 3


def test_no_heartbeat_undoes_what_a_writer_asked_for(new_world: Callable[[], Any]) -> None:
    """Monitors that never pause, and a writer that asks one attempt after the other to stop."""
    with new_world() as world:
        services = filled(world, 0, 8)
        keys = [values.run(f"running{number}").run_key for number in range(8)]
        asked = {key: threading.Event() for key in keys}
        faults: list[str] = []
        for key in keys:  # since when they may be moved is known by now
            report_progress(services, key, 1, ProgressReport(last_step=2))

        def beat(key: str) -> None:
            for step in range(3, 10):
                was_asked = asked[key].is_set()
                directive = report_progress(services, key, 1, ProgressReport(last_step=step))
                if was_asked and directive.kind is not DirectiveKind.CHECKPOINT_AND_STOP:
                    faults.append(f"{key} was told to {directive.kind} after it was asked to stop")

        def ask() -> None:
            for key in keys:
                with services.ledger.transaction() as tx:
                    attempt = require_attempt(tx, key, 1)
                    tx.put_attempt(replace(attempt, stop_reason=ASKED_TO_STOP))
                asked[key].set()

        threads = [threading.Thread(target=beat, args=(key,)) for key in keys] + [threading.Thread(target=ask)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for key in keys:
            report_progress(services, key, 1, ProgressReport(last_step=10))
        with services.ledger.reading() as tx:
            kept = [require_attempt(tx, key, 1) for key in keys]
        assert faults == []
        assert {(each.stop_reason, each.last_step) for each in kept} == {(ASKED_TO_STOP, 10)}
