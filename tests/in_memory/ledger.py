"""The ledger in memory.

It keeps the same promises as the SQL one: exclusive transactions that vanish on an error, the invariants on
leases, the orders of the results.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from frenzy.adapters.lease_rules import check_lease
from frenzy.core.memory.residuals import Residual
from frenzy.core.runs.access import JobRecord
from frenzy.core.runs.ledger import (
    ACTIVE_STATES,
    Attempt,
    CalibrationSample,
    Event,
    JobState,
    Lease,
    LeaseState,
    Preparation,
    QueueEntry,
    RunIdentity,
    RunRecord,
    versions_key,
)
from frenzy.core.runs.usage import LeaseSpan
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.values.resource_plan import Candidate
from frenzy.ports import LeasedAttempt, LedgerConflict, LedgerTx

_LOCK_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """One committed state of the ledger; never changed, only replaced."""

    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    plan_tables: Mapping[str, tuple[Candidate, ...]] = field(default_factory=dict)
    preparations: Mapping[str, Preparation] = field(default_factory=dict)
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
    set any more, launch tasks and DAG runs that have ended. starters: who triggered a DAG run; dags: known DAGs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts = _Facts()
        self.started_launches: set[RunIdentity] = set()
        self.over_launches: set[RunIdentity] = set()
        self.over_dag_runs: set[tuple[str, str]] = set()
        self.starters: dict[tuple[str, str], str] = {}
        self.dags: set[str] = set()

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

    def renew(self, before: LeasedAttempt, after: LeasedAttempt) -> bool:
        """See LedgerStore; here it has to wait for a writer, too."""
        key = (before.attempt.run_key, before.attempt.attempt)
        with self.transaction() as tx:
            facts = self._facts
            if (facts.attempts.get(key), facts.leases.get(key)) != (before.attempt, before.lease):
                return False
            tx.put_attempt(after.attempt)
            tx.put_lease(after.lease)
        return True

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

    def read_ahead(self, run_keys: Iterable[str]) -> None:
        """All is at hand."""

    def run(self, run_key: str) -> RunRecord | None:
        return self.facts.runs.get(run_key)

    def runs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        dag_run: tuple[str, str] | None = None,
        dag_ids: Collection[str] | None = None,
        job_name: str | None = None,
        limit: int | None = None,
    ) -> tuple[RunRecord, ...]:
        wanted = None if states is None else frozenset(states)
        found = [each for each in self.facts.runs.values() if wanted is None or each.state in wanted]
        if dag_run is not None:
            found = [each for each in found if (each.identity.dag_id, each.identity.run_id) == dag_run]
        if dag_ids is not None:
            found = [each for each in found if each.identity.dag_id in dag_ids]
        if job_name is not None:
            found = [each for each in found if each.job.name == job_name]
        found.sort(key=lambda each: (each.created_s, each.run_key), reverse=True)
        return tuple(found[:limit])

    def run_states(self) -> dict[JobState, int]:
        return dict(Counter(each.state for each in self.facts.runs.values()))

    def dag_ids(self) -> frozenset[str]:
        return frozenset(each.identity.dag_id for each in self.facts.runs.values())

    def job(self, name: str) -> JobRecord | None:
        return self.facts.jobs.get(name)

    def put_job(self, record: JobRecord) -> None:
        self._become(replace(self.facts, jobs={**self.facts.jobs, record.name: record}))

    def drop_job(self, name: str) -> None:
        kept = {key: each for key, each in self.facts.jobs.items() if key != name}
        self._become(replace(self.facts, jobs=kept))

    def started_by(self, dag_id: str, run_id: str) -> str | None:
        return self._ledger.starters.get((dag_id, run_id))

    def has_dag(self, dag_id: str) -> bool:
        return dag_id in self._ledger.dags

    def put_run(self, record: RunRecord) -> None:
        self._become(replace(self.facts, runs={**self.facts.runs, record.run_key: record}))

    def plan_tables(self, names: Iterable[str]) -> Mapping[str, tuple[Candidate, ...]]:
        return {name: self.facts.plan_tables[name] for name in names if name in self.facts.plan_tables}

    def put_plan_table(self, candidates: tuple[Candidate, ...]) -> str:
        name = next((name for name, each in self.facts.plan_tables.items() if each == candidates), "")
        if candidates and not name:
            name = f"table-{len(self.facts.plan_tables)}"
            self._become(replace(self.facts, plan_tables={**self.facts.plan_tables, name: candidates}))
        return name

    def preparations(self, run_keys: Iterable[str]) -> Mapping[str, Preparation]:
        return {key: self.facts.preparations[key] for key in run_keys if key in self.facts.preparations}

    def put_preparation(self, preparation: Preparation) -> None:
        known = {**self.facts.preparations, preparation.run_key: preparation}
        self._become(replace(self.facts, preparations=known))

    def queue(self) -> tuple[QueueEntry, ...]:
        return tuple(sorted(self.facts.queue.values(), key=lambda each: (each.submitted_s, each.run_key)))

    def queue_entry(self, run_key: str) -> QueueEntry | None:
        return self.facts.queue.get(run_key)

    def put_queue_entry(self, entry: QueueEntry) -> None:
        if entry.run_key not in self.facts.runs:
            detail = f"There is no training run {entry.run_key!r}."
            raise LedgerConflict(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail))
        self._become(replace(self.facts, queue={**self.facts.queue, entry.run_key: entry}))

    def put_holds(self, entries: Sequence[QueueEntry]) -> None:
        self._become(replace(self.facts, queue={**self.facts.queue, **{each.run_key: each for each in entries}}))

    def drop_queue_entry(self, run_key: str) -> None:
        kept = {key: each for key, each in self.facts.queue.items() if key != run_key}
        self._become(replace(self.facts, queue=kept))

    def held_leases(self) -> tuple[Lease, ...]:
        held = [each for each in self.facts.leases.values() if each.state is not LeaseState.ENDED]
        return tuple(sorted(held, key=lambda each: (each.granted_s, each.run_key)))

    def lease_spans(self, since_s: float) -> tuple[LeaseSpan, ...]:
        spans = (
            LeaseSpan(
                run_key=each.run_key,
                gpu_type=each.gpu_type,
                num_gpus=each.num_gpus,
                granted_s=each.granted_s,
                ended_s=each.ended_s,
            )
            for each in self.facts.leases.values()
            if each.ended_s is None or each.ended_s > since_s
        )
        return tuple(sorted(spans, key=lambda each: (each.granted_s, each.run_key)))

    def lease(self, run_key: str, attempt: int) -> Lease | None:
        return self.facts.leases.get((run_key, attempt))

    def put_lease(self, lease: Lease) -> None:
        before = self.lease(lease.run_key, lease.attempt)
        check_lease(lease, before=before, held=self.held_leases(), cluster=self.facts.cluster)
        self._become(replace(self.facts, leases={**self.facts.leases, (lease.run_key, lease.attempt): lease}))

    def attempts(self, run_key: str) -> tuple[Attempt, ...]:
        found = [each for each in self.facts.attempts.values() if each.run_key == run_key]
        return tuple(sorted(found, key=lambda each: each.attempt))

    def attempt_outcomes(self) -> dict[str, int]:
        return dict(Counter(str(each.outcome.code) for each in self.facts.attempts.values() if each.outcome))

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

    def outlived(self) -> tuple[str, ...]:
        over = self._ledger.over_dag_runs
        runs = (each for each in self.facts.runs.values() if each.state in ACTIVE_STATES)
        return tuple(sorted(each.run_key for each in runs if (each.identity.dag_id, each.identity.run_id) in over))

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
