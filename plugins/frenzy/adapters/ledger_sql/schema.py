"""Creating and migrating the ledger's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config

MIGRATIONS_DIR: Final = Path(__file__).parent / "migrations"


def migrations_config(url: str) -> Config:
    """Alembic's configuration for the ledger's tables in the database at ``url``."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_DIR).replace("%", "%%"))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def migrate(url: str, revision: str = "head") -> None:
    """Bring the ledger's tables at ``url`` to ``revision``."""
    command.upgrade(migrations_config(url), revision)
