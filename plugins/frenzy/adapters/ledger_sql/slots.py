"""Which GPUs of which nodes a lease holds: a row for each, which no two leases can have."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from sqlalchemy import Connection, bindparam, delete, insert, or_, select

from frenzy.adapters.ledger_sql.ledger_tables import held_slot
from frenzy.core.runs.ledger import Lease
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.ports import LedgerConflict

_SLOT: Final = held_slot.c
_OF_OTHERS: Final = select(_SLOT.node, _SLOT.slot).where(
    _SLOT.node.in_(bindparam("nodes", expanding=True)),
    or_(_SLOT.run_key != bindparam("run_key"), _SLOT.attempt != bindparam("attempt")),
)


def free_slots(connection: Connection, lease: Lease, cluster: Cluster) -> dict[str, list[int]]:
    """The slots that ``lease`` may hold, by node. Raises LedgerConflict where there are too few."""
    names = [each.node for each in lease.placement.allocations]
    taken: dict[str, set[int]] = defaultdict(set)
    for row in connection.execute(_OF_OTHERS, {"nodes": names, "run_key": lease.run_key, "attempt": lease.attempt}):
        taken[row.node].add(row.slot)
    free = {}
    for each in lease.placement.allocations:
        node, others = cluster.nodes_by_name[each.node], taken[each.node]
        most = min(each.num_gpus, max(0, node.num_usable - len(others)))
        free[each.node] = [number for number in range(node.num_gpus) if number not in others][:most]
        if len(free[each.node]) < each.num_gpus:
            detail = f"Node {each.node} has {len(free[each.node])} free GPUs, not {each.num_gpus}."
            raise LedgerConflict(Reason(code=ReasonCode.WAITING_FOR_GPUS, detail=detail))
    return free


def release(connection: Connection, lease: Lease) -> None:
    """Give back what ``lease`` holds."""
    ours = (_SLOT.run_key == lease.run_key) & (_SLOT.attempt == lease.attempt)
    connection.execute(delete(held_slot).where(ours))


def hold(connection: Connection, lease: Lease, cluster: Cluster, slots: dict[str, list[int]]) -> None:
    """Take ``slots``, which are free."""
    key = {"run_key": lease.run_key, "attempt": lease.attempt}
    rows = [
        {**key, "node": node, "slot": number, "num_slots_of_node": cluster.nodes_by_name[node].num_gpus}
        for node, numbers in slots.items()
        for number in numbers
    ]
    connection.execute(insert(held_slot), rows)
