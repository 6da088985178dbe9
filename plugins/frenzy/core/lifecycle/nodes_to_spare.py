"""Nodes that a run is to keep away from are had again where there are no others.

Apart from ``disruptions``: commands read what that says of a run, and are not to load the scheduler for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.runs.ledger import NextAttempt
from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.resource_plan import ResourcePlan


def with_nodes_to_spare(
    following: NextAttempt, plans: Iterable[ResourcePlan], cluster: Cluster, policy: Policy
) -> NextAttempt:
    """``following``, but with no node excluded if the other ready ones, empty, have room for none of ``plans``."""
    if not following.excluded_nodes:
        return following
    if any(Capacity.of(cluster).fits_empty(policy.need(plan, following.excluded_nodes)) for plan in plans):
        return following
    return replace(following, excluded_nodes=())
