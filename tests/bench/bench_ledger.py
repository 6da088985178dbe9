"""The ledger under many clients: how long each operation takes, waiting for the lock included.

PostgreSQL with fifty client processes and commits that reach the disk, SQLite with eight, and each with
one. No client ever pauses; in a real installation most of the time nobody asks.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests import postgres
from tests.bench.report import figure, publish

_CHECKOUT: Final = Path(__file__).parents[2]
# Rounds of each client, so that every case comes to some hundred operations of each kind.
CASES: Final = (("postgresql", 50, 8), ("postgresql", 1, 200), ("sqlite", 8, 40), ("sqlite", 1, 200))


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
    return publish("ledger", rows)


def _case(url: str, database: str, num_clients: int, num_rounds: int) -> list[dict[str, Any]]:
    from frenzy.adapters.storage.schema import migrate

    migrate(url)
    began = time.perf_counter()
    command = [sys.executable, "-m", "tests.ledger_clients", url, str(num_clients), str(num_rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_CHECKOUT)
    took_s = time.perf_counter() - began
    seen = json.loads(done.stdout)
    title = f"{database}, {num_clients} client" + ("s" if num_clients > 1 else "")
    num_done = sum(len(each) for each in seen["seconds"].values())
    rows = [
        figure(f"{title}: double bookings, deadlocks, timeouts", len(seen["faults"]), "", goal=0),
        figure(f"{title}: operations in a second", num_done / took_s, "1/s"),
    ]
    for name, seconds in seen["seconds"].items():
        short = name.partition(":")[0]
        rows.append(figure(f"{title}: {short}, median", 1000 * statistics.median(seconds), "ms"))
        rows.append(figure(f"{title}: {short}, p99", 1000 * _p99(seconds), "ms"))
    return rows


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]
