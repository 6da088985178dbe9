"""Airflow's SQLite database, made current: whether it is already is known without starting Airflow to find out."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import frenzy

_MANAGERS = "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS"


def make_current(database: Path, environ: Mapping[str, str], migrate: Callable[[Mapping[str, str]], None]) -> None:
    """Have ``migrate`` bring the file to this release, unless a stamp beside it says that it is there."""
    stamp, fingerprint = database.with_name(f"{database.name}.version"), database_fingerprint(environ)
    if database.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == fingerprint:
        return
    migrate(environ)
    # Readers and the one writer no longer wait for each other; the file remembers the mode.
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    stamp.write_text(fingerprint, encoding="utf-8")


def database_fingerprint(environ: Mapping[str, str]) -> str:
    """A digest of all that decides what ``airflow db migrate`` would do with ``environ``.

    Airflow's version, the database managers, and the text of every migration of this package.
    """
    digest = hashlib.sha256()
    for part in (version("apache-airflow-core"), environ.get(_MANAGERS, ""), *_migration_texts()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _migration_texts() -> Iterator[str]:
    for path in sorted(Path(frenzy.__file__).parent.glob("**/migrations/**/*.py")):
        yield path.name
        yield path.read_text(encoding="utf-8")
