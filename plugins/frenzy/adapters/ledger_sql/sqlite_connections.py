"""How Airflow's own engines, blocking and asynchronous, open the embedded SQLite file.

``frenzy up`` names ``CONNECT_ARGS`` to Airflow (``[database] sql_alchemy_connect_args``). Several processes write that
file, one at a time.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final


class QuickCommits(sqlite3.Connection):
    """A connection whose commits do not wait for the disk: else each writer holds the lock for a disk's time.

    A write-ahead log, which the file has, stays whole without that; a loss of power may take the last commits.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA synchronous=NORMAL")


CONNECT_ARGS: Final[dict[str, Any]] = {"factory": QuickCommits}
