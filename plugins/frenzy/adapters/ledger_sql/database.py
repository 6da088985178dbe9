"""Engines for the ledger: on SQLite with transactions that begin when we say so.

The ledger does not share Airflow's own SQLite engine: Python's driver begins transactions by
itself and late, so two writers could both read before either holds the lock.
"""

from __future__ import annotations

import os
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Connection, Engine, ExceptionContext, Pool, create_engine, event, make_url

# A caller of the API gets an answer within ten seconds, and comes again: clients of ours do.
BUSY_TIMEOUT_S: Final = 5.0
BEGIN_OPTION: Final = "frenzy_begin"

# What PostgreSQL answers to a write that its server may not make.
_READ_ONLY: Final = "25006"

_engines: WeakSet[Engine] = WeakSet()
_of_the_parent: list[Pool] = []


def ledger_engine(url: str) -> Engine:
    """An engine on ``url``, Airflow's synchronous ``sql_alchemy_conn``; safe to keep over a fork."""
    backend, driver = make_url(url).get_backend_name(), make_url(url).get_driver_name()
    if backend == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=5, max_overflow=20)
        _begin_ourselves(engine)
    else:
        # psycopg2 else asks the server once for each row, under the writers' lock.
        batches = {"executemany_mode": "values_plus_batch"} if driver == "psycopg2" else {}
        engine = create_engine(url, pool_pre_ping=True, pool_size=5, max_overflow=10, **batches)
        _leave_standbys(engine)
    _engines.add(engine)
    return engine


def _begin_ourselves(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def prepare(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None
        cursor = dbapi_connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(BEGIN_OPTION, "BEGIN"))


def _leave_standbys(engine: Engine) -> None:
    """After a failover kept connections may lead to what is a standby now. It answers pings: they count as broken, or
    they would be kept for ever.
    """

    @event.listens_for(engine, "handle_error")
    def judge(context: ExceptionContext) -> None:
        error = context.original_exception
        if _READ_ONLY in (getattr(error, "pgcode", None), getattr(error, "sqlstate", None)):  # psycopg2's, psycopg's
            context.is_disconnect = True


def _leave_connections_to_the_parent() -> None:
    """A connection made before a fork is the parent's. It is kept: some drivers say farewell when it is collected."""
    for each in _engines:
        _of_the_parent.append(each.pool)
        each.dispose(close=False)


os.register_at_fork(after_in_child=_leave_connections_to_the_parent)
