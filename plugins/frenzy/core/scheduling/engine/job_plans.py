"""What jobs may run with: each plan with what it asks of the nodes, and takes for each unit of the job's work.

Remembered across decisions. Jobs that ask the nodes for the same share one ``Ask``, whatever their run times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter
from typing import Final, NamedTuple

from frenzy.core.capacity.cluster_capacity import Capacity, relative_speed
from frenzy.core.capacity.free_capacity import FreeCapacity, Need, place_in
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy, FifoPolicy, PaperPolicy, Policy
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob

# Than all whose cost is known.
_DEARER: Final = 1.001
_MOST_KNOWN: Final = 16_384
_SETTINGS: Final = attrgetter(
    "num_gpus", "tp", "zero_stage", "micro_batch_size", "activation_checkpointing", "offload_optimizer"
)


class RankedPlan(NamedTuple):
    """One plan of a job. unit_s: all its work would take so long. gpus: effective, see ``Capacity``.

    cost: what it counts as among the job's plans; see ``KnownPlans.costs``.
    """

    plan: ResourcePlan
    need: Need
    gpu_type: str
    num_gpus: int
    unit_s: float
    gpus: float
    cost: float

    def money(self, takes_s: float) -> float:
        """What so many seconds of it count as, for a job that goes by cost."""
        return self.cost * takes_s / self.unit_s


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What a job's plans ask of the nodes. fewest_gpus: of each GPU type the fewest that any plan takes."""

    needs: tuple[Need, ...]
    fewest_gpus: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class JobPlans:
    """The plans that a job may take: listed, in its order of preference; plans, whose GPU type is there, the fastest
    first unless they are to be taken in order; least, the one with the least work, in effective GPU-seconds.
    """

    listed: tuple[RankedPlan, ...]
    plans: tuple[RankedPlan, ...]
    ask: Ask
    least: RankedPlan | None

    def work(self, left: float) -> float:
        """Effective GPU-seconds of ``left`` of the job with its most efficient plan."""
        return left * self.least.unit_s * self.least.gpus if self.least is not None else 0.0


NO_PLANS: Final = JobPlans((), (), Ask((), ()), None)


@dataclass(frozen=True, slots=True)
class KnownPlans:
    """The plans of all jobs on clusters of the same GPU types, under policies that ask the same of nodes.

    They are found by the identity of what the jobs list. rigid_on: all nodes, where plans are chosen by them, too.
    """

    policy: Policy
    rigid_on: FreeCapacity | None
    speed: dict[str, float]
    sizes: dict[str, int]
    free: frozenset[str]
    _waiting: dict[object, tuple[object, JobPlans]] = field(default_factory=dict)
    _running: dict[object, tuple[RunningJob, RankedPlan, JobPlans]] = field(default_factory=dict)
    _asks: dict[object, Ask] = field(default_factory=dict)

    @staticmethod
    def of(policy: Policy, capacity: Capacity) -> KnownPlans:
        """Shared by all decisions that come to the same plans, whatever the policy's other numbers."""
        is_swept = isinstance(policy, BackfillPolicy)
        alike = BackfillPolicy(cpus_per_gpu=policy.cpus_per_gpu) if is_swept else policy
        return _known_plans(alike, capacity.cluster.gpu_types, capacity if isinstance(policy, FifoPolicy) else None)

    def of_waiting(self, job: QueuedJob) -> JobPlans:
        """Everything ``job`` may start with; a plan made for a GPU type that has since become smaller is none."""
        key = (id(job.plans), job.ordered, job.asked_gpus, job.excluded_nodes)
        known = self._waiting.get(key)
        if known is None:
            self._forget()
            in_order = job.ordered or not isinstance(self.policy, BackfillPolicy)
            known = self._waiting[key] = (job.plans, self._job_plans(self._worth_trying(job), in_order=in_order))
        return known[1]

    def of_running(self, job: RunningJob, *, is_displaced: bool = False) -> tuple[RankedPlan, JobPlans]:
        """What the job has and, if it may be moved, the plans of other shape; of its own too if it must leave."""
        # By the plans themselves, which the entry keeps alive: the tuple around them is made anew in each pass.
        key = (id(job.plan), tuple(map(id, job.plans)), job.excluded_nodes, is_displaced)
        known = self._running.get(key)
        if known is None:
            self._forget()
            others = [
                each
                for each in job.plans
                if each.gpu_type in self.sizes
                and self._is_large_enough(each)
                and (is_displaced or each.shape != job.plan.shape)
            ]
            current, *ranked = self._all_ranked([job.plan, *others], job)
            known = self._running[key] = (job, current, self._job_plans(ranked))
        return known[1:]

    def _forget(self) -> None:
        if len(self._waiting) + len(self._running) >= _MOST_KNOWN:
            for each in (self._waiting, self._running, self._asks):
                each.clear()

    def _is_large_enough(self, plan: ResourcePlan) -> bool:
        return plan.memory.required_bytes <= self.sizes.get(plan.gpu_type, math.inf)

    def _worth_trying(self, job: QueuedJob) -> list[RankedPlan]:
        plans = [plan for plan in job.plans if self._is_large_enough(plan)]
        if isinstance(self.policy, PaperPolicy) and not job.ordered:
            plans = plan_order(plans)
        if self.rigid_on is not None:
            empty, need = self.rigid_on, partial(self.policy.need, excluded_nodes=job.excluded_nodes)
            fits = [plan for plan in plans if place_in(empty, need(plan)) is not None]
            return self._all_ranked(rigid_plans(plans, job.asked_gpus, fits, ordered=job.ordered), job)
        return _undominated(self._all_ranked(plans, job))

    def _all_ranked(self, plans: Sequence[ResourcePlan], job: QueuedJob | RunningJob) -> list[RankedPlan]:
        costs = self.costs(plans)
        return [self._ranked(plan, job.excluded_nodes, cost) for plan, cost in zip(plans, costs, strict=True)]

    def _ranked(self, plan: ResourcePlan, excluded_nodes: tuple[str, ...], cost: float) -> RankedPlan:
        gpus = self.speed.get(plan.gpu_type, 0.0) * plan.num_gpus
        need = self.policy.need(plan, excluded_nodes)
        return RankedPlan(plan, need, plan.gpu_type, plan.num_gpus, plan.predicted_run_s, gpus, cost)

    def costs(self, plans: Sequence[ResourcePlan]) -> list[float]:
        """What each of a job's plans counts as: its cost, and without a price its GPU-hours, at one that makes them
        dearer than every known cost, of the whole job as of a second.
        """
        known = [(plan, self._cost(plan)) for plan in plans]
        dearest = max((cost for _, cost in known if cost is not None), default=0.0)
        rate = max((cost / plan.predicted_run_s for plan, cost in known if cost is not None), default=0.0)
        prices = (max(dearest / plan.gpu_hours, 3600 * rate / plan.num_gpus) for plan, cost in known if cost is None)
        price = _DEARER * max(prices, default=0.0) or 1.0
        return [price * plan.gpu_hours if cost is None else cost for plan, cost in known]

    def _cost(self, plan: ResourcePlan) -> float | None:
        # Ledgers of before prices were optional have 0 where there was none, also once there is one.
        is_old = plan.predicted_cost == 0 and plan.gpu_type not in self.free
        return None if is_old else plan.predicted_cost

    def _job_plans(self, listed: Sequence[RankedPlan], *, in_order: bool = False) -> JobPlans:
        plans = [each for each in listed if each.gpu_type in self.speed]
        if not in_order:
            plans.sort(key=attrgetter("unit_s"))
        least = min(plans, key=lambda each: each.unit_s * each.gpus, default=None)
        # One for all that ask for the same, of GPUs with the same memory.
        needs = tuple([each.need for each in listed])
        key = needs, tuple([each.plan.memory.required_bytes for each in listed])
        found = self._asks.get(key)
        if found is None:
            fewest: dict[str, int] = {}
            for each in plans:
                fewest[each.gpu_type] = min(each.num_gpus, fewest.get(each.gpu_type, each.num_gpus))
            found = self._asks[key] = Ask(needs, tuple(fewest.items()))
        return JobPlans(tuple(listed), tuple(plans), found, least)


@lru_cache(maxsize=8)
def _known_plans(policy: Policy, gpu_types: tuple[GpuType, ...], rigid_on: Capacity | None) -> KnownPlans:
    sizes = {each.name: each.memory_bytes for each in gpu_types}
    free = frozenset(each.name for each in gpu_types if each.price_per_hour == 0)
    return KnownPlans(policy, None if rigid_on is None else rigid_on.whole, relative_speed(gpu_types), sizes, free)


def rigid_plans(
    plans: Sequence[ResourcePlan], asked_gpus: int | None, fitting: Sequence[ResourcePlan], *, ordered: bool = False
) -> list[ResourcePlan]:
    """The plans with the one number of GPUs the job runs with, whatever is free; the fastest first.

    That number is ``asked_gpus`` (else 1), or the next larger one, then the next smaller one that is ``fitting`` an
    empty cluster. ordered: keep the order of ``plans`` instead of sorting by speed.
    """
    asked = asked_gpus or 1
    counts = sorted({plan.num_gpus for plan in fitting or plans}, key=lambda count: (count < asked, abs(count - asked)))
    chosen = [plan for plan in plans if plan.num_gpus in counts[:1]]
    return chosen if ordered else sorted(chosen, key=lambda plan: plan.predicted_run_s)


def plan_order(plans: Sequence[ResourcePlan]) -> list[ResourcePlan]:
    """Plans by (GPUs, memory per GPU), both ascending, as published; throughput plays no part.

    Plans that differ only in GPU type count as one, with the least memory any of them asks for.
    """
    least_bytes: dict[object, int] = {}
    for plan in plans:
        key = _SETTINGS(plan)
        least_bytes[key] = min(plan.memory.required_bytes, least_bytes.get(key, plan.memory.required_bytes))

    def order(plan: ResourcePlan) -> tuple[object, ...]:
        settings = _SETTINGS(plan)
        return (plan.num_gpus, least_bytes[settings], settings, plan.gpu_memory_bytes, plan.gpu_type)

    return sorted(plans, key=order)


def _undominated(listed: Iterable[RankedPlan]) -> list[RankedPlan]:
    """Plans without those beside which an earlier one of their type asks for no more and ends no later."""
    kept: list[RankedPlan] = []
    of_type: dict[str, list[RankedPlan]] = {}
    for each in listed:
        rivals = of_type.setdefault(each.gpu_type, [])
        if not any(map(partial(_is_dominated, each), rivals)):
            rivals.append(each)
            kept.append(each)
    return kept


def _is_dominated(ranked: RankedPlan, by: RankedPlan) -> bool:
    """Whether ``by``, of the same type and preferred, leaves no use for ``ranked``."""
    if by.num_gpus > ranked.num_gpus or by.unit_s > ranked.unit_s:
        return False
    better, need = by.need, ranked.need
    return (
        need.group_size % better.group_size == 0
        and better.host_bytes_per_node <= need.host_bytes_per_node
        and better.host_bytes_per_gpu <= need.host_bytes_per_gpu
    )
