"""Every port in memory, for tests, the simulator and dry runs.

The ledger keeps the same promises as the SQL one: exclusive transactions that vanish on an
error, the invariants on leases, the orders of the results.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from frenzy.adapters.lease_rules import check_lease
from frenzy.core.cluster import Cluster
from frenzy.core.errors import FrenzyError, Reason, ReasonCode, TemporaryError
from frenzy.core.launch import FIRST_POD_LOG, AttemptResult, Control, LaunchSpec
from frenzy.core.ledger import (
    Attempt,
    CalibrationSample,
    Event,
    JobState,
    Lease,
    LeaseState,
    QueueEntry,
    RunIdentity,
    RunRecord,
    versions_key,
)
from frenzy.core.queue_rules import NO_RULES, QueueRules
from frenzy.core.residuals import Residual
from frenzy.core.telemetry import StepRecord
from frenzy.ports import LedgerConflict, LedgerTx, TelemetryCursor, TelemetryPage, WorkersAccount, WorkersState

_LOCK_TIMEOUT_S: Final = 30.0


class FakeClock:
    """A clock that stands until it is moved."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


class FixedInventory:
    """An inventory that says what it was told."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def cluster(self) -> Cluster:
        return self._cluster

    def replace(self, cluster: Cluster) -> None:
        self._cluster = cluster


class FixedQueues:
    """Queues and quotas as they were told; by default there are none."""

    def __init__(self, rules: QueueRules = NO_RULES) -> None:
        self._rules = rules

    def rules(self) -> QueueRules:
        return self._rules

    def replace(self, rules: QueueRules) -> None:
        self._rules = rules


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """One committed state of the ledger; never changed, only replaced."""

    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    queue: Mapping[str, QueueEntry] = field(default_factory=dict)
    leases: Mapping[tuple[str, int], Lease] = field(default_factory=dict)
    attempts: Mapping[tuple[str, int], Attempt] = field(default_factory=dict)
    samples: Mapping[tuple[str, int], CalibrationSample] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    cluster: Cluster = Cluster((), ())
    pools: Mapping[str, int] = field(default_factory=dict)
    launch_pools: Mapping[RunIdentity, tuple[str, int]] = field(default_factory=dict)


class InMemoryLedger:
    """LedgerStore of one process.

    started_launches, over_launches and over_dag_runs play Airflow: launch tasks whose pool cannot be
    set any more, launch tasks and DAG runs that have ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts = _Facts()
        self.started_launches: set[RunIdentity] = set()
        self.over_launches: set[RunIdentity] = set()
        self.over_dag_runs: set[tuple[str, str]] = set()

    @contextmanager
    def transaction(self) -> Iterator[LedgerTx]:
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT_S):
            raise TemporaryError(Reason(code=ReasonCode.LEDGER_BUSY), retry_after_s=1.0)
        try:
            tx = InMemoryTransaction(self, self._facts, writable=True)
            yield tx
            self._facts = tx.facts
        finally:
            self._lock.release()

    @contextmanager
    def reading(self) -> Iterator[LedgerTx]:
        yield InMemoryTransaction(self, self._facts, writable=False)

    @property
    def pools(self) -> Mapping[str, int]:
        """Slots of each mirrored pool."""
        return self._facts.pools

    @property
    def launch_pools(self) -> Mapping[RunIdentity, tuple[str, int]]:
        """Pool and slots of each launch task that was assigned."""
        return self._facts.launch_pools


class InMemoryTransaction:
    """LedgerTx over a private copy; ``facts`` is what a commit would make visible."""

    def __init__(self, ledger: InMemoryLedger, facts: _Facts, *, writable: bool) -> None:
        self._ledger = ledger
        self._writable = writable
        self.facts = facts

    def run(self, run_key: str) -> RunRecord | None:
        return self.facts.runs.get(run_key)

    def runs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        dag_run: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[RunRecord, ...]:
        wanted = None if states is None else frozenset(states)
        found = [each for each in self.facts.runs.values() if wanted is None or each.state in wanted]
        if dag_run is not None:
            found = [each for each in found if (each.identity.dag_id, each.identity.run_id) == dag_run]
        found.sort(key=lambda each: (each.created_s, each.run_key), reverse=True)
        return tuple(found[:limit])

    def put_run(self, record: RunRecord) -> None:
        self._become(replace(self.facts, runs={**self.facts.runs, record.run_key: record}))

    def queue(self) -> tuple[QueueEntry, ...]:
        return tuple(sorted(self.facts.queue.values(), key=lambda each: (each.submitted_s, each.run_key)))

    def queue_entry(self, run_key: str) -> QueueEntry | None:
        return self.facts.queue.get(run_key)

    def put_queue_entry(self, entry: QueueEntry) -> None:
        if entry.run_key not in self.facts.runs:
            detail = f"There is no training run {entry.run_key!r}."
            raise LedgerConflict(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail))
        self._become(replace(self.facts, queue={**self.facts.queue, entry.run_key: entry}))

    def drop_queue_entry(self, run_key: str) -> None:
        kept = {key: each for key, each in self.facts.queue.items() if key != run_key}
        self._become(replace(self.facts, queue=kept))

    def held_leases(self) -> tuple[Lease, ...]:
        held = [each for each in self.facts.leases.values() if each.state is not LeaseState.ENDED]
        return tuple(sorted(held, key=lambda each: (each.granted_s, each.run_key)))

    def lease(self, run_key: str, attempt: int) -> Lease | None:
        return self.facts.leases.get((run_key, attempt))

    def put_lease(self, lease: Lease) -> None:
        before = self.lease(lease.run_key, lease.attempt)
        check_lease(lease, before=before, held=self.held_leases(), cluster=self.facts.cluster)
        self._become(replace(self.facts, leases={**self.facts.leases, (lease.run_key, lease.attempt): lease}))

    def attempts(self, run_key: str) -> tuple[Attempt, ...]:
        found = [each for each in self.facts.attempts.values() if each.run_key == run_key]
        return tuple(sorted(found, key=lambda each: each.attempt))

    def put_attempt(self, attempt: Attempt) -> None:
        key = (attempt.run_key, attempt.attempt)
        self._become(replace(self.facts, attempts={**self.facts.attempts, key: attempt}))

    def cluster(self) -> Cluster:
        return self.facts.cluster

    def put_cluster(self, cluster: Cluster) -> None:
        self._become(replace(self.facts, cluster=cluster))

    def events(self, run_key: str) -> tuple[Event, ...]:
        return tuple(each for each in self.facts.events if each.run_key == run_key)

    def add_event(self, event: Event) -> None:
        self._become(replace(self.facts, events=(*self.facts.events, event)))

    def samples(self, *, family: str | None = None, limit: int = 1000) -> tuple[CalibrationSample, ...]:
        found = [each for each in self.facts.samples.values() if family is None or each.family == family]
        found.sort(key=lambda each: (each.time_s, each.run_key, each.attempt), reverse=True)
        return tuple(found[:limit])

    def add_sample(self, sample: CalibrationSample) -> None:
        key = (sample.run_key, sample.attempt)
        self._become(replace(self.facts, samples={**self.facts.samples, key: sample}))

    def residuals(self, *, versions: str, except_run: str, limit: int = 1000) -> tuple[Residual, ...]:
        others = (
            each
            for each in self.samples(limit=len(self.facts.samples))
            if each.run_key != except_run and versions_key(each.versions) == versions
        )
        found = (each.residual for each in others)
        return tuple(each for each in found if each is not None)[:limit]

    def mirror_pools(self, cluster: Cluster) -> None:
        pools = {kind.pool: cluster.num_gpus_by_type[kind.name] for kind in cluster.gpu_types}
        self._become(replace(self.facts, pools=pools))

    def dag_run_is_over(self, identity: RunIdentity) -> bool:
        return (identity.dag_id, identity.run_id) in self._ledger.over_dag_runs

    def launch_is_over(self, identity: RunIdentity) -> bool:
        return identity in self._ledger.over_launches

    def assign_launch_pool(self, identity: RunIdentity, pool: str, num_slots: int) -> bool:
        if identity in self._ledger.started_launches:
            return False
        launch_pools = {**self.facts.launch_pools, identity: (pool, num_slots)}
        self._become(replace(self.facts, launch_pools=launch_pools))
        return True

    def _become(self, facts: _Facts) -> None:
        if not self._writable:
            raise RuntimeError("writing needs LedgerStore.transaction(), not reading()")
        self.facts = facts


class InMemoryRunStore:
    """RunStore of one process, with the writer's side that workers have."""

    def __init__(self) -> None:
        self._specs: dict[tuple[str, int], LaunchSpec] = {}
        self._results: dict[tuple[str, int], AttemptResult] = {}
        self._chunks: dict[tuple[str, int, int], list[tuple[StepRecord, ...]]] = {}
        self._steps: dict[str, set[int]] = {}
        self._logs: dict[tuple[str, int, int], str] = {}
        self._notes: dict[tuple[str, int, str], str] = {}
        self.controls: dict[tuple[str, int], Control] = {}
        self.logs: dict[tuple[str, int, str], str] = {}

    def put_spec(self, spec: LaunchSpec) -> None:
        self._specs[spec.run_key, spec.attempt] = spec

    def spec(self, run_key: str, attempt: int) -> LaunchSpec | None:
        return self._specs.get((run_key, attempt))

    def put_control(self, run_key: str, attempt: int, control: Control) -> None:
        self.controls[run_key, attempt] = control

    def put_note(self, run_key: str, attempt: int, name: str, text: str) -> None:
        self._notes[run_key, attempt, name] = text

    def note(self, run_key: str, attempt: int, name: str) -> str | None:
        return self._notes.get((run_key, attempt, name))

    def put_log(self, run_key: str, attempt: int, name: str, text: str) -> None:
        self.logs[run_key, attempt, name] = text

    def put_result(self, run_key: str, attempt: int, result: AttemptResult) -> None:
        self._results[run_key, attempt] = result

    def result(self, run_key: str, attempt: int) -> AttemptResult | None:
        return self._results.get((run_key, attempt))

    def telemetry(self, run_key: str, attempt: int, cursor: TelemetryCursor) -> TelemetryPage:
        next_chunks = dict(cursor.next_chunks)
        records: list[StepRecord] = []
        for key, chunks in sorted(self._chunks.items()):
            if key[:2] == (run_key, attempt):
                rank = key[2]
                for chunk in chunks[next_chunks.get(rank, 0) :]:
                    records += chunk
                next_chunks[rank] = len(chunks)
        return TelemetryPage(
            records=tuple(records), cursor=TelemetryCursor(next_chunks=tuple(sorted(next_chunks.items())))
        )

    def checkpoint_steps(self, run_key: str) -> tuple[int, ...]:
        return tuple(sorted(self._steps.get(run_key, ())))

    def clear_checkpoints(self, run_key: str) -> None:
        self._steps.pop(run_key, None)

    def log_tail(self, run_key: str, attempt: int, *, rank: int = 0, max_bytes: int = 65536) -> str:
        text = self._logs.get((run_key, attempt, rank), "")
        if not text and rank == 0:
            text = self.logs.get((run_key, attempt, FIRST_POD_LOG), "")
        tail = text.encode()[-max_bytes:] if max_bytes else b""
        return tail.decode(errors="ignore")

    def run_dir(self, run_key: str) -> str:
        return f"memory://runs/{run_key}"

    def write_chunk(self, run_key: str, attempt: int, records: Sequence[StepRecord]) -> None:
        """What a rank does: its next chunk of ``records``, all of one rank."""
        self._chunks.setdefault((run_key, attempt, records[0].rank), []).append(tuple(records))

    def write_result(self, run_key: str, attempt: int, result: AttemptResult) -> None:
        """What the node-0 launcher does."""
        self.put_result(run_key, attempt, result)

    def write_checkpoint(self, run_key: str, step: int) -> None:
        """A complete checkpoint."""
        self._steps.setdefault(run_key, set()).add(step)

    def write_log(self, run_key: str, attempt: int, text: str, *, rank: int = 0) -> None:
        """More output of a rank."""
        key = (run_key, attempt, rank)
        self._logs[key] = self._logs.get(key, "") + text


class InMemoryJobStore:
    """JobStore of one process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def put(self, name: str, yaml_text: str) -> bool:
        changed = self._texts.get(name) != yaml_text
        self._texts[name] = yaml_text
        return changed

    def get(self, name: str) -> str | None:
        return self._texts.get(name)

    def names(self) -> Sequence[str]:
        return sorted(self._texts)

    def remove(self, name: str) -> bool:
        return self._texts.pop(name, None) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerScript:
    """What scripted workers do: write ``records``, then end with ``result`` (None: leave none).

    obedient: a request to stop makes them end.
    """

    records: tuple[StepRecord, ...] = ()
    result: AttemptResult | None = None
    obedient: bool = True


class FakeLauncher:
    """Launcher whose workers follow a script; they end when told to ``finish`` or to stop."""

    def __init__(
        self, store: InMemoryRunStore | None = None, script: Callable[[LaunchSpec], WorkerScript] | None = None
    ) -> None:
        self._store = store
        self._script = script or (lambda _spec: WorkerScript())
        self._states: dict[tuple[str, int], WorkersState] = {}
        self._running_since_s: dict[tuple[str, int], float | None] = {}
        self._known: dict[tuple[str, int], WorkersAccount] = {}
        self._removed: set[tuple[str, int]] = set()
        self.refusal: FrenzyError | None = None  # what the next start is refused with
        self.launched: list[LaunchSpec] = []
        self.stopped: list[tuple[str, int, float]] = []

    def launch(self, spec: LaunchSpec) -> str:
        key = (spec.run_key, spec.attempt)
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if key not in self._states:
            self._states[key] = WorkersState.ALIVE
            self._running_since_s[key] = time.time()
            self.launched.append(spec)
            self._write_telemetry(spec)
        return f"fake:{spec.run_key}/{spec.attempt}"

    def state(self, spec: LaunchSpec) -> WorkersState:
        return self._states.get((spec.run_key, spec.attempt), WorkersState.NOT_STARTED)

    def account(self, spec: LaunchSpec) -> WorkersAccount:
        key = (spec.run_key, spec.attempt)
        account = WorkersAccount(state=self.state(spec), running_since_s=self._running_since_s.get(key))
        return self._known.get(key, account)

    def remove(self, run_key: str, attempt: int) -> None:
        self._removed.add((run_key, attempt))

    def remains(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self._states.keys() - self._removed))

    def stop(self, spec: LaunchSpec, *, grace_s: float) -> None:
        self.stopped.append((spec.run_key, spec.attempt, grace_s))
        if self._script(spec).obedient:
            self._states[spec.run_key, spec.attempt] = WorkersState.GONE

    def finish(self, spec: LaunchSpec) -> None:
        """The workers reach their end and leave the script's result."""
        result = self._script(spec).result
        if self._store is not None and result is not None:
            self._store.write_result(spec.run_key, spec.attempt, result)
        self._states[spec.run_key, spec.attempt] = WorkersState.GONE

    def lose(self, spec: LaunchSpec, reason: Reason, *lost_nodes: str) -> None:
        """The cluster takes the workers away; they leave nothing."""
        key = (spec.run_key, spec.attempt)
        self._states[key] = WorkersState.GONE
        self._known[key] = WorkersAccount(state=WorkersState.GONE, reason=reason, lost_nodes=lost_nodes)

    def begin(self, spec: LaunchSpec, running_since_s: float | None) -> None:
        """The workers are said to run since then, or, with None, to wait for something still."""
        self._running_since_s[spec.run_key, spec.attempt] = running_since_s

    def lose_sight(self, spec: LaunchSpec) -> None:
        """From now on nothing can be proved about the workers."""
        self._states[spec.run_key, spec.attempt] = WorkersState.UNKNOWN

    def _write_telemetry(self, spec: LaunchSpec) -> None:
        if self._store is None:
            return
        for record in self._script(spec).records:
            self._store.write_chunk(spec.run_key, spec.attempt, (record,))


__all__ = [
    "FakeClock",
    "FakeLauncher",
    "FixedInventory",
    "InMemoryJobStore",
    "InMemoryLedger",
    "InMemoryRunStore",
    "WorkerScript",
]
