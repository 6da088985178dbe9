"""The plans of a waiting job that are worth trying, with what each asks of the nodes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from frenzy.core.scheduling.engine.policy_settings import FifoPolicy, PaperPolicy, Policy, queue_rules
from frenzy.core.scheduling.engine.rigid import could_hold, rigid_plans
from frenzy.core.scheduling.engine.room import FreeCapacity, Need
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob

_MOST_MENUS: Final = 16_384


@dataclass(frozen=True, slots=True)
class Option:
    """One plan a job may start with. run_s: what is left of the job would take so long with it."""

    plan: ResourcePlan
    need: Need
    run_s: float


@dataclass(frozen=True, slots=True)
class Menu:
    """What all jobs with the same plans may start with, the one to try first at the front.

    plans, cluster: what it was made of. fewest_gpus: for each GPU type the smallest choice, which tells quickly that
    none fits; where types are mixed, for the first type of each memory size the smallest choice that needs cards of
    that size. asks: all that the choices ask for, as one text. required_bytes: memory of each choice.
    memo: what others make of it, once.
    """

    plans: tuple[ResourcePlan, ...]
    cluster: Cluster
    choices: tuple[tuple[ResourcePlan, Need], ...]
    fewest_gpus: tuple[tuple[str, int], ...]
    asks: str
    required_bytes: tuple[int, ...]
    memo: list[Any] = field(default_factory=list, compare=False, repr=False)


@dataclass(slots=True, eq=False)
class Contender:
    """A waiting job with what it may start with.

    asks: equal for jobs that ask for the same, and under the same quotas. work: what is believed to be left of it.
    """

    job: QueuedJob
    menu: Menu
    asks: str
    work: float
    _options: tuple[Option, ...] | None = None

    @property
    def options(self) -> tuple[Option, ...]:
        """The one to try first at the front."""
        if self._options is None:
            self._options = tuple(
                [Option(plan, need, self.work * plan.predicted_run_s) for plan, need in self.menu.choices]
            )
        return self._options

    def with_options(self, options: Iterable[Option]) -> Contender:
        """The job with these options in place of its own."""
        return Contender(self.job, self.menu, self.asks, self.work, tuple(options))

    def may_fit(self, room: FreeCapacity) -> bool:
        """Whether any option finds as many idle GPUs of its type as it needs, wherever they are."""
        for gpu_type, num_gpus in self.menu.fewest_gpus:
            on_type = room.by_type.get(gpu_type)
            if on_type is not None and on_type.idle_gpus >= num_gpus:
                return True
        return False


class _Wish(NamedTuple):
    """What of a job its menu depends on."""

    plans: tuple[ResourcePlan, ...]
    ordered: bool
    asked_gpus: int | None
    excluded_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """What of a policy the indices of a state depend on.

    _menus: found before, by the identity of the plans, which many jobs of a simulation share.
    """

    policy: Policy
    _menus: dict[tuple[object, ...], Menu] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    @lru_cache(maxsize=8)
    def of(policy: Policy) -> Rules:
        """Shared by all decisions under ``policy``."""
        return Rules(policy)

    @property
    def counts_gpus_only(self) -> bool:
        """The published algorithm knows neither host resources nor tensor-parallel groups."""
        return isinstance(self.policy, PaperPolicy) and not self.policy.launchable_only

    def need(self, plan: ResourcePlan, excluded_nodes: tuple[str, ...] = ()) -> Need:
        """What ``plan`` asks of the nodes."""
        if self.counts_gpus_only:
            return _need(plan.gpu_type, plan.num_gpus, 1, (0, 0), 0.0, excluded_nodes)
        host_bytes, cpus_per_gpu = plan.memory.host_bytes_of_node_and_rank, self.policy.cpus_per_gpu
        return _need(plan.gpu_type, plan.num_gpus, plan.tp, host_bytes, cpus_per_gpu, excluded_nodes)

    def contender(self, job: QueuedJob, cluster: Cluster) -> Contender:
        """``job`` with the options worth trying under the policy.

        A plan made for a GPU type that has since become smaller is none.
        """
        menu = self._menu(_Wish(job.plans, job.ordered, job.asked_gpus, job.excluded_nodes), cluster)
        asks = f"{menu.asks} {job.queue} {job.team}" if queue_rules(self.policy) else menu.asks
        return Contender(job, menu, asks, job.work_left)

    def _menu(self, wish: _Wish, cluster: Cluster) -> Menu:
        key = (id(wish.plans), *wish[1:])
        known = self._menus.get(key)
        if known is None or known.plans is not wish.plans or known.cluster is not cluster:
            if len(self._menus) >= _MOST_MENUS:
                self._menus.clear()
            known = self._menus[key] = self._made_menu(wish, cluster)
        return known

    def _made_menu(self, wish: _Wish, cluster: Cluster) -> Menu:
        sizes = cluster.types_by_name
        plans: Sequence[ResourcePlan] = [
            plan
            for plan in wish.plans
            if plan.gpu_type not in sizes or plan.memory.required_bytes <= sizes[plan.gpu_type].memory_bytes
        ]
        if isinstance(self.policy, PaperPolicy) and (self.counts_gpus_only or not wish.ordered):
            plans = plan_order(plans)
        choices = [(plan, self.need(plan, wish.excluded_nodes)) for plan in self._worth_trying(plans, wish, cluster)]
        fewest: dict[str, int] = {}
        for plan, need in choices:
            gpu_type = self._least_type(plan, cluster)
            fewest[gpu_type] = min(need.num_gpus, fewest.get(gpu_type, need.num_gpus))
        asks = " ".join([self._asks(plan, need) for plan, need in choices])
        required_bytes = tuple(plan.memory.required_bytes for plan, _ in choices)
        return Menu(wish.plans, cluster, tuple(choices), tuple(fewest.items()), asks, required_bytes)

    def _least_type(self, plan: ResourcePlan, cluster: Cluster) -> str:
        """The type of ``plan``; where types are mixed, the first of those with the least memory that will do."""
        if not self.counts_gpus_only:
            return plan.gpu_type
        sizes, classes = cluster.memory_classes
        at = bisect_left(sizes, plan.memory.required_bytes)
        return classes[at][0] if at < len(classes) else plan.gpu_type

    def _asks(self, plan: ResourcePlan, need: Need) -> str:
        """The published algorithm goes by the memory that is asked for, not by GPU types."""
        return f"{need.text}/{plan.memory.required_bytes}" if self.counts_gpus_only else need.text

    def _worth_trying(self, plans: Sequence[ResourcePlan], wish: _Wish, cluster: Cluster) -> Sequence[ResourcePlan]:
        if self.counts_gpus_only:
            return plans
        if isinstance(self.policy, FifoPolicy):
            fits = partial(self._could_hold, cluster, wish.excluded_nodes)
            return rigid_plans(plans, wish.asked_gpus, fits, ordered=wish.ordered)
        return _undominated(plans)

    def _could_hold(self, cluster: Cluster, excluded_nodes: tuple[str, ...], plan: ResourcePlan) -> bool:
        return could_hold(cluster, self.need(plan, excluded_nodes))

    def queue_order(self, job: QueuedJob) -> tuple[int, float, str]:
        """Sort key of the queue, total: priority descending, then time of submission, then run key.

        The published algorithm knows no priority.
        """
        priority = 0 if isinstance(self.policy, PaperPolicy) else job.priority
        return (-priority, job.submitted_s, job.run_key)


@lru_cache(maxsize=16384)
def _need(  # noqa: PLR0913
    gpu_type: str,
    num_gpus: int,
    group_size: int,
    host_bytes: tuple[int, int],
    cpus_per_gpu: float,
    excluded_nodes: tuple[str, ...],
) -> Need:
    """Shared by the plans that ask for the same, of which a long queue has very many."""
    millicpus = round(cpus_per_gpu * 1000)
    return Need(gpu_type, num_gpus, group_size, *host_bytes, millicpus, tuple(sorted(excluded_nodes)))


def plan_order(plans: Sequence[ResourcePlan]) -> list[ResourcePlan]:
    """Plans by (GPUs, memory per GPU), both ascending, as published; throughput plays no part.

    The published plans name no GPU type: plans that differ only in it count as one, with the
    least memory any of them asks for, and go by the smaller class first.
    """
    least_bytes: dict[tuple[int | bool, ...], int] = {}
    for plan in plans:
        key = _settings(plan)
        least_bytes[key] = min(plan.memory.required_bytes, least_bytes.get(key, plan.memory.required_bytes))

    def order(plan: ResourcePlan) -> tuple[object, ...]:
        settings = _settings(plan)
        return (plan.num_gpus, least_bytes[settings], settings, plan.gpu_memory_bytes, plan.gpu_type)

    return sorted(plans, key=order)


def _settings(plan: ResourcePlan) -> tuple[int | bool, ...]:
    return (
        plan.num_gpus,
        plan.tp,
        plan.zero_stage,
        plan.micro_batch_size,
        plan.activation_checkpointing,
        plan.offload_optimizer,
    )


def _undominated(plans: Sequence[ResourcePlan]) -> list[ResourcePlan]:
    """Plans without those that could never be the one to take.

    Where an earlier one of the same type asks for no more of anything and ends no later, it can
    start whenever the later one can.
    """
    kept: list[ResourcePlan] = []
    of_type: dict[str, list[ResourcePlan]] = {}
    for plan in plans:
        rivals = of_type.setdefault(plan.gpu_type, [])
        for rival in rivals:
            if _dominates(rival, plan):
                break
        else:
            rivals.append(plan)
            kept.append(plan)
    return kept


def _dominates(better: ResourcePlan, plan: ResourcePlan) -> bool:
    """Of two plans of the same type, the first one preferred."""
    node_bytes, rank_bytes = plan.memory.host_bytes_of_node_and_rank
    better_node_bytes, better_rank_bytes = better.memory.host_bytes_of_node_and_rank
    return (
        better.num_gpus <= plan.num_gpus
        and plan.tp % better.tp == 0
        and better_node_bytes <= node_bytes
        and better_rank_bytes <= rank_bytes
        and better.predicted_run_s <= plan.predicted_run_s
    )
