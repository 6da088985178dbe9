"""The ledger's view of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from frenzy.app.services import Services
from frenzy.core.values.cluster import Cluster
from frenzy.ports import LedgerTx


def refresh_inventory(tx: LedgerTx, found: Cluster, ask: Callable[[], Cluster | None]) -> bool:
    """Take over the inventory and mirror its pools, if it changed.

    found: the inventory's answer, asked for before the transaction: of a large cluster it takes a while. ask: asks
    again, if that differs from what is known: another may have stored a newer answer meanwhile. None: nobody tells.
    """
    newest = None if _changed(tx, found) is None else ask()
    cluster = None if newest is None else _changed(tx, newest)
    if cluster is None:
        return False
    tx.put_cluster(cluster)
    tx.mirror_pools(cluster)
    return True


def has_changed(services: Services, found: Cluster) -> bool:
    """Whether the inventory is another than the ledger knows. Nobody waits for the ledger's lock meanwhile."""
    with services.ledger.reading() as tx:
        return _changed(tx, found) is not None


def _changed(tx: LedgerTx, found: Cluster) -> Cluster | None:
    """The inventory, if it is another than the ledger knows."""
    known = tx.cluster()
    cluster = _with_held_types(tx, found, known)
    return None if (cluster.gpu_types, cluster.nodes) == (known.gpu_types, known.nodes) else cluster


def _with_held_types(tx: LedgerTx, cluster: Cluster, known: Cluster) -> Cluster:
    """A type that left the inventory stays known, with no GPU, while a lease holds GPUs of it."""
    held = {lease.gpu_type for lease in tx.held_leases()} - cluster.types_by_name.keys()
    kept = tuple(each for each in known.gpu_types if each.name in held)
    return replace(cluster, gpu_types=(*cluster.gpu_types, *kept)) if kept else cluster
