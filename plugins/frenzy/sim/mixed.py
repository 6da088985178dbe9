"""Jobs on GPUs of several types, which only the published algorithm allows: they run as fast as the slowest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from frenzy.core.values.resource_plan import ResourcePlan


def plan_as_placed(plan: ResourcePlan, plans: Sequence[ResourcePlan], gpu_types: Collection[str]) -> ResourcePlan:
    """``plan`` as it runs on GPUs of ``gpu_types``: of the job's plans for each type the one that is slowest.

    For a type that is the plan of the same settings, else the slowest of the same count, else none.
    """
    if set(gpu_types) == {plan.gpu_type}:
        return plan
    on_types = [_on_type(plan, plans, gpu_type) for gpu_type in gpu_types]
    return max((each for each in on_types if each is not None), key=lambda each: each.predicted_run_s, default=plan)


def _on_type(plan: ResourcePlan, plans: Sequence[ResourcePlan], gpu_type: str) -> ResourcePlan | None:
    same_count = [each for each in plans if each.num_gpus == plan.num_gpus and each.gpu_type == gpu_type]
    same = [each for each in same_count if replace(each.shape, gpu_type=plan.gpu_type) == plan.shape]
    return max(same or same_count, key=lambda each: each.predicted_run_s, default=None)
