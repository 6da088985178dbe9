"""The ledger under many clients: how long each operation takes, waiting for the lock included.

PostgreSQL with fifty client processes and commits that reach the disk, SQLite with eight, and each with
one. No client ever pauses; in a real installation most of the time nobody asks. Then what most of them do: heartbeats
and polls for a place, beside passes, with heartbeats that wait for the writers' lock and with those that do not. Then
how often a pass reads the ledger, and how long one takes with many jobs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests import postgres
from tests.bench.report import figure, publish
from tests.contract import values
from tests.contract.ledgers import SqlWorld, postgres_world, sqlite_world
from tests.in_memory.sources import FakeClock
from tests.unit.adapters.test_ledger_cost import MOST_READS, a_pass, counted, filled

from frenzy.app.schedule_pass import run_pass

_CHECKOUT: Final = Path(__file__).parents[2]
# Rounds of each client, so that every case comes to some hundred operations of each kind.
CASES: Final = (("postgresql", 50, 4), ("postgresql", 1, 50), ("sqlite", 8, 20), ("sqlite", 1, 50))
# Waiting and running.
PASS_JOBS: Final = (1000, 200)
NUM_PASSES: Final = 100
MIX_CLIENTS: Final = 50
MIX_S: Final = 6.0


def main() -> list[dict[str, Any]]:
    """Play all cases; the server is the tests' own, or the one that is named."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for database, num_clients, num_rounds in CASES:
            if database == "sqlite":
                rows += _case(f"sqlite:///{folder}/{num_clients}.db", database, num_clients, num_rounds)
            elif postgres.is_available():
                with postgres.running_server(durable=True) as server:
                    rows += _case(server.new_database(), database, num_clients, num_rounds)
            else:
                print(postgres.MISSING)
        for num_waiting in (10, 100):
            rows.append(_reads_of_a_pass(Path(folder), num_waiting))
    if postgres.is_available():
        with postgres.running_server(durable=True) as server:
            for kind in ("locked", "quick"):
                rows += _mix(server.new_database(), kind)
            with postgres_world(server) as world:
                rows += _passes(world)
    return publish("ledger", rows)


def _case(url: str, database: str, num_clients: int, num_rounds: int) -> list[dict[str, Any]]:
    seen = _played(url, "tests.ledger_clients", str(num_clients), str(num_rounds))
    title = f"{database}, {num_clients} client" + ("s" if num_clients > 1 else "")
    num_done = sum(len(each) for each in seen["seconds"].values())
    rows = [
        figure(f"{title}: double bookings, deadlocks, timeouts", len(seen["faults"]), "", goal=0),
        figure(f"{title}: operations in a second", num_done / seen["took_s"], "1/s"),
    ]
    for name, seconds in seen["seconds"].items():
        short = name.partition(":")[0]
        rows.append(figure(f"{title}: {short}, median", 1000 * statistics.median(seconds), "ms"))
        rows.append(figure(f"{title}: {short}, p99", 1000 * _p99(seconds), "ms"))
    return rows


def _reads_of_a_pass(folder: Path, num_waiting: int) -> dict[str, Any]:
    with closing(sqlite_world(folder)) as world:
        services = filled(world, num_waiting, num_running=2 * num_waiting // 5)
        a_pass(services)
        with counted() as verbs:
            a_pass(services)
    return figure(f"a pass over {num_waiting} waiting jobs: reads", verbs.count("SELECT"), "", goal=MOST_READS)


def _passes(world: SqlWorld) -> list[dict[str, Any]]:
    """A job comes, and a pass looks at all; each from its request to its commit."""
    clock = FakeClock()
    services = replace(filled(world, *PASS_JOBS, num_nodes=PASS_JOBS[1] // 2), clock=clock)
    a_pass(services)
    seconds, cpu_s = [], []
    for number in range(NUM_PASSES):
        run = values.run(f"new{number}")
        clock.advance(5.0)
        began, began_cpu_s = time.perf_counter(), time.process_time()
        with services.ledger.transaction() as tx:
            tx.put_run(run)
            tx.put_queue_entry(replace(values.queue_entry(run.run_key), plans=(values.plan(2),)))
            run_pass(tx, services, clock.now_s())
        seconds.append(time.perf_counter() - began)
        cpu_s.append(time.process_time() - began_cpu_s)
    title = "PostgreSQL, a job comes and a pass looks at {:,} waiting and {} running".format(*PASS_JOBS)
    return [
        figure(f"{title}: CPU of the process, median", 1000 * statistics.median(cpu_s), "ms"),
        figure(f"{title}: median", 1000 * statistics.median(seconds), "ms"),
        figure(f"{title}: p99", 1000 * _p99(seconds), "ms", goal=250),
    ]


def _mix(url: str, kind: str) -> list[dict[str, Any]]:
    seen = _played(url, "tests.bench.ledger_mix", str(MIX_CLIENTS), str(MIX_S), kind)
    title = f"{MIX_CLIENTS} monitors and tasks, {'heartbeats under the lock' if kind == 'locked' else 'as it is'}"
    num_done = sum(len(each) for each in seen["seconds"].values())
    rows = [
        figure(f"{title}: reports lost", seen["num_lost"], "", goal=0),
        figure(f"{title}: operations in a second", num_done / MIX_S, "1/s"),
    ]
    for name, seconds in seen["seconds"].items():
        rows.append(figure(f"{title}: {name}, median", 1000 * statistics.median(seconds), "ms"))
        rows.append(figure(f"{title}: {name}, p99", 1000 * _p99(seconds), "ms"))
    return rows


def _played(url: str, module: str, *arguments: str) -> Any:
    from frenzy.adapters.ledger_sql.schema import migrate

    migrate(url)
    command = [sys.executable, "-m", module, url, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=_CHECKOUT).stdout)


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]
