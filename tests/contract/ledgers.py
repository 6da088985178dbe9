"""The ledgers under test, and what stands in for Airflow around each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, make_url, text
from tests.in_memory.ledger import InMemoryLedger
from tests.postgres import Server

from frenzy.adapters.ledger_sql.database import ledger_engine
from frenzy.adapters.ledger_sql.schema import migrate
from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger
from frenzy.core.runs.ledger import RunIdentity
from frenzy.ports import LedgerStore

DATABASES = ("postgresql", "sqlite")

_AIRFLOW_TABLES = (
    "CREATE TABLE slot_pool (id {serial}, pool VARCHAR(256) UNIQUE, slots INTEGER, description TEXT,"
    " include_deferred BOOLEAN NOT NULL, team_name VARCHAR(50))",
    "CREATE TABLE task_instance (dag_id VARCHAR(250), run_id VARCHAR(250), task_id VARCHAR(250), map_index INTEGER,"
    " state VARCHAR(20), pool VARCHAR(256), pool_slots INTEGER)",
    "CREATE TABLE dag_run (dag_id VARCHAR(250), run_id VARCHAR(250), state VARCHAR(50),"
    " triggering_user_name VARCHAR(512))",
    "CREATE TABLE dag (dag_id VARCHAR(250), owners VARCHAR(2000), bundle_name VARCHAR(250))",
)


class World(Protocol):
    """A ledger, and Airflow as far as the ledger touches it."""

    @property
    def ledger(self) -> LedgerStore: ...
    def pools(self) -> dict[str, int]: ...
    def add_launch_task(self, identity: RunIdentity) -> None: ...
    def start_launch_task(self, identity: RunIdentity) -> None: ...
    def set_launch_task(self, identity: RunIdentity, state: str | None) -> None: ...
    def launch_pool(self, identity: RunIdentity) -> tuple[str, int] | None: ...
    def set_dag_run(self, identity: RunIdentity, state: str, user: str | None = None) -> None: ...
    def add_dag(self, dag_id: str) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.ledger = InMemoryLedger()

    def pools(self) -> dict[str, int]:
        return dict(self.ledger.pools)

    def add_launch_task(self, identity: RunIdentity) -> None:
        """Every launch task is there."""

    def start_launch_task(self, identity: RunIdentity) -> None:
        self.ledger.started_launches.add(identity)

    def set_launch_task(self, identity: RunIdentity, state: str | None) -> None:
        is_over = state in ("success", "failed", "skipped", "upstream_failed", "removed")
        (self.ledger.over_launches.add if is_over else self.ledger.over_launches.discard)(identity)

    def launch_pool(self, identity: RunIdentity) -> tuple[str, int] | None:
        return self.ledger.launch_pools.get(identity)

    def set_dag_run(self, identity: RunIdentity, state: str, user: str | None = None) -> None:
        over, key = self.ledger.over_dag_runs, (identity.dag_id, identity.run_id)
        (over.add if state in ("success", "failed") else over.discard)(key)
        if user is not None:
            self.ledger.starters[key] = user

    def add_dag(self, dag_id: str) -> None:
        self.ledger.dags.add(dag_id)


@dataclass
class SqlWorld:
    url: str

    def __post_init__(self) -> None:
        self.ledger = SqlLedger.at(self.url)
        self._engine = ledger_engine(self.url)

    def _do(self, statement: str, **values: object) -> list[tuple[object, ...]]:
        def work(connection: Connection) -> list[tuple[object, ...]]:
            result = connection.execute(text(statement), values)
            return [tuple(row) for row in result] if result.returns_rows else []

        with self._engine.begin() as connection:
            return work(connection)

    def pools(self) -> dict[str, int]:
        return dict(self._do("SELECT pool, slots FROM slot_pool"))  # type: ignore[arg-type]

    def add_launch_task(self, identity: RunIdentity) -> None:
        task_id = f"{identity.task_group}.launch" if identity.task_group else "launch"
        self._do(
            "INSERT INTO task_instance VALUES (:dag_id, :run_id, :task_id, :map_index, NULL, 'default_pool', 1)",
            dag_id=identity.dag_id,
            run_id=identity.run_id,
            task_id=task_id,
            map_index=identity.map_index,
        )

    def start_launch_task(self, identity: RunIdentity) -> None:
        self.set_launch_task(identity, "running")

    def set_launch_task(self, identity: RunIdentity, state: str | None) -> None:
        self._do("UPDATE task_instance SET state = :state WHERE run_id = :run_id", run_id=identity.run_id, state=state)

    def launch_pool(self, identity: RunIdentity) -> tuple[str, int] | None:
        rows = self._do("SELECT pool, pool_slots FROM task_instance WHERE run_id = :run_id", run_id=identity.run_id)
        return rows[0] if rows else None  # type: ignore[return-value]

    def set_dag_run(self, identity: RunIdentity, state: str, user: str | None = None) -> None:
        self._do("DELETE FROM dag_run WHERE run_id = :run_id", run_id=identity.run_id)
        self._do(
            "INSERT INTO dag_run VALUES (:dag_id, :run_id, :state, :user)",
            dag_id=identity.dag_id,
            run_id=identity.run_id,
            state=state,
            user=user,
        )

    def add_dag(self, dag_id: str, *, owners: str = "airflow", bundle: str = "dags-folder") -> None:
        self._do("INSERT INTO dag VALUES (:dag_id, :owners, :bundle)", dag_id=dag_id, owners=owners, bundle=bundle)

    def close(self) -> None:
        self._engine.dispose()
        self.ledger.close()


def sqlite_world(folder: Path) -> SqlWorld:
    (folder / "ledger.db").write_bytes(_empty_sqlite())
    return SqlWorld(f"sqlite:///{folder}/ledger.db")


@cache
def _empty_sqlite() -> bytes:
    """A migrated database; migrating takes longer than a test."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ledger.db"
        migrate(url)
        _with_airflow_tables(SqlWorld(url), "INTEGER PRIMARY KEY").close()
        return (Path(folder) / "ledger.db").read_bytes()


@contextmanager
def postgres_world(server: Server) -> Iterator[SqlWorld]:
    """In a database of its own."""
    url = server.new_database(_empty_postgres(server))
    with closing(SqlWorld(url)) as world:
        yield world
    server.drop(url)


@cache
def _empty_postgres(server: Server) -> str:
    """The name of a migrated database that others are copied from; it ends with the server."""
    url = server.new_database()
    migrate(url)
    _with_airflow_tables(SqlWorld(url), "SERIAL PRIMARY KEY").close()
    name = make_url(url).database
    assert name is not None
    return name


def _with_airflow_tables(world: SqlWorld, serial: str) -> SqlWorld:
    for statement in _AIRFLOW_TABLES:
        world._do(statement.format(serial=serial))
    return world
