"""What every active job, waiting or running, could hold and what that would be worth to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from frenzy.core.cluster import Cluster, NodeState
from frenzy.core.has.options import Contender, Rules
from frenzy.core.has.policy import HasPolicy
from frenzy.core.has.room import Need
from frenzy.core.has.state import SchedulingState
from frenzy.core.job import Objective
from frenzy.core.plan import ResourcePlan
from frenzy.core.queue import QueuedJob, RunningJob


class Choice(NamedTuple):
    """One plan of a job. run_s: what is left would take so long. gpus: effective, see ``Capacity``."""

    plan: ResourcePlan
    need: Need
    run_s: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the ready nodes have. speed: of a GPU of each type, relative to the fastest; effective
    GPUs are GPUs times speed.
    """

    num_gpus: Mapping[str, int]
    speed: Mapping[str, float]

    @staticmethod
    def of(cluster: Cluster) -> Capacity:
        num_gpus: dict[str, int] = {}
        for node in cluster.nodes:
            if node.state is NodeState.READY:
                num_gpus[node.gpu_type] = num_gpus.get(node.gpu_type, 0) + node.num_gpus
        top = max((each.flops_per_s for each in cluster.gpu_types), default=1.0)
        return Capacity(num_gpus, {each.name: each.flops_per_s / top for each in cluster.gpu_types})

    @property
    def effective(self) -> float:
        return sum(self.speed[gpu_type] * number for gpu_type, number in self.num_gpus.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One active job in a pass.

    current: what it holds. is_fixed: it keeps that whatever happens. has_moves: others may make it move;
    without, it may only grow into idle GPUs. work: effective GPU-seconds that are left with its most
    efficient plan. weight: of a second of its time against others'. is_displaced: it runs on a node that
    takes no new work, and should go elsewhere.
    """

    job: QueuedJob | RunningJob
    choices: tuple[Choice, ...]
    current: Choice | None
    is_fixed: bool
    has_moves: bool
    restart_s: float
    work: float
    weight: float
    is_displaced: bool = False

    @property
    def run_key(self) -> str:
        return self.job.run_key

    @property
    def in_order(self) -> bool:
        """Whether its plans are in an order that is not one of speed; it takes the first that can be had."""
        return isinstance(self.job, QueuedJob) and self.job.ordered


def claims_of(state: SchedulingState, now_s: float, policy: HasPolicy, capacity: Capacity) -> list[Claim]:
    """A claim for every active job, in the order they are served.

    By priority, then by the time each is due: its submission plus ``slowdown`` times what the whole
    cluster would take for the rest of it. Short jobs go before long ones that came at about the same
    time, and none is overtaken for ever.
    """
    not_ready = frozenset(node.name for node in state.cluster.nodes if node.state is not NodeState.READY)
    found = [_of_running(job, state.rules, now_s, policy, capacity, not_ready) for job in state.running.values()]
    found += [
        _of_waiting(contender, policy, capacity)
        for contender in state.waiting
        if contender.job.run_key not in state.running
    ]
    pace = policy.slowdown / max(capacity.effective, 1e-9)
    return sorted(
        found,
        key=lambda claim: (
            -claim.job.priority,
            claim.job.submitted_s + pace * claim.work / policy.share_of(claim.job.team),
            claim.run_key,
        ),
    )


def _of_waiting(contender: Contender, policy: HasPolicy, capacity: Capacity) -> Claim:
    job = contender.job
    left = believed_left(job.work_left, job.work_done, policy)
    choices = tuple(
        _choice(option.plan, option.need, left, capacity)
        for option in contender.options
        if option.need.gpu_type in capacity.speed
    )
    resumes = job.elasticity is not None and job.work_done > 0
    work = _work(choices)
    return Claim(
        job=job,
        choices=choices,
        current=None,
        is_fixed=False,
        has_moves=True,
        restart_s=job.elasticity.restart_s if resumes and job.elasticity else 0.0,
        work=work,
        weight=_weight(work, job.team, policy),
    )


def _of_running(
    job: RunningJob, rules: Rules, now_s: float, policy: HasPolicy, capacity: Capacity, not_ready: frozenset[str]
) -> Claim:
    progress = job.progress(now_s)
    left = believed_left(job.work_left - progress, job.work_done + progress, policy)
    current = _choice(job.plan, rules.need(job.plan, job.excluded_nodes), left, capacity)
    is_displaced = bool(not_ready) and any(each.node in not_ready for each in job.placement.allocations)
    is_settled = job.elasticity is not None and job.ran_s(now_s) >= max(job.elasticity.min_run_s, 1e-9)
    others = tuple(
        _choice(plan, rules.need(plan, job.excluded_nodes), left, capacity)
        for plan in (job.plans if is_settled else ())
        if plan.gpu_type in capacity.speed and plan.shape != job.plan.shape
    )
    choices = others if is_displaced else (current, *others)
    work = _work(choices or (current,))
    return Claim(
        job=job,
        choices=choices,
        current=current,
        is_fixed=not is_settled,
        has_moves=is_displaced or job.moves_left(now_s) >= 1,
        restart_s=job.elasticity.restart_s if job.elasticity else 0.0,
        work=work,
        weight=_weight(work, job.team, policy),
        is_displaced=is_displaced,
    )


def believed_left(left: float, done: float, policy: HasPolicy) -> float:
    """What is left of a job, in multiples of its plans' run times.

    A job that outlived its estimate is believed to have a share of what it did still before it: the
    longer it ran, the longer it will (so it is with run times of heavy tail).
    """
    return left if left > 0 else max(policy.overrun_share * done, 1e-9)


def _choice(plan: ResourcePlan, need: Need, left: float, capacity: Capacity) -> Choice:
    return Choice(plan, need, left * plan.predicted_run_s, capacity.speed.get(plan.gpu_type, 0.0) * plan.num_gpus)


def _work(choices: Sequence[Choice]) -> float:
    return min((choice.run_s * choice.gpus for choice in choices), default=0.0)


def _weight(work: float, team: str, policy: HasPolicy) -> float:
    return policy.share_of(team) * math.pow(max(work, 1e-9), policy.size_exponent)


def by_cost(job: QueuedJob | RunningJob) -> bool:
    return job.objective is Objective.COST
