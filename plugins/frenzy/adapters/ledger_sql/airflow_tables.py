"""The few columns of Airflow's own tables that the ledger reads or sets in its transactions."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Boolean, Connection, Integer, String, Text, column, delete, insert, or_, select, table, update

from frenzy.adapters.ledger_sql.ledger_tables import run
from frenzy.core.runs.ledger import ACTIVE_STATES, RunIdentity
from frenzy.core.values.cluster import Cluster
from frenzy.settings import JOBS_BUNDLE

POOL_DESCRIPTION: Final = "GPUs of one type; kept by Frenzy"
_OVER: Final = ("success", "failed")
_TASK_OVER: Final = (*_OVER, "skipped", "upstream_failed", "removed")
_UNMAPPED: Final = -1
_NO_OWNER: Final = "airflow"  # what Airflow writes where a DAG names none

slot_pool = table(
    "slot_pool",
    column("id", Integer),
    column("pool", String),
    column("slots", Integer),
    column("description", Text),
    column("include_deferred", Boolean),
)
task_instance = table(
    "task_instance",
    column("dag_id", String),
    column("run_id", String),
    column("task_id", String),
    column("map_index", Integer),
    column("state", String),
    column("pool", String),
    column("pool_slots", Integer),
)
dag_run = table(
    "dag_run",
    column("dag_id", String),
    column("run_id", String),
    column("state", String),
    column("triggering_user_name", String),
)
dag = table(
    "dag",
    column("dag_id", String),
    column("owners", String),
    column("bundle_name", String),
)


def launch_task_id(task_group: str) -> str:
    """The launch task of a task group; a group without prefix has an empty name."""
    return f"{task_group}.launch" if task_group else "launch"


def task_group_of_launch(task_id: str) -> str | None:
    """The task group whose launch task has ``task_id``; None for any other task."""
    group, _, name = task_id.rpartition(".")
    return group if name == "launch" else None


class AirflowTables:
    """What LedgerTx says of Airflow's own tables, on an open transaction of ``connection``."""

    def __init__(self, connection: Connection, *, writable: bool) -> None:
        self._connection, self._writable = connection, writable

    def mirror_pools(self, cluster: Cluster) -> None:
        """Make each GPU type's pool as large as the type has GPUs, and empty those of vanished types."""
        self._check_writable()
        wanted = {kind.pool: cluster.num_gpus_by_type[kind.name] for kind in cluster.gpu_types}
        known = {row.pool: row for row in self._connection.execute(select(slot_pool))}
        for pool, num_slots in wanted.items():
            values = {"slots": num_slots, "include_deferred": True, "description": POOL_DESCRIPTION}
            if pool not in known:
                self._connection.execute(insert(slot_pool).values(pool=pool, **values))
            elif (known[pool].slots, known[pool].include_deferred) != (num_slots, True):
                self._connection.execute(update(slot_pool).where(slot_pool.c.pool == pool).values(**values))
        for row in known.values():
            if row.description == POOL_DESCRIPTION and row.pool not in wanted:
                self._retire_pool(row.pool)

    def _retire_pool(self, pool: str) -> None:
        """One that task instances still name stays, with no slot; any other goes."""
        in_use = select(task_instance.c.pool).where(task_instance.c.pool == pool).limit(1)
        ours = slot_pool.c.pool == pool
        is_used = self._connection.execute(in_use).first() is not None
        self._connection.execute(
            update(slot_pool).where(ours).values(slots=0) if is_used else delete(slot_pool).where(ours)
        )

    def assign_launch_pool(self, identity: RunIdentity, pool: str, num_slots: int) -> bool:
        """Set pool and slots of the launch task instance while it has no state; False when it has one."""
        self._check_writable()
        launch = (
            (task_instance.c.dag_id == identity.dag_id)
            & (task_instance.c.run_id == identity.run_id)
            & (task_instance.c.task_id == launch_task_id(identity.task_group))
            & (task_instance.c.map_index == identity.map_index)
            & task_instance.c.state.is_(None)
        )
        changed = self._connection.execute(update(task_instance).where(launch).values(pool=pool, pool_slots=num_slots))
        return changed.rowcount == 1

    def outlived(self) -> tuple[str, ...]:
        """The keys of active runs whose DAG run has ended or is not there any more, in order."""
        is_its = (dag_run.c.dag_id == run.c.dag_id) & (dag_run.c.run_id == run.c.run_id)
        is_active = run.c.state.in_([state.value for state in ACTIVE_STATES])
        found = (
            select(run.c.run_key)
            .select_from(run.outerjoin(dag_run, is_its))
            .where(is_active, or_(dag_run.c.dag_id.is_(None), dag_run.c.state.in_(_OVER)))
            .order_by(run.c.run_key)
        )
        return tuple(self._connection.scalars(found))

    def started_by(self, dag_id: str, run_id: str) -> str | None:
        """The user who triggered the DAG run, else the owner that its DAG names; None where there is neither."""
        named = select(dag_run.c.triggering_user_name).where(dag_run.c.dag_id == dag_id, dag_run.c.run_id == run_id)
        user = self._connection.scalar(named)
        if user is not None:
            return str(user)
        owners = self._connection.scalar(select(dag.c.owners).where(dag.c.dag_id == dag_id)) or ""
        known = {each.strip() for each in str(owners).split(",")} - {"", _NO_OWNER}
        return known.pop() if len(known) == 1 else None

    def has_dag(self, dag_id: str) -> bool:
        """Whether Airflow has a DAG of that name that is no stored job's."""
        found = select(dag.c.dag_id).where(dag.c.dag_id == dag_id, dag.c.bundle_name != JOBS_BUNDLE)
        return self._connection.execute(found).first() is not None

    def launch_is_over(self, identity: RunIdentity) -> bool:
        """Whether the launch task instance has ended or is not there. Until a task is mapped it has one for all."""
        found = self._connection.execute(
            select(task_instance.c.state)
            .where(
                task_instance.c.dag_id == identity.dag_id,
                task_instance.c.run_id == identity.run_id,
                task_instance.c.task_id == launch_task_id(identity.task_group),
                task_instance.c.map_index.in_((identity.map_index, _UNMAPPED)),
            )
            .order_by(task_instance.c.map_index.desc())
        ).first()
        return found is None or found.state in _TASK_OVER

    def _check_writable(self) -> None:
        if not self._writable:
            raise ReadOnlyLedgerError("writing needs LedgerStore.transaction(), not reading()")


class ReadOnlyLedgerError(RuntimeError):
    """A defect in the caller: it wrote through a reading view."""
