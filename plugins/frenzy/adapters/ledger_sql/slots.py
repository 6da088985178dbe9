"""Which GPUs of which nodes a lease holds: a row for each, which no two leases can have."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from frenzy.adapters.ledger_sql import ledger_tables as tables
from frenzy.core.runs.ledger import Lease
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.ports import LedgerConflict

_SLOT = tables.held_slot


def release(connection: Connection, lease: Lease) -> None:
    """Give back what ``lease`` holds."""
    ours = (_SLOT.c.run_key == lease.run_key) & (_SLOT.c.attempt == lease.attempt)
    connection.execute(delete(_SLOT).where(ours))


def hold(connection: Connection, lease: Lease, cluster: Cluster) -> None:
    """Take free GPUs of the placement's nodes. Raises LedgerConflict where there are too few."""
    for each in lease.placement.allocations:
        node = cluster.nodes_by_name[each.node]
        taken = set(connection.scalars(select(_SLOT.c.slot).where(_SLOT.c.node == each.node)))
        num_free = max(0, node.num_usable - len(taken))
        free = [number for number in range(node.num_gpus) if number not in taken][: min(each.num_gpus, num_free)]
        if len(free) < each.num_gpus:
            detail = f"Node {each.node} has {len(free)} free GPUs, not {each.num_gpus}."
            raise LedgerConflict(Reason(code=ReasonCode.WAITING_FOR_GPUS, detail=detail))
        key = {"node": each.node, "run_key": lease.run_key, "attempt": lease.attempt}
        rows = [{**key, "slot": number, "num_slots_of_node": node.num_gpus} for number in free]
        connection.execute(insert(_SLOT), rows)
