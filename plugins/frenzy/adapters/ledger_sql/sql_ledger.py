"""The ledger on SQLAlchemy: Airflow's metadata database, one lock, one transaction at a time.

A writer first locks the one row of ``frenzy_lock`` (on SQLite the database, with BEGIN IMMEDIATE),
so that facts are read, decided on and committed with nobody between. Readers take no lock and
see one snapshot.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, Table, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from frenzy.adapters.ledger_sql import airflow_tables
from frenzy.adapters.ledger_sql import ledger_tables as tables
from frenzy.adapters.ledger_sql.database import BEGIN_OPTION, BUSY_TIMEOUT_S, ledger_engine
from frenzy.adapters.ledger_sql.sql_transaction import SqlTransaction
from frenzy.core.runs.ledger import Attempt, Lease, LeaseState, RunIdentity
from frenzy.core.values import codec
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, TemporaryError
from frenzy.ports import LeasedAttempt, LedgerTx

logger = logging.getLogger(__name__)

_LOCK_ROW: Final = 1
_FROZEN_WRITER_MS: Final = "60000"
_RETRY_AFTER_S: Final = 2.0
# Limits and lock by one statement; limits of this transaction alone: a pooler may give the session to somebody else.
_LOCK: Final = text(
    "SELECT frenzy_lock.id FROM frenzy_lock, (SELECT set_config('lock_timeout', :lock_ms, true),"
    " set_config('idle_in_transaction_session_timeout', :frozen_ms, true)) AS limits"
    " WHERE frenzy_lock.id = :id FOR UPDATE OF frenzy_lock"
).bindparams(id=_LOCK_ROW, frozen_ms=_FROZEN_WRITER_MS, lock_ms=str(int(BUSY_TIMEOUT_S * 1000)))
_MISSING_TABLE_TEXTS: Final = ("no such table", "does not exist")


class SqlLedger:
    """LedgerStore in the database that ``engine`` reaches; see ``ledger_engine``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_sqlite = engine.dialect.name == "sqlite"

    @classmethod
    def at(cls, url: str) -> SqlLedger:
        """The ledger in the database at ``url``, Airflow's ``sql_alchemy_conn``."""
        return cls(ledger_engine(url))

    def close(self) -> None:
        """Close the connections that are kept for the next transaction."""
        self._engine.dispose()

    def transaction(self) -> AbstractContextManager[LedgerTx]:
        """See LedgerStore. Raises TemporaryError when the lock or the database cannot be had."""
        return self._writing()

    def reading(self) -> AbstractContextManager[LedgerTx]:
        """See LedgerStore. Raises TemporaryError when the database cannot be reached."""
        return self._reading()

    def renew(self, before: LeasedAttempt, after: LeasedAttempt) -> bool:
        """See LedgerStore. Raises TemporaryError when the database cannot be reached."""
        lease = {"heartbeat_s": after.lease.heartbeat_s, "expires_s": after.lease.expires_s}
        with _database_errors(), self._engine.connect() as connection:
            # In two transactions: who holds one row and wants another might wait for a writer who waits for it.
            return _exchange(connection, tables.attempt, before.attempt, after.attempt) and _exchange(
                connection, tables.lease, before.lease, after.lease, **lease
            )

    @contextmanager
    def _writing(self) -> Iterator[LedgerTx]:
        with _database_errors(), self._engine.connect() as connection, ExitStack() as until_committed:
            if self._is_sqlite:
                connection = connection.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})
            with connection.begin():
                self._lock(connection)
                until_committed.enter_context(_uncollected())
                yield SqlTransaction(connection, writable=True)

    @contextmanager
    def _reading(self) -> Iterator[LedgerTx]:
        with _database_errors(), self._engine.connect() as connection:
            if not self._is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield SqlTransaction(connection, writable=False)

    def _lock(self, connection: Connection) -> None:
        if self._is_sqlite:
            return
        if connection.execute(_LOCK).first() is None:
            _make_lock_row(connection)
            connection.execute(_LOCK).one()

    def launch_pool(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> tuple[str, int] | None:
        """Pool and slots that a launch task instance should count, from its run's held lease.

        None when the task is no launch task, or its run holds no GPUs.
        """
        group = airflow_tables.task_group_of_launch(task_id)
        if group is None:
            return None
        identity = RunIdentity(dag_id=dag_id, run_id=run_id, task_group=group, map_index=map_index)
        held, kind = tables.lease, tables.gpu_type
        wanted = (
            select(kind.c.pool, held.c.num_gpus)
            .join(kind, kind.c.name == held.c.gpu_type)
            .where(held.c.run_key == identity.run_key, held.c.state != LeaseState.ENDED.value)
        )
        with _database_errors(), self._engine.connect() as connection, connection.begin():
            row = connection.execute(wanted).first()
        return None if row is None else (row.pool, row.num_gpus)


def _exchange(
    connection: Connection, table: Table, before: Attempt | Lease, after: Attempt | Lease, **columns: float
) -> bool:
    """Replace the document of ``before`` if it is still there."""
    if before == after:
        return True
    ours = (table.c.run_key == before.run_key) & (table.c.attempt == before.attempt)
    same = ours & (table.c.document == codec.dumps(before))
    with connection.begin():
        return (
            connection.execute(update(table).where(same).values(document=codec.dumps(after), **columns)).rowcount == 1
        )


def _make_lock_row(connection: Connection) -> None:
    try:
        with connection.begin_nested():
            connection.execute(insert(tables.lock).values(id=_LOCK_ROW))
    except IntegrityError:
        logger.info("another writer made the lock row first")


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: looking through all objects may take longer than a pass, and whoever wants
    the lock would wait for it. A thread that enters while another is within may be collected in.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _database_errors() -> Iterator[None]:
    """A locked or unreachable database is worth another try; missing tables are not."""
    try:
        yield
    except PoolTimeoutError as error:
        detail = "No connection to the ledger's database became free."
        raise TemporaryError(
            Reason(code=ReasonCode.LEDGER_BUSY, detail=detail), retry_after_s=_RETRY_AFTER_S
        ) from error
    except DBAPIError as error:
        # Drivers go on with lines that show the statement.
        message = str(error.orig).strip().partition("\n")[0]
        if any(each in message for each in _MISSING_TABLE_TEXTS):
            detail = f"The ledger's tables are not in the database: {message}."
            remedy = "Run `airflow db migrate` with frenzy.airflow.db.FrenzyDBManager among the external DB managers."
            raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy)) from error
        if not (isinstance(error, OperationalError) or error.connection_invalidated):
            raise
        detail = f"The ledger's database did not answer: {message}."
        raise TemporaryError(
            Reason(code=ReasonCode.LEDGER_BUSY, detail=detail), retry_after_s=_RETRY_AFTER_S
        ) from error
