"""Jobs whose number of GPUs is settled before they start: the one their user asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frenzy.core.scheduling.engine.room import Need, full_capacity
from frenzy.core.values.cluster import Cluster, NodeState
from frenzy.core.values.resource_plan import ResourcePlan


def rigid_plans(
    plans: Sequence[ResourcePlan],
    asked_gpus: int | None,
    fits: Callable[[ResourcePlan], bool],
    *,
    ordered: bool = False,
) -> list[ResourcePlan]:
    """The plans with the one number of GPUs the job runs with, whatever is free; the fastest first.

    That number is ``asked_gpus``; if no plan that ``fits`` an empty cluster has exactly it, the
    next larger one, then the next smaller one. A job of which nothing is known asks for the fewest.
    ordered: keep the order of ``plans`` instead of sorting by speed.
    """
    asked = asked_gpus or 1
    by_count: dict[int, list[ResourcePlan]] = {}
    for plan in plans:
        by_count.setdefault(plan.num_gpus, []).append(plan)
    counts = sorted(by_count, key=lambda count: (count < asked, abs(count - asked)))
    chosen = next((count for count in counts if any(map(fits, by_count[count]))), None)
    if chosen is None:
        return by_count[counts[0]] if counts else []
    return by_count[chosen] if ordered else sorted(by_count[chosen], key=lambda plan: plan.predicted_run_s)


def could_hold(cluster: Cluster, need: Need, *, only_ready: bool = False) -> bool:
    """Whether all nodes of ``cluster`` together, empty and in service, have room for ``need``.

    only_ready: leave out those that are out of service now.
    """
    missing = need.num_gpus
    for node in cluster.nodes:
        if only_ready and node.state is not NodeState.READY:
            continue
        if node.gpu_type == need.gpu_type and node.name not in need.excluded_nodes:
            missing -= need.gpus_in(full_capacity(node))
            if missing <= 0:
                return True
    return False
