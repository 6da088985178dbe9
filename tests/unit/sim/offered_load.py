"""How much a workload asks of its cluster, whatever the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.sim.scenario_jobs import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """cluster_hours: time the whole cluster would need for all jobs if every GPU always worked, on plans
    of the fewest GPU-seconds of its type. span_hours: from the first arrival to the last.
    """

    cluster_hours: float
    span_hours: float

    @property
    def load(self) -> float:
        """Above 1, the queue grows while jobs arrive, whatever the policy."""
        return self.cluster_hours / self.span_hours if self.span_hours else float("inf")


def offered_load(scenario: Scenario) -> OfferedLoad:
    """The load of ``scenario``: true work, not what is believed."""
    num_gpus, rates = scenario.cluster.num_gpus_by_type, dict[int, float]()
    total_s = 0.0
    for each in scenario.jobs:
        plans = each.job.plans
        if id(plans) not in rates:
            rates[id(plans)] = _per_second(plans, num_gpus)
        total_s += each.work / rates[id(plans)]
    arrivals_s = [each.job.submitted_s for each in scenario.jobs]
    span_s = max(arrivals_s, default=0.0) - min(arrivals_s, default=0.0)
    return OfferedLoad(cluster_hours=total_s / 3600.0, span_hours=span_s / 3600.0)


def _per_second(plans: tuple[ResourcePlan, ...], num_gpus: Mapping[str, int]) -> float:
    """Work per second of the whole cluster, busy with such jobs only."""
    least_gpu_s: dict[str, float] = {}
    for plan in plans:
        gpu_s = plan.num_gpus * plan.predicted_run_s
        least_gpu_s[plan.gpu_type] = min(gpu_s, least_gpu_s.get(plan.gpu_type, gpu_s))
    return sum(num_gpus[gpu_type] / gpu_s for gpu_type, gpu_s in least_gpu_s.items())
