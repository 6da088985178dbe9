"""Facts as they would be with more GPUs: what counterfactuals are tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from frenzy.core.scheduling.engine.plan_tables import RankedPlan
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.scheduling_facts import SchedulingFacts

_NODE: Final = "what-if"
_HOST_BYTES: Final = 2**50
_CPUS_PER_GPU: Final = 1024
_MOST_TRIED: Final = 64
_MOST_EXACT: Final = 16


def least(holds: Callable[[int], bool], *, limit: int) -> int | None:
    """The least count up to ``limit`` for which ``holds`` is true.

    The first few are tried one by one; beyond them it is taken to stay true once it is.
    """
    few = min(_MOST_EXACT, limit)
    for count in range(1, few + 1):
        if holds(count):
            return count
    low, high = few, min(2 * few, limit)
    while high > low and not holds(high):
        low, high = high, min(2 * high, limit)
    if high == low:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def gpus_wanted(facts: SchedulingFacts, gpu_type: str) -> int:
    """How many more GPUs of ``gpu_type`` to try at most for one job.

    Those that all jobs could take that wait or may be moved: more cannot help anyone. And not more than an answer may
    ask for that is of use to somebody.
    """
    plans = [*(job.plans for job in facts.queued), *(job.plans for job in facts.running)]
    most = sum(max((plan.num_gpus for plan in each if plan.gpu_type == gpu_type), default=0) for each in plans)
    return min(most, _MOST_TRIED)


def one_for_each_type(options: Iterable[RankedPlan], cluster: Cluster) -> list[RankedPlan]:
    """The first ranked of each GPU type of ``cluster``."""
    first: dict[str, RankedPlan] = {}
    for ranked in options:
        if ranked.gpu_type in cluster.types_by_name:
            first.setdefault(ranked.gpu_type, ranked)
    return list(first.values())


def with_idle_gpus(facts: SchedulingFacts, gpu_type: str, num_gpus: int) -> SchedulingFacts:
    """``facts`` with one more node of ``num_gpus`` idle GPUs, which lacks neither CPUs nor host memory."""
    node = Node(
        name=_NODE,
        gpu_type=gpu_type,
        num_gpus=num_gpus,
        host_memory_bytes=_HOST_BYTES,
        num_cpus=_CPUS_PER_GPU * num_gpus,
    )
    return replace(facts, cluster=Cluster(facts.cluster.gpu_types, (*facts.cluster.nodes, node)))
