"""Why a job cannot start even when none of ours runs, and the smallest change of the cluster that helps."""

from __future__ import annotations

from collections.abc import Sequence

from frenzy.core.scheduling.engine.room import FreeOfType, Need, place
from frenzy.core.scheduling.engine.state import SchedulingState
from frenzy.core.scheduling.engine.wording import any_of, asked, host_needs, in_all, listed
from frenzy.core.values.cluster import Cluster, NodeState
from frenzy.core.values.errors import Reason, ReasonCode


def impossible(state: SchedulingState, needs: Sequence[Need]) -> Reason:
    """The reason for a job none of whose ``needs`` fits the ready nodes when they are empty."""
    if not needs:
        return Reason(
            code=ReasonCode.NEVER_FITS,
            detail="None of the job's plans is feasible on this cluster.",
            remedy="the table of plans says what refused each of them",
        )
    whole = state.capacity.whole
    known = [(need, whole.by_type[need.gpu_type]) for need in needs if need.gpu_type in whole.by_type]
    for reason_of in (_out_of_service, _taken, _excluded, _host_too_small):
        for need, room in known:
            reason = reason_of(state.cluster, need, room)
            if reason is not None:
                return reason
    return _too_few_gpus(state.cluster, needs)


def _out_of_service(cluster: Cluster, need: Need, room: FreeOfType) -> Reason | None:
    if place(room, need) is None:
        return None
    nodes = [node for node in cluster.nodes if node.gpu_type == need.gpu_type and node.state is not NodeState.READY]
    nodes.sort(key=lambda node: node.name)
    away = listed([f"{node.name} ({node.state})" for node in nodes], last="and")
    return Reason(
        code=ReasonCode.WAITING_FOR_NODES,
        detail=f"Needs {asked(need)}, but nodes with that type are out of service: {away}.",
        remedy=f"{listed([node.name for node in nodes])} back in service",
    )


def _taken(cluster: Cluster, need: Need, room: FreeOfType) -> Reason | None:
    """It would fit without work outside Frenzy, which ends some time."""
    nodes = [node for node in cluster.nodes if node.gpu_type == need.gpu_type and node.num_taken]
    whole = room.with_free({node.name: room.free[node.name]._replace(num_gpus=node.num_gpus) for node in nodes})
    if place(whole, need) is None:
        return None
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        detail=f"Needs {asked(need)}; the cluster has {in_all(cluster, need.gpu_type)}.",
        remedy=f"more idle {need.gpu_type}",
    )


def _excluded(_cluster: Cluster, need: Need, room: FreeOfType) -> Reason | None:
    if place(room, need._replace(excluded_nodes=())) is None:
        return None
    return Reason(
        code=ReasonCode.NEVER_FITS,
        detail=f"Needs {asked(need)}, which only nodes have that it must not use again: "
        f"{listed(need.excluded_nodes, last='and')}.",
        remedy=f"another node with {need.gpu_type}",
    )


def _host_too_small(_cluster: Cluster, need: Need, room: FreeOfType) -> Reason | None:
    if place(room, need.of_gpus_only._replace(excluded_nodes=())) is None:
        return None
    return Reason(
        code=ReasonCode.NEVER_FITS,
        detail=f"Needs {asked(need)} with {host_needs(need)} on a node, more than nodes of that type have.",
        remedy=f"larger nodes of {need.gpu_type}",
    )


def _too_few_gpus(cluster: Cluster, needs: Sequence[Need]) -> Reason:
    totals = cluster.num_gpus_by_type
    have = [in_all(cluster, gpu_type) for gpu_type in dict.fromkeys(need.gpu_type for need in needs)]
    lacks = {need: need.num_gpus - totals.get(need.gpu_type, 0) for need in needs}
    nearest = min(needs, key=lambda each: (lacks[each] <= 0, lacks[each]))
    return Reason(
        code=ReasonCode.NEVER_FITS,
        detail=f"Needs {any_of(needs)}; the cluster has {listed(have, last='and', more='more types')}.",
        remedy=f"more {nearest.gpu_type} in the cluster",
    )
