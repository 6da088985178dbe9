"""The plans of a job class on a cluster: MARP's own, computed once, and the same tuple for all its jobs.

MARP already lists only plans that no other one beats in everything (GPUs, tensor-parallel group, time,
host memory). Of those, these are kept:

- counts that are powers of two, up to ``MAX_GPUS``;
- plans that fit the cluster when nothing runs, with CPUs, host memory and whole tensor-parallel groups;
- for each GPU type the plans that no other one of the type beats in GPUs, time and memory of a GPU;
- at most ``MAX_PLANS_OF_TYPE`` for each type: the fastest for each count come before slower ones that
  need less memory, and of more counts than that the largest go.

Every GPU type that had a plan keeps one. Every policy gets the same plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.capacity.free_capacity import FreeCapacity, place
from frenzy.core.planning.marp import PlanRequest, plan_candidates
from frenzy.core.scheduling.engine.policy_settings import HasPolicy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.job import Precision
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.sim.job_classes import UNIT_STEPS, JobClass
from frenzy.sim.reference import Plans

MAX_GPUS: Final = 128
MAX_PLANS_OF_TYPE: Final = 8


@dataclass(frozen=True, slots=True)
class Hardware:
    """A cluster; equal to any other with the same GPU types and kinds of node, whatever their names."""

    gpu_types: tuple[GpuType, ...]
    nodes: tuple[tuple[str, int, int, float, str], ...]
    cluster: Cluster = field(compare=False, repr=False)

    @staticmethod
    def of(cluster: Cluster) -> Hardware:
        kinds = (
            (each.gpu_type, each.num_gpus, each.host_memory_bytes, each.num_cpus, each.state.value)
            for each in cluster.nodes
        )
        return Hardware(cluster.gpu_types, tuple(sorted(kinds)), cluster)


@lru_cache(maxsize=4096)
def plan_set(job_class: JobClass, precision: Precision, hardware: Hardware) -> Plans:
    """The plans of ``job_class``, fastest first; the same object for the same question."""
    request = PlanRequest(job=job_class.training_job(precision), shape=job_class.shape, total_steps=UNIT_STEPS)
    candidates = plan_candidates(request, hardware.cluster, default_calibration())
    return worth_keeping(tuple(each.plan for each in candidates if each.feasible), FreeCapacity.of(hardware.cluster))


@lru_cache(maxsize=4096)
def plans_on(job_class: JobClass, precision: Precision, hardware: Hardware, gpu_types: frozenset[str] | None) -> Plans:
    """The plans on ``gpu_types`` only; None for all. The same object for the same question."""
    plans = plan_set(job_class, precision, hardware)
    return plans if gpu_types is None else tuple(each for each in plans if each.gpu_type in gpu_types)


def worth_keeping(plans: Plans, empty: FreeCapacity) -> Plans:
    """``plans`` as the module says, in their order. empty: the cluster when nothing runs."""
    policy = HasPolicy()
    of_type: dict[str, list[ResourcePlan]] = {}
    for plan in plans:
        if _power_of_two(plan.num_gpus) and plan.num_gpus <= MAX_GPUS:
            room = empty.by_type.get(plan.gpu_type)
            if room is not None and place(room, policy.need(plan)) is not None:
                of_type.setdefault(plan.gpu_type, []).append(plan)
    kept = {id(plan) for each in of_type.values() for plan in _few(_front(each))}
    return tuple(plan for plan in plans if id(plan) in kept)


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _front(plans: list[ResourcePlan]) -> list[ResourcePlan]:
    """Those that none of the others beats in GPUs, time and memory."""
    front: list[ResourcePlan] = []
    for plan in sorted(plans, key=_costs):
        if not any(all(a <= b for a, b in zip(_costs(each), _costs(plan), strict=True)) for each in front):
            front.append(plan)
    return front


def _costs(plan: ResourcePlan) -> tuple[float, ...]:
    return (plan.num_gpus, plan.predicted_run_s, plan.memory.required_bytes)


def _few(front: list[ResourcePlan]) -> list[ResourcePlan]:
    fastest = list({plan.num_gpus: plan for plan in sorted(front, key=lambda each: -each.predicted_run_s)}.values())
    fastest.sort(key=lambda each: each.num_gpus)
    chosen = {id(each) for each in fastest}
    others = [each for each in front if id(each) not in chosen]
    return (fastest + others)[:MAX_PLANS_OF_TYPE]
