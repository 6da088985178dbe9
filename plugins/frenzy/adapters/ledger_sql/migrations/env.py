"""Runs the ledger's migrations, with a version table of their own."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine

from frenzy.adapters.ledger_sql.ledger_tables import VERSION_TABLE, metadata


def ours(_object: Any, name: str | None, kind: str, _reflected: bool, _compare_to: Any) -> bool:
    """Leave Airflow's tables, which share the database, out of every comparison."""
    return kind != "table" or name in metadata.tables


def configure_and_run(**target: Any) -> None:
    context.configure(
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_object=ours,
        compare_type=True,
        render_as_batch=True,
        **target,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    given: Connection | None = context.config.attributes.get("connection")
    if given is not None:
        configure_and_run(connection=given)
        return
    engine = create_engine(context.config.get_main_option("sqlalchemy.url") or "")
    with engine.connect() as connection:
        configure_and_run(connection=connection)
    engine.dispose()


if context.is_offline_mode():
    configure_and_run(url=context.config.get_main_option("sqlalchemy.url"), literal_binds=True)
else:
    run_online()
