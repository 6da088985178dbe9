"""Plan tables apart from the runs they are of, under a digest of their document.

Revision 0006. Every look at a run read its plans, tens of kilobytes, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import context, op
from alembic.util import CommandError

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_RUN = sa.table("frenzy_run", sa.column("run_key", sa.String), sa.column("document", sa.Text))
_TABLE = sa.table("frenzy_plan_table", sa.column("name", sa.String), sa.column("document", sa.Text))


def upgrade() -> None:
    _refuse_sql_alone(context.get_starting_revision_argument() if context.is_offline_mode() else None)
    # Not in a transaction on SQLite: whoever was interrupted begins again.
    op.create_table(
        "frenzy_plan_table",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_frenzy_plan_table"),
        if_not_exists=True,
    )
    known: set[str] = set()
    for run_key, run in _documents():
        candidates = run.pop("candidates", [])
        run["plan_table"] = ""
        if candidates:
            document = json.dumps({"schema_version": run["schema_version"], "plans": candidates})
            name = hashlib.sha256(document.encode()).hexdigest()
            run["plan_table"] = name
            if name not in known:
                known.add(name)
                op.get_bind().execute(_TABLE.insert().values(name=name, document=document))
        _put(run_key, run)


def downgrade() -> None:
    _refuse_sql_alone("head" if context.is_offline_mode() else None)
    for run_key, run in _documents():
        found = op.get_bind().scalar(sa.select(_TABLE.c.document).where(_TABLE.c.name == run.pop("plan_table", "")))
        run["candidates"] = [] if found is None else json.loads(found)["plans"]
        _put(run_key, run)
    op.drop_table("frenzy_plan_table", if_exists=True)


def _refuse_sql_alone(begins_at: object) -> None:
    """What runs there are can be read by a connection only; a new ledger has none."""
    if begins_at not in (None, "base"):
        raise CommandError("Revision 0006 moves what is stored: migrate with a connection to the database, not by SQL.")


def _documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """One after the other: all together they may be gigabytes. Writers of the ledger wait meanwhile."""
    if context.is_offline_mode():
        return
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SELECT id FROM frenzy_lock FOR UPDATE")
    keys = op.get_bind().scalars(sa.select(_RUN.c.run_key)).all()
    for run_key in keys:
        document = op.get_bind().scalar(sa.select(_RUN.c.document).where(_RUN.c.run_key == run_key))
        if document is not None:
            yield run_key, json.loads(document)


def _put(run_key: str, run: dict[str, Any]) -> None:
    op.get_bind().execute(_RUN.update().where(_RUN.c.run_key == run_key).values(document=json.dumps(run)))
