"""Why a job cannot start even when nothing runs, and the smallest change of the cluster that helps."""

from __future__ import annotations

from collections.abc import Sequence

from frenzy.core.scheduling.engine.placement import place
from frenzy.core.scheduling.engine.room import FreeCapacity, Need
from frenzy.core.scheduling.engine.state import SchedulingState
from frenzy.core.scheduling.engine.wording import asked, host_needs, listed
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.errors import Reason, ReasonCode


def impossible(state: SchedulingState, needs: Sequence[Need]) -> Reason:
    """The reason for a job none of whose ``needs`` fits the ready nodes when they are empty."""
    if not needs:
        return Reason(
            code=ReasonCode.NEVER_FITS,
            detail="None of the job's plans is feasible on this cluster.",
            remedy="the table of plans says what refused each of them",
        )
    whole = FreeCapacity.whole(state.cluster)
    known = [(need, whole.by_type[need.gpu_type]) for need in needs if need.gpu_type in whole.by_type]
    for need, room in known:
        if place(room, need) is not None:
            return _out_of_service(state, need)
    for need, room in known:
        if place(room, need._replace(excluded_nodes=())) is not None:
            return _excluded(need)
    for need, room in known:
        if place(room, need.of_gpus_only) is not None:
            return _host_too_small(need)
    return _too_few_gpus(state, needs)


def _out_of_service(state: SchedulingState, need: Need) -> Reason:
    nodes = [
        node for node in state.cluster.nodes if node.gpu_type == need.gpu_type and node.state is not NodeState.READY
    ]
    nodes.sort(key=lambda node: node.name)
    away = listed([f"{node.name} ({node.state})" for node in nodes], last="and")
    return Reason(
        code=ReasonCode.WAITING_FOR_NODES,
        detail=f"Needs {asked(need)}, but nodes with that type are out of service: {away}.",
        remedy=f"{listed([node.name for node in nodes])} back in service",
    )


def _excluded(need: Need) -> Reason:
    return Reason(
        code=ReasonCode.NEVER_FITS,
        detail=f"Needs {asked(need)}, which only nodes have that it must not use again: "
        f"{listed(need.excluded_nodes, last='and')}.",
        remedy=f"another node with {need.gpu_type}",
    )


def _host_too_small(need: Need) -> Reason:
    return Reason(
        code=ReasonCode.NEVER_FITS,
        detail=f"Needs {asked(need)} with {host_needs(need)} on a node, more than nodes of that type have.",
        remedy=f"larger nodes of {need.gpu_type}",
    )


def _too_few_gpus(state: SchedulingState, needs: Sequence[Need]) -> Reason:
    totals = state.cluster.num_gpus_by_type
    have = [f"{totals.get(gpu_type, 0)} {gpu_type}" for gpu_type in dict.fromkeys(need.gpu_type for need in needs)]
    lacks = {need: need.num_gpus - totals.get(need.gpu_type, 0) for need in needs}
    nearest = min(needs, key=lambda each: (lacks[each] <= 0, lacks[each]))
    return Reason(
        code=ReasonCode.NEVER_FITS,
        detail=f"Needs {listed([asked(need) for need in needs], more='other plans')}; "
        f"the cluster has {listed(have, last='and', more='more types')}.",
        remedy=f"more {nearest.gpu_type} in the cluster",
    )
