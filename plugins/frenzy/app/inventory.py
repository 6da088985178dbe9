"""The ledger's view of the cluster."""

from __future__ import annotations

from dataclasses import replace

from frenzy.app.services import Services
from frenzy.core.values.cluster import Cluster
from frenzy.ports import LedgerTx


def refresh_inventory(tx: LedgerTx, services: Services) -> bool:
    """Take over the inventory and mirror its pools, if it changed."""
    known = tx.cluster()
    cluster = _with_held_types(tx, services.inventory.cluster(), known)
    if (cluster.gpu_types, cluster.nodes) == (known.gpu_types, known.nodes):
        return False
    tx.put_cluster(cluster)
    tx.mirror_pools(cluster)
    return True


def _with_held_types(tx: LedgerTx, cluster: Cluster, known: Cluster) -> Cluster:
    """A type that left the inventory stays known, with no GPU, while a lease holds GPUs of it."""
    held = {lease.gpu_type for lease in tx.held_leases()} - cluster.types_by_name.keys()
    kept = tuple(each for each in known.gpu_types if each.name in held)
    return replace(cluster, gpu_types=(*cluster.gpu_types, *kept)) if kept else cluster
