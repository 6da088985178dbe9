"""Plans as rows under a digest of their document: what a name stands for never changes.

A document is of all plans of a run, ranked or refused, or of those alone that a run in the queue wants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from frenzy.adapters.ledger_sql.ledger_tables import plan_table
from frenzy.core.values import codec
from frenzy.core.values.resource_plan import Candidate, ResourcePlan


@dataclass(frozen=True, slots=True)
class PlanTable:
    """All plans of a run."""

    plans: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class WantedPlans:
    """Those that a run in the queue may start with, in order."""

    plans: tuple[ResourcePlan, ...]


T = TypeVar("T", PlanTable, WantedPlans)
# A pass looks at the plans of all that wait: fewer than wait would be read again each time.
_MOST_KNOWN: Final[dict[type, int]] = {PlanTable: 1024, WantedPlans: 16_384}
# SQLite takes 32,766 parameters in a statement.
_MOST_NAMES: Final = 10_000
# Of this process, whichever the ledger.
_known: Final[dict[type, dict[str, Any]]] = {PlanTable: {}, WantedPlans: {}}


def put(connection: Connection, table: PlanTable | WantedPlans) -> str | None:
    """Keep the plans if they are new; their name, none for no plans."""
    if not table.plans:
        return None
    document = codec.dumps(table)
    name = hashlib.sha256(document.encode()).hexdigest()
    row = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(plan_table)
    connection.execute(row.on_conflict_do_nothing(), {"name": name, "document": document})
    return name


def read(connection: Connection, kind: type[T], names: Collection[str]) -> dict[str, T]:
    """Those that are there; each is read once by a process that has not too many of them."""
    known: dict[str, T] = _known[kind]
    # By one look at each: another thread may empty what is known meanwhile.
    looked_up = {name: known.get(name) for name in names}
    found = {name: table for name, table in looked_up.items() if table is not None}
    unread = sorted({*names} - found.keys())
    fresh: dict[str, T] = {}
    for first in range(0, len(unread), _MOST_NAMES):
        part = plan_table.c.name.in_(unread[first : first + _MOST_NAMES])
        rows = connection.execute(select(plan_table.c.name, plan_table.c.document).where(part))
        fresh |= {name: codec.loads(kind, document) for name, document in rows}
    if len(known) + len(fresh) > _MOST_KNOWN[kind]:
        known.clear()
        fresh |= found
    known.update(fresh)
    return found | fresh
