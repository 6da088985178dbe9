"""The ledger's tables in Airflow's metadata database, made by ``airflow db migrate``."""

from __future__ import annotations

from typing import Any

from airflow import settings
from airflow.utils.db_manager import BaseDBManager
from alembic import command

from frenzy.adapters.ledger_sql.ledger_tables import VERSION_TABLE, metadata
from frenzy.adapters.ledger_sql.schema import MIGRATIONS_DIR, migrations_config


class FrenzyDBManager(BaseDBManager):
    """Creates, migrates and drops the tables named ``frenzy_*`` together with Airflow's own."""

    metadata = metadata
    migration_dir = str(MIGRATIONS_DIR)
    version_table_name = VERSION_TABLE
    supports_table_dropping = True

    def get_alembic_config(self) -> Any:
        """The configuration needs no file: where the migrations lie, and which database."""
        return migrations_config(str(settings.SQL_ALCHEMY_CONN))

    def downgrade(self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False) -> None:
        """Go back to ``to_revision``, or print the SQL of it."""
        revision = f"{from_revision}:{to_revision}" if from_revision and show_sql_only else to_revision
        command.downgrade(self.get_alembic_config(), revision, sql=show_sql_only)
