"""The ledger's invariants on leases, checked in code by every ledger.

Slots leased on a node never exceed its slots; one lease per run that has not ended; every lease
ends with a reason. They are checked when a lease takes slots: one that is held already stays
valid when its node shrinks or leaves the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from frenzy.core.runs.ledger import Lease, LeaseState
from frenzy.core.values.cluster import Cluster, held_by_node
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.units import counted
from frenzy.ports import LedgerConflict


def check_lease(lease: Lease, *, before: Lease | None, held: Iterable[Lease], cluster: Cluster) -> None:
    """Raise LedgerConflict when storing ``lease`` in the place of ``before`` would break an invariant.

    held: all leases that have not ended.
    """
    if lease.state is LeaseState.ENDED:
        if lease.end_reason is None:
            raise _conflict(ReasonCode.LEASE_EXPIRED, f"The lease of {_of(lease)} cannot end without a reason.")
        return
    if takes_slots(lease, before):
        others = [each for each in held if (each.run_key, each.attempt) != (lease.run_key, lease.attempt)]
        _check_single(lease, others)
        _check_room(lease, others, cluster)


def takes_slots(lease: Lease, before: Lease | None) -> bool:
    """Whether storing ``lease`` takes slots that ``before`` did not hold."""
    if lease.state is LeaseState.ENDED:
        return False
    return before is None or before.state is LeaseState.ENDED or before.placement != lease.placement


def _check_single(lease: Lease, others: Iterable[Lease]) -> None:
    for each in others:
        if each.run_key == lease.run_key:
            raise _conflict(ReasonCode.WAITING_FOR_OLD_WORKERS, f"{_of(each)} still holds GPUs.")


def _check_room(lease: Lease, others: Iterable[Lease], cluster: Cluster) -> None:
    taken = held_by_node(each.placement for each in others)
    for name, wanted in held_by_node([lease.placement]).items():
        node = cluster.nodes_by_name.get(name)
        if node is None or node.gpu_type != lease.gpu_type:
            raise _conflict(ReasonCode.WAITING_FOR_NODES, f"The cluster has no node {name!r} with {lease.gpu_type}.")
        free = node.num_usable - taken.get(name, 0)
        if wanted > free:
            raise _conflict(
                ReasonCode.WAITING_FOR_GPUS,
                f"{_of(lease)} wants {counted(wanted, 'GPU')} on {name}; of its {node.num_gpus}, free: {max(0, free)}.",
            )


def _of(lease: Lease) -> str:
    return f"attempt {lease.attempt} of run {lease.run_key}"


def _conflict(code: ReasonCode, detail: str) -> LedgerConflict:
    return LedgerConflict(Reason(code=code, detail=detail[0].upper() + detail[1:]))
