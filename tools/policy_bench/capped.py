"""Plans within a cap on a job's GPUs: a share of the cluster, and no more than it makes good use of."""

from __future__ import annotations

from collections.abc import Sequence

from frenzy.core.values.resource_plan import ResourcePlan


def capped_plans(plans: Sequence[ResourcePlan], max_gpus: float, min_efficiency: float) -> list[ResourcePlan]:
    """Plans with at most ``max_gpus`` GPUs, which use them well, in their order.

    Efficiency: the least GPU-time of the job's plans on the same type over the plan's own. A job
    of which no plan has so few GPUs keeps those with the fewest.
    """
    least: dict[str, float] = {}
    for plan in plans:
        gpu_s = plan.num_gpus * plan.predicted_run_s
        least[plan.gpu_type] = min(gpu_s, least.get(plan.gpu_type, gpu_s))
    fewest = min((plan.num_gpus for plan in plans), default=0)
    within = max(max_gpus, fewest)
    return [
        plan
        for plan in plans
        if plan.num_gpus <= within
        and (plan.num_gpus == fewest or least[plan.gpu_type] >= min_efficiency * plan.num_gpus * plan.predicted_run_s)
    ]
