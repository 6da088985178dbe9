"""The ledger's view of the cluster."""

from __future__ import annotations

from frenzy.app.services import Services
from frenzy.ports import LedgerTx


def refresh_inventory(tx: LedgerTx, services: Services) -> bool:
    """Take over the inventory and mirror its pools, if it changed."""
    cluster = services.inventory.cluster()
    known = tx.cluster()
    if (cluster.gpu_types, cluster.nodes) == (known.gpu_types, known.nodes):
        return False
    tx.put_cluster(cluster)
    tx.mirror_pools(cluster)
    return True
