"""Every port in memory, for tests, the simulator and dry runs; each keeps the port's contract (tests/contract)."""

from frenzy.adapters.memory.memory_jobs import InMemoryJobStore
from frenzy.adapters.memory.memory_ledger import InMemoryLedger
from frenzy.adapters.memory.played_launcher import FakeLauncher, WorkerScript
from frenzy.adapters.memory.played_preparer import FakePreparer
from frenzy.adapters.memory.played_sources import FakeClock, FixedInventory, FixedQueues
from frenzy.adapters.memory.runs import InMemoryRunStore

__all__ = [
    "FakeClock",
    "FakeLauncher",
    "FakePreparer",
    "FixedInventory",
    "FixedQueues",
    "InMemoryJobStore",
    "InMemoryLedger",
    "InMemoryRunStore",
    "WorkerScript",
]
