"""Between GPU-seconds of a trace and work: what a user would have asked for, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping

from frenzy.core.values.cluster import Cluster
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.resource_plan import ResourcePlan

Plans = tuple[ResourcePlan, ...]


def by_speed(cluster: Cluster) -> dict[str, int]:
    """How far each GPU type of ``cluster`` is from the middle one, by peak rate in 16 bits."""

    def speed(gpu: GpuType) -> tuple[float, str]:
        return (gpu.flops_per_s, gpu.name)

    ordered = sorted((each for each in cluster.gpu_types if cluster.num_gpus_by_type[each.name]), key=speed)
    return {gpu.name: abs(at - len(ordered) // 2) for at, gpu in enumerate(ordered)}


def reference_gpu_s(plans: Plans, num_gpus: int, distance: Mapping[str, int]) -> float:
    """GPU-seconds of a job of work 1.0, distance: of each GPU type from the middle one.

    On the middle type, or the nearest one that has plans, with the fastest plan of the count a user
    who asked for ``num_gpus`` would get.
    """
    nearest = min(plans, key=lambda plan: (distance[plan.gpu_type], plan.gpu_type)).gpu_type
    there = [plan for plan in plans if plan.gpu_type == nearest]
    counted = asked_gpus(tuple(there), num_gpus)
    fastest = min(plan.predicted_run_s for plan in there if plan.num_gpus == counted)
    return fastest * counted


def asked_gpus(plans: Plans, num_gpus: int) -> int:
    """The largest count of ``plans`` that is not above ``num_gpus``, else the smallest."""
    counts = {plan.num_gpus for plan in plans}
    return max((each for each in counts if each <= num_gpus), default=min(counts))
