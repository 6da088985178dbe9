"""How far ``has`` is from the best schedule there is, on small instances that can be solved exactly.

The objective is the average job completion time. All jobs are there at the start, on an empty cluster. What ``has``
does is played to the end by the simulator, once with jobs that are never moved and once with jobs that may be
(a move costs 30 s).

The solver finds the least total completion time of all schedules in which each job keeps the plan it was started
with: in some order, each job starts with some plan as soon as it fits, and not before the one ahead of it in the
order. (Every schedule is one of these once each start is made as early as it can be.) Branch and bound: a
branch is cut once it cannot be better than the best known, even if the jobs still to come had the cluster
to themselves. Plans fit together when GPUs can be shared out in whole tensor-parallel groups, jobs moved
between nodes of a type as needed, which real ones are not. So the solver is flattered, and the true gap of jobs that
are never moved is no larger than the one stated. Groups have 1, 2 or 4 GPUs, each size divides the next: there
is room exactly when, for s = 4, 2 and 1, the groups of at least s GPUs count no more units of s than the nodes have
(each node rounded down on its own).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tests.bench.report import figure
from tests.unit.core.has_world import gpu_type, node, plan

from frenzy.core.scheduling import HasPolicy
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Elasticity, QueuedJob
from frenzy.sim.engine import simulate
from frenzy.sim.scenario_jobs import Scenario, SimJob
from frenzy.sim.schedulers import ProductScheduler

NUM_INSTANCES = 100
# Mean and worst, as shares of the least.
RIGID_BOUNDS = (0.06, 0.4)
ELASTIC_BOUNDS = (0.0, 0.25)
_TYPES = (gpu_type("fast", tflops=300), gpu_type("slow", tflops=100))
_GROUPS = (4, 2, 1)
_ELASTICITY = Elasticity(restart_s=30.0, moves_left=3)


@dataclass(frozen=True, slots=True)
class Gap:
    """Total completion times in seconds: the least without moves, and those of ``has``."""

    best_s: float
    rigid_s: float
    elastic_s: float

    @property
    def rigid(self) -> float:
        """By how much ``has`` is above the least where it moves no job, as a share of it."""
        return self.rigid_s / self.best_s - 1

    @property
    def elastic(self) -> float:
        """Likewise where it may; below 0 where moves make up for more than their cost."""
        return self.elastic_s / self.best_s - 1


@lru_cache(maxsize=1)
def gaps() -> tuple[Gap, ...]:
    """The gaps of the instances, the same every time."""
    rng = random.Random(20)
    return tuple(gap_of(*instance(rng)) for _ in range(NUM_INSTANCES))


def gap_figures() -> list[dict[str, Any]]:
    """The gaps as figures of the benchmark."""
    rows = []
    for name, bounds, shares in (
        ("no job moved", RIGID_BOUNDS, sorted(each.rigid for each in gaps())),
        ("jobs may be moved", ELASTIC_BOUNDS, sorted(each.elastic for each in gaps())),
    ):
        title = f"gap of has to the least JCT without moves, {name}"
        rows += [
            figure(f"{title}: mean of {NUM_INSTANCES}", 100 * statistics.mean(shares), "%", goal=100 * bounds[0]),
            figure(f"{title}: median", 100 * statistics.median(shares), "%"),
            figure(f"{title}: worst", 100 * shares[-1], "%", goal=100 * bounds[1]),
        ]
    return rows


def instance(rng: random.Random) -> tuple[Cluster, tuple[QueuedJob, ...]]:
    """Two to four nodes of two types, two to five jobs whose speed grows with GPUs to some power below 1."""
    nodes = [node(f"n{at}", rng.choice(_TYPES).name, rng.randint(1, 6)) for at in range(rng.randint(2, 4))]
    cluster = Cluster(_TYPES, tuple(nodes))
    jobs = [_job(rng, f"j{at}", cluster) for at in range(rng.randint(2, 5))]
    return cluster, tuple(job for job in jobs if job.plans)


def _job(rng: random.Random, name: str, cluster: Cluster) -> QueuedJob:
    work_s, power = rng.lognormvariate(7.5, 1.0), rng.uniform(0.6, 0.95)
    largest_group = rng.choice(_GROUPS)
    plans = [
        plan(gpu.name, count, run_s=work_s * 3e14 / gpu.flops_per_s / count**power, tp=min(count, largest_group))
        for gpu in _TYPES
        for count in (1, 2, 4)
    ]
    possible = [each for each in plans if fits((each,), cluster)]
    return QueuedJob(
        run_key=name,
        job_name=name,
        submitted_s=0.0,
        plans=tuple(sorted(possible, key=lambda each: each.predicted_run_s)),
        elasticity=_ELASTICITY,
    )


def gap_of(cluster: Cluster, jobs: tuple[QueuedJob, ...]) -> Gap:
    """``has`` beside the exact solution."""
    still = tuple(replace(job, elasticity=None) for job in jobs)
    rigid_s, elastic_s = played_s(cluster, still), played_s(cluster, jobs)
    return Gap(least_s(cluster, jobs, rigid_s), rigid_s, elastic_s)


def played_s(cluster: Cluster, jobs: Sequence[QueuedJob]) -> float:
    """Total completion time under ``has``."""
    scenario = Scenario(name="small", cluster=cluster, jobs=tuple(SimJob(job=job, work=1.0) for job in jobs))
    result = simulate(scenario, ProductScheduler(HasPolicy()))
    ends = [job.jct_s for job in result.jobs]
    assert None not in ends
    return sum(each for each in ends if each is not None)


Running = tuple[tuple[float, ResourcePlan], ...]


def least_s(cluster: Cluster, jobs: Sequence[QueuedJob], known_s: float = math.inf) -> float:
    """The least total completion time; a schedule that takes ``known_s`` is known."""
    best_s = known_s

    def extend(left: frozenset[int], running: Running, from_s: float, total_s: float) -> None:
        nonlocal best_s
        if not left:
            best_s = min(best_s, total_s)
            return
        if total_s + sum(from_s + jobs[at].plans[0].predicted_run_s for at in left) >= best_s:
            return
        for at in sorted(left):
            for chosen in jobs[at].plans:
                start_s = _earliest_s(cluster, running, chosen, from_s)
                end_s = start_s + chosen.predicted_run_s
                extend(left - {at}, (*running, (end_s, chosen)), start_s, total_s + end_s)

    extend(frozenset(range(len(jobs))), (), 0.0, 0.0)
    return best_s


def _earliest_s(cluster: Cluster, running: Running, chosen: ResourcePlan, from_s: float) -> float:
    """When ``chosen`` fits beside what runs, not before ``from_s``."""
    for at_s in (from_s, *sorted(end_s for end_s, _ in running if end_s > from_s)):
        if fits((chosen, *(each for end_s, each in running if end_s > at_s)), cluster):
            return at_s
    raise AssertionError("each plan fits the empty cluster")


def fits(chosen: Sequence[ResourcePlan], cluster: Cluster) -> bool:
    """Whether the plans can be held at once, groups whole on nodes; host resources are ample."""
    return all(
        sum(each.num_gpus // size for each in chosen if each.gpu_type == gpu.name and each.tp >= size)
        <= sum(at.num_gpus // size for at in cluster.nodes if at.gpu_type == gpu.name)
        for gpu in cluster.gpu_types
        for size in _GROUPS
    )
