"""One transaction of the SQL ledger: values to rows and back."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Executable,
    Select,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.dialects import postgresql, sqlite

from frenzy.adapters.lease_rules import check_lease, takes_slots
from frenzy.adapters.ledger_sql import known_documents, plan_table_rows, queue_rows, residual_rows, slots
from frenzy.adapters.ledger_sql import ledger_tables as tables
from frenzy.adapters.ledger_sql.airflow_tables import AirflowTables
from frenzy.adapters.ledger_sql.plan_table_rows import PlanTable, WantedPlans
from frenzy.core.memory.residuals import Residual
from frenzy.core.runs.access import JobRecord
from frenzy.core.runs.ledger import (
    Attempt,
    CalibrationSample,
    Event,
    JobState,
    Lease,
    LeaseState,
    Preparation,
    QueueEntry,
    RunRecord,
)
from frenzy.core.runs.usage import LeaseSpan
from frenzy.core.values import codec
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.resource_plan import Candidate
from frenzy.ports import LedgerConflict

T = TypeVar("T")
# SQLite takes 32,766 parameters in a statement, some drivers of PostgreSQL 65,535.
_MOST_KEYS = 10_000
# Both tables by one statement: a writer reads them under the lock.
_CLUSTER = union_all(
    *(
        select(literal_column(is_type).label("is_type"), table.c.position, table.c.document)
        for is_type, table in (("1", tables.gpu_type), ("0", tables.node))
    )
).order_by("position")


class SqlTransaction(AirflowTables):
    """LedgerTx on an open transaction of ``connection``.

    What it has read it keeps: nobody else changes it meanwhile, but for heartbeats (``LedgerStore.renew``), whose
    next one tells the same again.
    """

    def __init__(self, connection: Connection, *, writable: bool) -> None:
        super().__init__(connection, writable=writable)
        self._runs: dict[str, RunRecord | None] = {}
        self._attempts: dict[str, tuple[Attempt, ...]] = {}
        self._entries: dict[str, QueueEntry | None] = {}
        self._knows_queue = False
        self._held: tuple[Lease, ...] | None = None
        self._cluster: Cluster | None = None

    def read_ahead(self, run_keys: Iterable[str]) -> None:
        keys = tuple(dict.fromkeys(run_keys))
        runs, self._runs = self._unread(RunRecord, tables.run, keys, self._runs), dict.fromkeys(keys) | self._runs
        self._runs |= {each.run_key: each for each in runs}
        attempts: dict[str, list[Attempt]] = {key: [] for key in keys if key not in self._attempts}
        for each in self._unread(Attempt, tables.attempt, keys, self._attempts):
            attempts[each.run_key].append(each)
        for key, found in attempts.items():
            self._attempts[key] = tuple(sorted(found, key=lambda each: each.attempt))
        if not self._knows_queue:
            entries, unread = tables.queue_entry.c, [key for key in keys if key not in self._entries]
            self._entries |= dict.fromkeys(unread)
            for part in _parts(unread):
                self._entries |= queue_rows.read(self._connection, entries.run_key.in_(part))

    def _unread(self, kind: type[T], table: Table, keys: Iterable[str], known: Mapping[str, object]) -> tuple[T, ...]:
        return tuple(
            each
            for part in _parts([key for key in keys if key not in known])
            for each in self._all(kind, select(table.c.document).where(table.c.run_key.in_(part)))
        )

    # runs and their queue

    def run(self, run_key: str) -> RunRecord | None:
        if run_key not in self._runs:
            self._runs[run_key] = self._one(RunRecord, tables.run, run_key=run_key)
        return self._runs[run_key]

    def runs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        dag_run: tuple[str, str] | None = None,
        dag_ids: Collection[str] | None = None,
        job_name: str | None = None,
        limit: int | None = None,
    ) -> tuple[RunRecord, ...]:
        run = tables.run
        wanted = select(run.c.document).order_by(run.c.created_s.desc(), run.c.run_key.desc()).limit(limit)
        if states is not None:
            wanted = wanted.where(run.c.state.in_([state.value for state in states]))
        if dag_run is not None:
            wanted = wanted.where(run.c.dag_id == dag_run[0], run.c.run_id == dag_run[1])
        if dag_ids is not None:
            wanted = wanted.where(run.c.dag_id.in_(dag_ids))
        if job_name is not None:  # found by the text that ``codec.dumps`` writes: all runs of a DAG are much to decode
            so_called = f'"job": {{"name": {json.dumps(job_name)},'
            wanted = wanted.where(run.c.document.contains(so_called, autoescape=True))
        found = self._all(RunRecord, wanted)
        self._runs |= {each.run_key: each for each in found}
        return found

    def run_states(self) -> dict[JobState, int]:
        state = tables.run.c.state
        counts = select(state, func.count()).group_by(state)
        return {JobState(name): number for name, number in self._connection.execute(counts)}

    def dag_ids(self) -> frozenset[str]:
        return frozenset(self._connection.scalars(select(tables.run.c.dag_id).distinct()))

    def job(self, name: str) -> JobRecord | None:
        return self._one(JobRecord, tables.job, name=name)

    def put_job(self, record: JobRecord) -> None:
        self._put(tables.job, {"name": record.name}, {"document": codec.dumps(record)})

    def drop_job(self, name: str) -> None:
        self._check_writable()
        self._connection.execute(delete(tables.job).where(tables.job.c.name == name))

    def put_run(self, record: RunRecord) -> None:
        self._put(
            tables.run,
            {"run_key": record.run_key},
            {
                "dag_id": record.identity.dag_id,
                "run_id": record.identity.run_id,
                "task_group": record.identity.task_group,
                "map_index": record.identity.map_index,
                "state": record.state.value,
                "created_s": record.created_s,
                "document": codec.dumps(record),
            },
        )
        self._runs[record.run_key] = record

    def plan_tables(self, names: Iterable[str]) -> Mapping[str, tuple[Candidate, ...]]:
        found = plan_table_rows.read(self._connection, PlanTable, {name for name in names if name})
        return {name: table.plans for name, table in found.items()}

    def put_plan_table(self, candidates: tuple[Candidate, ...]) -> str:
        self._check_writable()
        return plan_table_rows.put(self._connection, PlanTable(candidates)) or ""

    def preparations(self, run_keys: Iterable[str]) -> Mapping[str, Preparation]:
        table, keys = tables.preparation, tuple(run_keys)
        found = self._all(Preparation, select(table.c.document).where(table.c.run_key.in_(keys))) if keys else ()
        return {each.run_key: each for each in found}

    def put_preparation(self, preparation: Preparation) -> None:
        self._put(tables.preparation, {"run_key": preparation.run_key}, {"document": codec.dumps(preparation)})

    def queue(self) -> tuple[QueueEntry, ...]:
        if not self._knows_queue:
            self._entries, self._knows_queue = {**queue_rows.read(self._connection)}, True
        waiting = (each for each in self._entries.values() if each is not None)
        return tuple(sorted(waiting, key=lambda each: (each.submitted_s, each.run_key)))

    def queue_entry(self, run_key: str) -> QueueEntry | None:
        if not self._knows_queue and run_key not in self._entries:
            found = queue_rows.read(self._connection, tables.queue_entry.c.run_key == run_key)
            self._entries[run_key] = found.get(run_key)
        return self._entries.get(run_key)

    def put_queue_entry(self, entry: QueueEntry) -> None:
        self._check_writable()
        # Asked here: after what a constraint refuses, PostgreSQL takes nothing more in this transaction.
        if self.run(entry.run_key) is None:
            raise LedgerConflict(no_such_run(entry.run_key))
        name = plan_table_rows.put(self._connection, WantedPlans(entry.plans))
        values = {"plan_table": name, **queue_rows.document_of(entry), **queue_rows.hold_of(entry)}
        self._put(tables.queue_entry, {"run_key": entry.run_key}, values)
        self._entries[entry.run_key] = entry

    def put_holds(self, entries: Sequence[QueueEntry]) -> None:
        self._check_writable()
        queue_rows.write_holds(self._connection, entries)
        self._entries |= {each.run_key: each for each in entries}

    def drop_queue_entry(self, run_key: str) -> None:
        self._check_writable()
        self._connection.execute(delete(tables.queue_entry).where(tables.queue_entry.c.run_key == run_key))
        self._entries[run_key] = None

    # leases

    def held_leases(self) -> tuple[Lease, ...]:
        if self._held is None:
            lease = tables.lease
            held = select(lease.c.document).where(lease.c.state != LeaseState.ENDED.value)
            self._held = self._all(Lease, held.order_by(lease.c.granted_s, lease.c.run_key))
        return self._held

    def lease_spans(self, since_s: float) -> tuple[LeaseSpan, ...]:
        lease = tables.lease.c
        columns = (lease.run_key, lease.gpu_type, lease.num_gpus, lease.granted_s, lease.ended_s)
        wanted = select(*columns).where(lease.ended_s.is_(None) | (lease.ended_s > since_s))
        found = self._connection.execute(wanted.order_by(lease.granted_s, lease.run_key)).mappings()
        return tuple(LeaseSpan(**each) for each in found)

    def lease(self, run_key: str, attempt: int) -> Lease | None:
        return self._one(Lease, tables.lease, run_key=run_key, attempt=attempt)

    def put_lease(self, lease: Lease) -> None:
        self._check_writable()
        before = self.lease(lease.run_key, lease.attempt)
        takes = takes_slots(lease, before)
        cluster = self.cluster() if takes else Cluster((), ())
        check_lease(lease, before=before, held=self.held_leases() if takes else (), cluster=cluster)
        free = slots.free_slots(self._connection, lease, cluster) if takes else {}
        self._put_lease_row(lease)
        if before is not None and (takes or lease.state is LeaseState.ENDED):
            slots.release(self._connection, lease)
        if takes:
            slots.hold(self._connection, lease, cluster, free)
        self._held = None

    def _put_lease_row(self, lease: Lease) -> None:
        self._put(
            tables.lease,
            {"run_key": lease.run_key, "attempt": lease.attempt},
            {
                "state": lease.state.value,
                "gpu_type": lease.gpu_type,
                "num_gpus": lease.num_gpus,
                "granted_s": lease.granted_s,
                "heartbeat_s": lease.heartbeat_s,
                "expires_s": lease.expires_s,
                "ended_s": lease.ended_s,
                "end_reason": lease.end_reason.code.value if lease.end_reason else None,
                "document": codec.dumps(lease),
            },
        )

    # attempts

    def attempts(self, run_key: str) -> tuple[Attempt, ...]:
        if run_key not in self._attempts:
            attempt = tables.attempt
            wanted = select(attempt.c.document).where(attempt.c.run_key == run_key)
            self._attempts[run_key] = self._all(Attempt, wanted.order_by(attempt.c.attempt))
        return self._attempts[run_key]

    def attempt_outcomes(self) -> dict[str, int]:
        outcome = tables.attempt.c.outcome
        counts = select(outcome, func.count()).where(outcome.is_not(None)).group_by(outcome)
        return {code: number for code, number in self._connection.execute(counts)}

    def put_attempt(self, attempt: Attempt) -> None:
        self._put(
            tables.attempt,
            {"run_key": attempt.run_key, "attempt": attempt.attempt},
            {
                "created_s": attempt.created_s,
                "ended_s": attempt.ended_s,
                "outcome": attempt.outcome.code.value if attempt.outcome else None,
                "document": codec.dumps(attempt),
            },
        )
        self._attempts.pop(attempt.run_key, None)

    # the cluster

    def cluster(self) -> Cluster:
        if self._cluster is None:
            found = self._connection.execute(_CLUSTER).all()
            self._cluster = Cluster(
                gpu_types=tuple(known_documents.loads(GpuType, row.document) for row in found if row.is_type),
                nodes=tuple(known_documents.loads(Node, row.document) for row in found if not row.is_type),
            )
        return self._cluster

    def put_cluster(self, cluster: Cluster) -> None:
        kinds = [
            {"name": kind.name, "position": position, "pool": kind.pool, "document": codec.dumps(kind)}
            for position, kind in enumerate(cluster.gpu_types)
        ]
        nodes = [
            {
                "name": node.name,
                "position": position,
                "gpu_type": node.gpu_type,
                "num_gpus": node.num_gpus,
                "state": node.state.value,
                "document": codec.dumps(node),
            }
            for position, node in enumerate(cluster.nodes)
        ]
        self._replace_all(tables.gpu_type, kinds)
        self._replace_all(tables.node, nodes)
        self._cluster = cluster

    # history

    def events(self, run_key: str) -> tuple[Event, ...]:
        event = tables.event
        rows = self._connection.execute(select(event).where(event.c.run_key == run_key).order_by(event.c.id))
        return tuple(
            Event(run_key=row.run_key, time_s=row.time_s, kind=row.kind, text=row.text, attempt=row.attempt)
            for row in rows
        )

    def add_event(self, event: Event) -> None:
        self._check_writable()
        self._connection.execute(insert(tables.event).values(**codec.encode(event)))

    def samples(self, *, family: str | None = None, limit: int = 1000) -> tuple[CalibrationSample, ...]:
        sample = tables.calibration_sample
        newest = sample.c.time_s.desc(), sample.c.run_key.desc(), sample.c.attempt.desc()
        wanted = select(sample.c.document).order_by(*newest).limit(limit)
        if family is not None:
            wanted = wanted.where(sample.c.family == family)
        return self._all(CalibrationSample, wanted)

    def add_sample(self, sample: CalibrationSample) -> None:
        self._put(
            tables.calibration_sample,
            {"run_key": sample.run_key, "attempt": sample.attempt},
            {
                "time_s": sample.time_s,
                "family": sample.family,
                "gpu_type": sample.gpu_type,
                "censored": sample.censored,
                "document": codec.dumps(sample),
            },
        )
        if sample.residual is not None:
            values = residual_rows.values_of(sample, sample.residual)
            self._put(tables.residual, {"run_key": sample.run_key, "attempt": sample.attempt}, values)

    def residuals(self, *, versions: str, except_run: str, limit: int = 1000) -> tuple[Residual, ...]:
        row = tables.residual.c
        newest = row.time_s.desc(), row.run_key.desc(), row.attempt.desc()
        wanted = select(tables.residual).where(row.versions == versions, row.run_key != except_run)
        found = self._connection.execute(wanted.order_by(*newest).limit(limit))
        return tuple(residual_rows.residual_of(each) for each in found)

    # rows

    def _one(self, kind: type[T], table: Table, **key: str | int) -> T | None:
        document = self._connection.scalar(_document_at(table, tuple(key)), key)
        return None if document is None else known_documents.loads(kind, document)

    def _all(self, kind: type[T], wanted: Select[Any]) -> tuple[T, ...]:
        return tuple(known_documents.loads(kind, document) for document in self._connection.scalars(wanted))

    def _put(self, table: Table, key: Mapping[str, str | int], values: Mapping[str, object]) -> None:
        """Insert the row, or update the one with the same key."""
        self._check_writable()
        put = _put_at(table, tuple(key), tuple(values), self._connection.dialect.name)
        self._connection.execute(put, {**key, **values})

    def _replace_all(self, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
        self._check_writable()
        self._connection.execute(delete(table))
        if rows:
            self._connection.execute(insert(table), list(rows))


@cache
def _document_at(table: Table, key: tuple[str, ...]) -> Select[Any]:
    return select(table.c.document).where(*(table.c[name] == bindparam(name) for name in key))


@cache
def _put_at(table: Table, key: tuple[str, ...], names: tuple[str, ...], dialect: str) -> Executable:
    """Made once: to make and compile a statement takes longer than the database takes for it."""
    put: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    done: Executable = put.on_conflict_do_update(index_elements=key, set_={name: put.excluded[name] for name in names})
    return done


def no_such_run(run_key: str) -> Reason:
    """Why a queue entry is refused that has no run."""
    return Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"There is no training run {run_key!r}.")


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[first : first + _MOST_KEYS] for first in range(0, len(keys), _MOST_KEYS))
