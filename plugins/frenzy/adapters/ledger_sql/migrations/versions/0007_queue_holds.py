"""Plans and holds of the queue apart from the rest of its entries.

Revision 0007. Each pass read the plans of all that wait, tens of kilobytes, and wrote them anew with the hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import context, op
from alembic.util import CommandError

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TYPES: dict[str, Any] = {
    "plan_table": sa.String(64),
    "hold": sa.Text,
    "position": sa.Integer,
    "expected_start_s": sa.Double,
}
_ENTRY = sa.table("frenzy_queue_entry", *map(sa.column, ("run_key", "document", *_TYPES)))
_TABLE = sa.table("frenzy_plan_table", sa.column("name"), sa.column("document"))


def upgrade() -> None:
    _refuse_sql_alone(context.get_starting_revision_argument() if context.is_offline_mode() else None)
    _lock()
    # Not in a transaction on SQLite: whoever was interrupted begins again.
    for name in _TYPES.keys() - _columns():
        op.add_column("frenzy_queue_entry", sa.Column(name, _TYPES[name], nullable=True))
    for row in _rows():
        entry = json.loads(row.document)
        if not entry["plans"]:  # moved already
            continue
        version = {"schema_version": entry["schema_version"]}
        hold = entry.get("hold")
        moved = {
            "plan_table": _put_plans({**version, "plans": entry["plans"]}),
            "hold": None if hold is None else json.dumps({**version, **hold}),
            "position": entry.get("position"),
            "expected_start_s": entry.get("expected_start_s"),
        }
        _put(row.run_key, {**entry, "plans": [], "hold": None, "position": None, "expected_start_s": None}, moved)


def downgrade() -> None:
    _refuse_sql_alone("head" if context.is_offline_mode() else None)
    _lock()
    for row in _rows() if _TYPES.keys() <= _columns() else ():
        if row.plan_table is None:
            continue
        plans = op.get_bind().scalar(sa.select(_TABLE.c.document).where(_TABLE.c.name == row.plan_table))
        hold = None if row.hold is None else json.loads(row.hold)
        if hold is not None:
            del hold["schema_version"]
        told = {"hold": hold, "position": row.position, "expected_start_s": row.expected_start_s}
        entry = {**json.loads(row.document), "plans": json.loads(plans or "")["plans"], **told}
        _put(row.run_key, entry, dict.fromkeys(_TYPES))
    for name in _TYPES:
        if context.is_offline_mode() or name in _columns():
            op.drop_column("frenzy_queue_entry", name)


def _refuse_sql_alone(begins_at: object) -> None:
    """What entries there are can be read by a connection only; a new ledger has none."""
    if begins_at not in (None, "base"):
        raise CommandError("Revision 0007 moves what is stored: migrate with a connection to the database, not by SQL.")


def _lock() -> None:
    """Writers of the ledger wait meanwhile; they take this lock before any other."""
    if not context.is_offline_mode() and op.get_bind().dialect.name == "postgresql":
        op.execute("SELECT id FROM frenzy_lock FOR UPDATE")


def _columns() -> set[str]:
    if context.is_offline_mode():
        return set()
    return {each["name"] for each in sa.inspect(op.get_bind()).get_columns("frenzy_queue_entry")}


def _rows() -> Iterator[Any]:
    """One after the other: all together they may be gigabytes."""
    if context.is_offline_mode():
        return
    for key in op.get_bind().scalars(sa.select(_ENTRY.c.run_key)).all():
        yield from op.get_bind().execute(sa.select(_ENTRY).where(_ENTRY.c.run_key == key)).all()


def _put_plans(plans: dict[str, Any]) -> str:
    document = json.dumps(plans)
    name = hashlib.sha256(document.encode()).hexdigest()
    if op.get_bind().scalar(sa.select(_TABLE.c.name).where(_TABLE.c.name == name)) is None:
        op.get_bind().execute(_TABLE.insert().values(name=name, document=document))
    return name


def _put(run_key: str, entry: dict[str, Any], columns: dict[str, Any]) -> None:
    changed = {"document": json.dumps(entry), **columns}
    op.get_bind().execute(_ENTRY.update().where(_ENTRY.c.run_key == run_key).values(changed))
