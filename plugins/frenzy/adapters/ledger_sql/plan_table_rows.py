"""Plan tables as rows under a digest of their document: what a name stands for never changes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Connection, select

from frenzy.adapters.ledger_sql.ledger_tables import plan_table
from frenzy.core.values import codec
from frenzy.core.values.resource_plan import Candidate

_Plans = tuple[Candidate, ...]
_MOST_KNOWN: Final = 1024
# SQLite takes 32,766 parameters in a statement.
_MOST_NAMES: Final = 10_000
# Of this process, whichever the ledger.
_known: Final[dict[str, _Plans]] = {}


@dataclass(frozen=True, slots=True)
class _Document:
    plans: _Plans


class Row(NamedTuple):
    name: str
    document: str


def row_of(candidates: _Plans) -> Row:
    document = codec.dumps(_Document(candidates))
    return Row(hashlib.sha256(document.encode()).hexdigest(), document)


def read(connection: Connection, names: Collection[str]) -> dict[str, _Plans]:
    """Those that are there; each is read once by a process that has not too many of them."""
    # By one look at each: another thread may empty what is known meanwhile.
    looked_up = {name: _known.get(name) for name in names}
    found = {name: plans for name, plans in looked_up.items() if plans is not None}
    unread = sorted({*names} - found.keys())
    for first in range(0, len(unread), _MOST_NAMES):
        part = plan_table.c.name.in_(unread[first : first + _MOST_NAMES])
        rows = connection.execute(select(plan_table.c.name, plan_table.c.document).where(part))
        found |= {name: codec.loads(_Document, document).plans for name, document in rows}
    if len(_known) > _MOST_KNOWN:
        _known.clear()
    _known.update(found)
    return found
