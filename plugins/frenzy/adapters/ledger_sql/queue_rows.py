"""Entries of the queue as rows: what stays while a run waits is a document, plans are apart, a hold is columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, select, update

from frenzy.adapters.ledger_sql import known_documents, plan_table_rows
from frenzy.adapters.ledger_sql.ledger_tables import queue_entry
from frenzy.adapters.ledger_sql.plan_table_rows import WantedPlans
from frenzy.core.runs.ledger import QueueEntry
from frenzy.core.values import codec
from frenzy.core.values.errors import Reason

_COLUMNS = [queue_entry.c[name] for name in ("document", "plan_table", "hold", "position", "expected_start_s")]


def document_of(entry: QueueEntry) -> dict[str, object]:
    """The columns of what stays."""
    stays = replace(entry, plans=(), hold=None, position=None, expected_start_s=None)
    return {"submitted_s": entry.submitted_s, "document": codec.dumps(stays)}


def hold_of(entry: QueueEntry) -> dict[str, object]:
    """The columns of why it waits, and from when on it might run."""
    return {
        "hold": None if entry.hold is None else codec.dumps(entry.hold),
        "position": entry.position,
        "expected_start_s": entry.expected_start_s,
    }


def read(connection: Connection, *conditions: ColumnElement[bool]) -> dict[str, QueueEntry]:
    """Those that meet ``conditions``, by run key."""
    rows = connection.execute(select(*_COLUMNS).where(*conditions)).all()
    plans = plan_table_rows.read(connection, WantedPlans, {row.plan_table for row in rows if row.plan_table})
    entries = (_entry(row, plans) for row in rows)
    return {each.run_key: each for each in entries}


def _entry(row: Row[Any], plans: dict[str, WantedPlans]) -> QueueEntry:
    return replace(
        known_documents.loads(QueueEntry, row.document),
        plans=plans[row.plan_table].plans if row.plan_table else (),
        hold=None if row.hold is None else known_documents.loads(Reason, row.hold),
        position=row.position,
        expected_start_s=row.expected_start_s,
    )


def write_holds(connection: Connection, entries: Sequence[QueueEntry]) -> None:
    """Of entries that are there, in one statement."""
    rows = [{"of": each.run_key, **hold_of(each)} for each in entries]
    if rows:
        connection.execute(_HOLD, rows)


_HOLD = (
    update(queue_entry)
    .where(queue_entry.c.run_key == bindparam("of"))
    .values({name: bindparam(name) for name in ("hold", "position", "expected_start_s")})
)
