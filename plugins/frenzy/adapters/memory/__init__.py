"""Every port in memory, for tests, the simulator and dry runs; each keeps the port's contract (tests/contract)."""

from frenzy.adapters.memory.job_store import InMemoryJobStore
from frenzy.adapters.memory.launcher import FakeLauncher, WorkerScript
from frenzy.adapters.memory.ledger import InMemoryLedger
from frenzy.adapters.memory.run_store import InMemoryRunStore
from frenzy.adapters.memory.sources import FakeClock, FixedInventory, FixedQueues

__all__ = [
    "FakeClock",
    "FakeLauncher",
    "FixedInventory",
    "FixedQueues",
    "InMemoryJobStore",
    "InMemoryLedger",
    "InMemoryRunStore",
    "WorkerScript",
]
