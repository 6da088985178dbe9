"""Handovers: a start waits while jobs that leave still hold what it is to have.

The scheduler counts a move that is under way as done, so that it makes no second one for the same want. What is
really held bounds what may be granted: GPUs, CPUs and host memory of nodes, and quotas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.capacity.free_capacity import FreeCapacity
from frenzy.core.capacity.queue_use import QuotaUse
from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.values.cluster import Cluster, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one run really holds. is_leaving: it was asked to stop for a move, and has not given it back yet."""

    job_name: str
    queue: str
    team: str
    plan: ResourcePlan
    placement: Placement
    is_leaving: bool


@dataclass(frozen=True, slots=True)
class Held:
    """What all runs really hold, and what that leaves of the nodes: found once for all starts of a pass."""

    policy: Policy
    holdings: tuple[Holding, ...]
    left: FreeCapacity

    @staticmethod
    def of(holdings: Sequence[Holding], cluster: Cluster, policy: Policy) -> Held:
        left = Capacity.of(cluster).left_by((policy.need(each.plan), each.placement) for each in holdings)
        return Held(policy, tuple(holdings), left)

    def beside(self, granted: Holding) -> Held:
        """With what was granted since."""
        left = self.left.hold(self.policy.need(granted.plan), granted.placement)
        return Held(self.policy, (*self.holdings, granted), left)


def wait_for_leaving(start: Start, held: Held, *, queue: str, team: str) -> Reason | None:
    """Why ``start``, of a job of ``queue`` and ``team``, waits for jobs that leave; None where it need not."""
    leaving = [each for each in held.holdings if each.is_leaving]
    if not leaving:
        return None
    full = _full_nodes(start, held)
    names = [each.job_name for each in leaving if any(at.node in full for at in each.placement.allocations)]
    if names:
        return _until_left(start, names, f"left {', '.join(sorted(full))}")
    wanted = Holding(job_name="", queue=queue, team=team, plan=start.plan, placement=start.placement, is_leaving=False)
    return _wait_for_quota(start, wanted, held.holdings, held.policy)


def _full_nodes(start: Start, held: Held) -> set[str]:
    """Nodes that have no room yet for what ``start`` takes there."""
    need, found = held.policy.need(start.plan), set[str]()
    for each in start.placement.allocations:
        gpu_type = held.left.type_of_node.get(each.node)
        free = None if gpu_type is None else held.left.by_type[gpu_type].free[each.node]
        if free is not None and need.gpus_in(free) < each.num_gpus:
            found.add(each.node)
    return found


def _wait_for_quota(start: Start, wanted: Holding, holdings: Sequence[Holding], policy: Policy) -> Reason | None:
    """Of the quotas that would be exceeded the first for which a leaving job counts, and for which jobs it waits."""
    use = QuotaUse.of(policy.numbers.queues, holdings)
    for limit in use.broken(wanted, start.plan.gpu_type, start.plan.num_gpus):
        counting = [
            each.job_name
            for each in holdings
            if each.is_leaving and limit in use.limits_of(each) and limit.gpu_type in (None, each.plan.gpu_type)
        ]
        if counting:
            return _until_left(start, counting, f"given its GPUs back, for {limit.title} may hold {limit.num_gpus}")
    return None


def _until_left(start: Start, names: Sequence[str], and_what: str) -> Reason:
    jobs = f"job {names[0]} has" if len(names) == 1 else f"jobs {', '.join(names)} have"
    detail = f"Starts as {start.plan.plan_id} as soon as {jobs} saved a checkpoint and {and_what}."
    return Reason(code=ReasonCode.WAITING_FOR_MOVE, detail=detail)
