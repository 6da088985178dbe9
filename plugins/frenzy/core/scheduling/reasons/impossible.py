"""Why a job cannot start even when none of ours runs, and the smallest change of the cluster that helps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

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
    whole = state.capacity.whole.by_type
    cases = [_cases(state.cluster, need, whole[need.gpu_type]) for need in needs if need.gpu_type in whole]
    for room, need, code, detail, remedy in chain.from_iterable(zip(*cases, strict=True)):
        if place(room, need) is not None:
            return Reason(code=code, detail=detail, remedy=remedy)
    return _too_few_gpus(state.cluster, needs)


def _cases(cluster: Cluster, need: Need, room: FreeOfType) -> list[tuple[FreeOfType, Need, ReasonCode, str, str]]:
    """What would fit where once something changed, with the reason that names it; the first that fits is true."""
    gpu_type, needs, excluded = need.gpu_type, f"Needs {asked(need)}", listed(need.excluded_nodes, last="and")
    nodes = sorted([each for each in cluster.nodes if each.gpu_type == gpu_type], key=lambda each: each.name)
    away = [each for each in nodes if each.state is not NodeState.READY]
    states = listed([f"{each.name} ({each.state})" for each in away], last="and")
    gone = f"{needs}, but nodes with that type are out of service: {states}."
    back = f"{listed([each.name for each in away])} back in service"
    # Work outside Frenzy ends some time.
    gpus = {each.name: room.free[each.name]._replace(num_gpus=each.num_gpus) for each in nodes if each.num_taken}
    taken = f"{needs}; the cluster has {in_all(cluster, gpu_type)}."
    barred = f"{needs}, which only nodes have that it must not use again: {excluded}."
    small = f"{needs} with {host_needs(need)} on a node, more than nodes of that type have."
    anywhere = need._replace(excluded_nodes=())
    return [
        (room, need, ReasonCode.WAITING_FOR_NODES, gone, back),
        (room.with_free(gpus), need, ReasonCode.WAITING_FOR_GPUS, taken, f"more idle {gpu_type}"),
        (room, anywhere, ReasonCode.NEVER_FITS, barred, f"another node with {gpu_type}"),
        (room, anywhere.of_gpus_only, ReasonCode.NEVER_FITS, small, f"larger nodes of {gpu_type}"),
    ]


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
