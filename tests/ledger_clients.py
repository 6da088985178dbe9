"""Many client processes on one ledger at once: each takes GPUs, renews its lease, reads, and gives them back.

    python -m tests.ledger_clients URL CLIENTS ROUNDS

Prints JSON: the seconds of every operation by kind, and what went wrong. Who holds how many GPUs of a
node is counted apart from the ledger, in shared memory: more than there are is a double booking, whatever
the ledger says. Nobody pauses between two operations, so the figures are those of a ledger that is
never idle.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.contract import values

from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger
from frenzy.core.runs.ledger import Event, Lease, LeaseState
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import FrenzyError
from frenzy.ports import LeasedAttempt, LedgerConflict, LedgerTx

NUM_NODES: Final = 6
GPUS_OF_NODE: Final = 4
# Share of the clients' wishes that do not look at what is free.
BOLD: Final = 0.1
GRANT: Final = "grant: read the facts, queue the run, take its GPUs"
RENEW: Final = "renew a lease"
READ: Final = "read queue, leases and cluster"
END: Final = "end a lease"
_SPAWN: Final = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one client, or all of them, saw: seconds of each operation by kind; faults are never expected.

    took_s: from the moment at which all clients were connected until the last one had ended.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    num_granted: int = 0
    num_refused: int = 0
    took_s: float = 0.0


def cluster() -> Cluster:
    """Fewer GPUs than fifty clients want."""
    return values.cluster(*(values.node(f"n{number}", num_gpus=GPUS_OF_NODE) for number in range(NUM_NODES)))


def play(url: str, num_clients: int, num_rounds: int) -> Outcome:
    """All clients at once, each for ``num_rounds``; their outcomes together."""
    ledger = SqlLedger.at(url)
    with ledger.transaction() as tx:
        tx.put_cluster(cluster())
    ledger.close()
    in_use = _SPAWN.Array("i", NUM_NODES)
    start, results = _SPAWN.Barrier(num_clients + 1), _SPAWN.SimpleQueue()
    clients = [
        _SPAWN.Process(target=_client, args=(url, number, num_rounds, start, in_use, results))
        for number in range(num_clients)
    ]
    for each in clients:
        each.start()
    start.wait()
    began = time.perf_counter()
    found = [results.get() for _ in clients]
    took_s = time.perf_counter() - began
    for each in clients:
        each.join()
    return replace(_together(found), took_s=took_s)


def _together(found: list[Outcome]) -> Outcome:
    seconds: dict[str, list[float]] = defaultdict(list)
    for outcome in found:
        for name, taken in outcome.seconds.items():
            seconds[name] += taken
    return Outcome(
        seconds=seconds,
        faults=[fault for outcome in found for fault in outcome.faults],
        num_granted=sum(each.num_granted for each in found),
        num_refused=sum(each.num_refused for each in found),
    )


def _client(url: str, number: int, num_rounds: int, start: Any, in_use: Any, results: Any) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    faults: list[str] = []
    granted = refused = 0
    draw = random.Random(number)
    ledger = SqlLedger.at(url)
    with ledger.reading():  # connected by then
        pass
    start.wait()
    try:
        for turn in range(num_rounds):
            lease = _grant(ledger, f"c{number}-{turn}", draw, seconds)
            if lease is None:
                refused += 1
            else:
                granted += 1
                faults += _hold(ledger, lease, in_use, seconds)
    except FrenzyError as error:
        faults.append(f"client {number}: {error!r}")
    ledger.close()
    results.put(Outcome(seconds, faults, granted, refused))


def _grant(ledger: SqlLedger, name: str, draw: random.Random, seconds: dict[str, list[float]]) -> Lease | None:
    """A lease on GPUs that were free when the facts were read; None when it was refused, or none were free."""
    run = values.run(name)
    with _timed(seconds, GRANT), ledger.transaction() as tx:
        lease = values.lease(run.run_key, **_wanted(_room(tx), draw))
        tx.put_run(run)
        tx.add_event(Event(run_key=run.run_key, time_s=1.0, kind="asked", text=name))
        try:
            tx.put_lease(lease)
            tx.put_attempt(values.attempt(run.run_key))
        except LedgerConflict:
            tx.put_queue_entry(values.queue_entry(run.run_key))
            return None
    return lease


def _wanted(room: Counter[str], draw: random.Random) -> dict[str, int]:
    """Nodes and GPUs to ask for; now and then, or when all is taken, some that are not free."""
    free = sorted(node for node, num_free in room.items() if num_free > 0)
    if not free or draw.random() < BOLD:
        return {draw.choice(sorted(room)): GPUS_OF_NODE}
    nodes = draw.sample(free, min(len(free), draw.choice((1, 1, 2))))
    return {node: draw.randint(1, room[node]) for node in nodes}


def _room(tx: LedgerTx) -> Counter[str]:
    room = Counter({node.name: node.num_gpus for node in tx.cluster().nodes})
    for lease in tx.held_leases():
        for each in lease.placement.allocations:
            room[each.node] -= each.num_gpus
    return room


def _hold(ledger: SqlLedger, lease: Lease, in_use: Any, seconds: dict[str, list[float]]) -> list[str]:
    """Use the GPUs between two looks of the ledger's; what went wrong."""
    faults = _count(in_use, lease, 1)
    attempt = values.attempt(lease.run_key)
    renewed = replace(lease, heartbeat_s=lease.heartbeat_s + 1, expires_s=lease.expires_s + 1)
    before, after = (
        LeasedAttempt(attempt=attempt, lease=lease),
        LeasedAttempt(attempt=replace(attempt, last_step=5), lease=renewed),
    )
    with _timed(seconds, RENEW):
        faults += [] if ledger.renew(before, after) else [f"the heartbeat of {lease.run_key} was refused"]
    with _timed(seconds, READ), ledger.reading() as tx:
        tx.queue()
        faults += [f"the ledger shows {-free} GPUs too many on {node}" for node, free in _room(tx).items() if free < 0]
    faults += _count(in_use, lease, -1)
    ended = replace(renewed, state=LeaseState.ENDED, ended_s=2.0, end_reason=values.ENDED)
    with _timed(seconds, END), ledger.transaction() as tx:
        tx.put_lease(ended)
    return faults


def _count(in_use: Any, lease: Lease, sign: int) -> list[str]:
    faults = []
    with in_use.get_lock():
        for each in lease.placement.allocations:
            node = int(each.node.removeprefix("n"))
            in_use[node] += sign * each.num_gpus
            if in_use[node] > GPUS_OF_NODE:
                faults.append(f"{in_use[node]} GPUs of {each.node} in use, there are {GPUS_OF_NODE}")
    return faults


@contextmanager
def _timed(seconds: dict[str, list[float]], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[name].append(time.perf_counter() - began)


def main(url: str, num_clients: str, num_rounds: str) -> None:
    """Play and print the outcome."""
    outcome = play(url, int(num_clients), int(num_rounds))
    print(json.dumps({name: getattr(outcome, name) for name in Outcome.__dataclass_fields__}))


if __name__ == "__main__":
    main(*sys.argv[1:])
