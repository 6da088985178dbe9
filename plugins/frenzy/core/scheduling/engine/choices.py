"""What the plans of a job come to per unit of its work: one table for all jobs that share their plans.

Tables are remembered, by the identity of the plans: the jobs of a class, and all decisions about them, use one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from frenzy.core.scheduling.engine.options import Contender, Rules
from frenzy.core.scheduling.engine.room import Need, Same
from frenzy.core.values.cluster import Cluster, NodeState
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import RunningJob

Plans = tuple[ResourcePlan, ...]

_NUM_TABLES = 2048


class Choice(NamedTuple):
    """One plan of a job. unit_s: all its work would take so long. gpus: effective, see ``Capacity``."""

    plan: ResourcePlan
    need: Need
    gpu_type: str
    num_gpus: int
    unit_s: float
    gpus: float

    def money(self, takes_s: float) -> float:
        """What so many seconds of it cost."""
        return self.plan.predicted_cost * takes_s / self.unit_s


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a cluster's ready nodes have for our jobs. speed: of a GPU of each type, relative to the fastest;
    effective GPUs are GPUs times speed. ready: nodes that take new work; not_ready: those that take none.
    """

    gpu_types: tuple[GpuType, ...]
    num_gpus: dict[str, int]
    speed: dict[str, float]
    effective: float
    ready: frozenset[str]
    not_ready: frozenset[str]

    @staticmethod
    def of(cluster: Cluster) -> Capacity:
        """Found once for a cluster, however many decisions are made on it."""
        return _capacity(Same(cluster))


@dataclass(frozen=True, slots=True)
class Table:
    """Some plans of a job, in its order of preference.

    least: the one with the least work, in effective GPU-seconds; None where there is no plan. fewest_gpus: of
    each GPU type the fewest any plan takes. is_by_speed: whether the plans are in order of their run times.
    smallest_gpus: effective GPUs of the smallest; infinite where there is no plan.
    """

    choices: tuple[Choice, ...]
    least: Choice | None
    fewest_gpus: tuple[tuple[str, int], ...]
    is_by_speed: bool
    smallest_gpus: float

    @staticmethod
    def of(choices: Iterable[Choice]) -> Table:
        listed = tuple(choices)
        fewest: dict[str, int] = {}
        for each in listed:
            fewest[each.gpu_type] = min(each.num_gpus, fewest.get(each.gpu_type, each.num_gpus))
        return Table(
            listed,
            min(listed, key=lambda each: each.unit_s * each.gpus, default=None),
            tuple(fewest.items()),
            all(one.unit_s <= next_.unit_s for one, next_ in zip(listed, listed[1:], strict=False)),
            min((each.gpus for each in listed), default=math.inf),
        )

    def work(self, left: float) -> float:
        """Effective GPU-seconds of ``left`` of the job with its most efficient plan."""
        return left * self.least.unit_s * self.least.gpus if self.least is not None else 0.0


class Held(NamedTuple):
    """What a running job has, and what it could have instead."""

    current: Choice
    others: Table


@dataclass(slots=True)
class Tables:
    """The tables of all jobs on one cluster, found quickly by the identity of plans that are kept with them."""

    rules: Rules
    capacity: Capacity
    _running: dict[tuple[int, int, tuple[str, ...], bool], tuple[RunningJob, Held]] = field(default_factory=dict)

    def of_waiting(self, contender: Contender) -> Table:
        """Everything the job may start with."""
        memo = contender.menu.memo
        if not memo:
            speed = self.capacity.speed
            memo.append(
                Table.of(_choice(plan, need, speed) for plan, need in contender.menu.choices if need.gpu_type in speed)
            )
        table: Table = memo[0]
        return table

    def of_running(self, job: RunningJob, *, is_displaced: bool = False) -> Held:
        """What the job has and, if it may be moved, the plans of other shape; of its own too if it must leave."""
        key = (id(job.plan), id(job.plans), job.excluded_nodes, is_displaced)
        known = self._running.get(key)
        if known is None or known[0].plan is not job.plan or known[0].plans is not job.plans:
            held = _of_running(
                Same(job.plan), Same(job.plans), job.excluded_nodes, self.rules, self.capacity.gpu_types, is_displaced
            )
            known = self._running[key] = (job, held)
        return known[1]


@lru_cache(maxsize=8)
def _capacity(same: Same) -> Capacity:
    cluster = same.thing
    assert isinstance(cluster, Cluster)
    num_gpus: dict[str, int] = {}
    ready = [node for node in cluster.nodes if node.state is NodeState.READY]
    for node in ready:
        num_gpus[node.gpu_type] = num_gpus.get(node.gpu_type, 0) + node.num_usable
    speed = _speed(cluster.gpu_types)
    effective = sum(speed[gpu_type] * number for gpu_type, number in num_gpus.items())
    names = frozenset(node.name for node in ready)
    not_ready = frozenset(cluster.nodes_by_name) - names
    return Capacity(cluster.gpu_types, num_gpus, speed, effective, names, not_ready)


def _speed(gpu_types: tuple[GpuType, ...]) -> dict[str, float]:
    top = max((each.flops_per_s for each in gpu_types), default=1.0)
    return {each.name: each.flops_per_s / top for each in gpu_types}


@lru_cache(maxsize=_NUM_TABLES)
def _of_running(
    plan: Same,
    plans: Same,
    excluded_nodes: tuple[str, ...],
    rules: Rules,
    gpu_types: tuple[GpuType, ...],
    own_shape_too: bool,
) -> Held:
    held, listed = plan.thing, plans.thing
    assert isinstance(held, ResourcePlan)
    assert isinstance(listed, tuple)
    speed, shape = _speed(gpu_types), held.shape
    sizes = {each.name: each.memory_bytes for each in gpu_types}
    return Held(
        _choice(held, rules.need(held, excluded_nodes), speed),
        Table.of(
            _choice(each, rules.need(each, excluded_nodes), speed)
            for each in listed
            if each.gpu_type in speed
            # a type may have become smaller since the plan was made
            and each.memory.required_bytes <= sizes[each.gpu_type]
            and (own_shape_too or each.shape != shape)
        ),
    )


def _choice(plan: ResourcePlan, need: Need, speed: dict[str, float]) -> Choice:
    gpus = speed.get(plan.gpu_type, 0.0) * plan.num_gpus
    return Choice(plan, need, plan.gpu_type, plan.num_gpus, plan.predicted_run_s, gpus)
