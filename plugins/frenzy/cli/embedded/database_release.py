"""Whether Airflow's database is already at this release, without starting Airflow to find out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import frenzy

_MANAGERS = "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS"


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
