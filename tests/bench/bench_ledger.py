"""The ledger under many clients: how long each operation takes, waiting for the lock included.

PostgreSQL with fifty client processes and commits that reach the disk, SQLite with eight, and each with
one. No client ever pauses; in a real installation most of the time nobody asks. Then what most of them do: heartbeats
and polls for a place, beside passes, with heartbeats that wait for the writers' lock and with those that do not. Then
how often a pass reads the ledger, and how long one takes with many jobs.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests import postgres
from tests.bench.bench_marp import LLAMA_8B, asked
from tests.bench.report import figure, publish
from tests.contract import values
from tests.contract.ledgers import SqlWorld, postgres_world, sqlite_world
from tests.in_memory.sources import FakeClock
from tests.unit.adapters.test_ledger_cost import MOST_READS, a_pass, counted, filled
from tests.unit.installation import in_memory_services

from frenzy.adapters.calibration_file import default_calibration
from frenzy.app.schedule_pass import run_pass
from frenzy.app.services import Services
from frenzy.core.planning.marp import plan_candidates
from frenzy.core.runs.ledger import Attempt, JobState, Lease, LeaseState, RunRecord
from frenzy.core.values.cluster import Cluster, NodeAllocation, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import Candidate
from frenzy.ports import LedgerTx
from frenzy.sim.clusters import cluster_named

_CHECKOUT: Final = Path(__file__).parents[2]
# Rounds of each client, so that every case comes to some hundred operations of each kind.
CASES: Final = (("postgresql", 50, 4), ("postgresql", 1, 50), ("sqlite", 8, 20), ("sqlite", 1, 50))
# Waiting and running.
PASS_JOBS: Final = (1000, 200)
NUM_PASSES: Final = 100
BEST: Final = Reason(code=ReasonCode.BEST_PLAN)
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
                services = filled(world, *PASS_JOBS, num_nodes=PASS_JOBS[1] // 2)
                rows += _passes(services, "", lambda _: (Candidate(plan=values.plan(2), rank=1, reason=BEST),))
            with postgres_world(server) as world:
                rows += _passes(with_8b_jobs(world, *PASS_JOBS), " 8B jobs", _plans_of_8b)
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


def with_8b_jobs(world: SqlWorld, num_waiting: int, num_running: int) -> Services:
    """8B jobs, each with plans of its own, eight of which take up a copy of the cluster of 64 GPUs."""
    one = cluster_named("64")
    nodes = (replace(node, name=f"{node.name}-{copy}") for copy in range(-(-num_running // 8)) for node in one.nodes)
    cluster = Cluster(one.gpu_types, tuple(nodes))
    groups = [group for kind in one.gpu_types for group in _groups_of_eight(cluster, kind.name)][:num_running]
    with world.ledger.transaction() as tx:
        tx.put_cluster(cluster)
        for number in range(num_waiting):
            run = values.run(f"waiting{number}")
            _queue(tx, run, _plans_of_8b(run))
        for number, group in enumerate(groups):
            _run_8b(tx, values.run(f"running{number}", state=JobState.RUNNING), *group)
    return replace(in_memory_services(), ledger=world.ledger)


def _groups_of_eight(cluster: Cluster, gpu_type: str) -> list[tuple[str, Placement]]:
    nodes = [each for each in cluster.nodes if each.gpu_type == gpu_type]
    num_nodes = 8 // nodes[0].num_gpus
    shares = [NodeAllocation(node=each.name, num_gpus=each.num_gpus) for each in nodes]
    firsts = range(0, len(shares), num_nodes)
    return [(gpu_type, Placement(allocations=tuple(shares[first : first + num_nodes]))) for first in firsts]


def _queue(tx: LedgerTx, run: RunRecord, candidates: tuple[Candidate, ...]) -> None:
    tx.put_run(replace(run, plan_table=tx.put_plan_table(candidates)))
    plans = tuple(each.plan for each in candidates if each.feasible)
    tx.put_queue_entry(replace(values.queue_entry(run.run_key), plans=plans))


def _run_8b(tx: LedgerTx, run: RunRecord, gpu_type: str, placement: Placement) -> None:
    candidates = _plans_of_8b(run)
    tx.put_run(replace(run, plan_table=tx.put_plan_table(candidates)))
    plan = next(
        each.plan for each in candidates if each.feasible and (each.plan.gpu_type, each.plan.num_gpus) == (gpu_type, 8)
    )
    tx.put_attempt(
        Attempt(
            run_key=run.run_key,
            attempt=1,
            plan=plan,
            placement=placement,
            created_s=1.0,
            next_attempt=values.next_attempt(),
            first_step_s=10.0,
            last_step=1,
        )
    )
    tx.put_lease(
        Lease(
            run_key=run.run_key,
            attempt=1,
            gpu_type=gpu_type,
            placement=placement,
            state=LeaseState.LIVE,
            granted_s=1.0,
            heartbeat_s=1.0,
            expires_s=61.0,
        )
    )


def _plans_of_8b(run: RunRecord) -> tuple[Candidate, ...]:
    """Of as many steps as nobody else's: no two jobs have the same plans."""
    share = 1.0 + int(run.run_key, 16) % 1_000_000 / 1e6
    return tuple(
        replace(each, plan=replace(each.plan, predicted_run_s=share * each.plan.predicted_run_s))
        for each in _planned_8b()
    )


@cache
def _planned_8b() -> tuple[Candidate, ...]:
    return plan_candidates(asked(LLAMA_8B, 256), cluster_named("64"), default_calibration())


def _passes(
    services: Services, of: str, plans_of: Callable[[RunRecord], tuple[Candidate, ...]]
) -> list[dict[str, Any]]:
    """A job comes, and a pass looks at all; each from its request to its commit."""
    clock = FakeClock()
    services = replace(services, clock=clock)
    a_pass(services)
    gc.collect()  # what was left of making the jobs, which no process of the product makes
    seconds, cpu_s = [], []
    for number in range(NUM_PASSES):
        run = values.run(f"new{number}")
        candidates = plans_of(run)
        clock.advance(5.0)
        began, began_cpu_s = time.perf_counter(), time.process_time()
        with services.ledger.transaction() as tx:
            _queue(tx, run, candidates)
            run_pass(tx, services, clock.now_s())
        seconds.append(time.perf_counter() - began)
        cpu_s.append(time.process_time() - began_cpu_s)
    title = "PostgreSQL, a job comes and a pass looks at {:,} waiting and {} running{}".format(*PASS_JOBS, of)
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
