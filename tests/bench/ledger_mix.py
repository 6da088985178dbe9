"""Fifty monitors that report and fifty tasks that ask for their place, at once and without a pause.

    python -m tests.bench.ledger_mix URL CLIENTS SECONDS (quick|locked)

Prints JSON: how many operations were done, the seconds of each by kind, and how many reports were lost. ``locked``
lets every report wait for the writers' lock, as all did before heartbeats were told from other reports.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections import defaultdict
from dataclasses import replace
from typing import Any, Final

from tests.contract import values
from tests.unit.adapters.test_ledger_cost import running_attempt
from tests.unit.installation import in_memory_services

from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger
from frenzy.app.observe import report_progress
from frenzy.app.place import place_status
from frenzy.app.schedule_pass import run_pass
from frenzy.app.services import Services, require_attempt
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import ProgressReport
from frenzy.ports import LeasedAttempt
from frenzy.wiring import SystemClock

HEARTBEAT: Final = "heartbeat"
POLL: Final = "poll of a place"
_SPAWN: Final = multiprocessing.get_context("fork")


class LockedLedger(SqlLedger):
    """Takes the writers' lock for every report."""

    def renew(self, before: LeasedAttempt, after: LeasedAttempt) -> bool:
        return False


def fill(url: str, num_clients: int) -> list[tuple[str, str]]:
    """A ledger on which each client has a run that trains and one that waits; their keys."""
    ledger, now_s = SqlLedger.at(url), time.time()
    with ledger.transaction() as tx:
        tx.put_cluster(values.cluster(*(values.node(f"n{number}") for number in range(num_clients))))
        keys = []
        for number in range(num_clients):
            running, waiting = values.run(f"running{number}", state=JobState.RUNNING), values.run(f"waiting{number}")
            tx.put_run(running)
            tx.put_attempt(replace(running_attempt(running.run_key, f"n{number}"), first_step_s=now_s - 3600))
            lease = values.lease(running.run_key, **{f"n{number}": 2})
            tx.put_lease(replace(lease, heartbeat_s=now_s, expires_s=now_s + 3600))
            tx.put_run(waiting)
            tx.put_queue_entry(values.queue_entry(waiting.run_key))
            keys.append((running.run_key, waiting.run_key))
    ledger.close()
    return keys


def _client(services: Services, keys: tuple[str, str], ends_s: float, start: Any, results: Any) -> None:
    running, waiting = keys
    seconds: dict[str, list[float]] = defaultdict(list)
    report_progress(services, running, 1, ProgressReport(last_step=1))  # connections and statements are made by then
    place_status(services, waiting)
    start.wait()
    ends_s, step = time.time() + ends_s, 1
    while time.time() < ends_s:
        step += 1
        began = time.perf_counter()
        report_progress(services, running, 1, ProgressReport(last_step=min(step, 10), last_loss=1.0 / step))
        reported = time.perf_counter()
        place_status(services, waiting)
        seconds[HEARTBEAT].append(reported - began)
        seconds[POLL].append(time.perf_counter() - reported)
    with services.ledger.reading() as tx:
        is_lost = require_attempt(tx, running, 1).last_step != min(step, 10)
    results.put((dict(seconds), is_lost))


def play(url: str, num_clients: int, seconds: float, kind: str) -> dict[str, Any]:
    """All clients at once, with a pass every half second beside them."""
    keys = fill(url, num_clients)
    ledger = (LockedLedger if kind == "locked" else SqlLedger).at(url)
    services = replace(in_memory_services(), ledger=ledger, clock=SystemClock())
    with ledger.transaction() as tx:
        run_pass(tx, services, time.time())
    ledger.close()
    start, results = _SPAWN.Barrier(num_clients + 1), _SPAWN.SimpleQueue()
    clients = [_SPAWN.Process(target=_client, args=(services, each, seconds, start, results)) for each in keys]
    for each in clients:
        each.start()
    start.wait()
    ends_s, passes = time.time() + seconds, []
    while time.time() < ends_s:
        began = time.perf_counter()
        with ledger.transaction() as tx:
            run_pass(tx, services, time.time())
        passes.append(time.perf_counter() - began)
        time.sleep(0.5)
    found = [results.get() for _ in clients]
    for each in clients:
        each.join()
    ledger.close()
    by_kind = {name: [one for each, _ in found for one in each[name]] for name in (HEARTBEAT, POLL)}
    return {"seconds": {**by_kind, "pass": passes}, "num_lost": sum(is_lost for _, is_lost in found)}


def main(url: str, num_clients: str, seconds: str, kind: str) -> None:
    """Play and print the outcome."""
    print(json.dumps(play(url, int(num_clients), float(seconds), kind)))


if __name__ == "__main__":
    main(*sys.argv[1:])
