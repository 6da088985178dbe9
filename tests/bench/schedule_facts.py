"""Busy clusters for the benchmark of scheduling: real job classes, arrivals and, for the largest, real nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import cycle

from frenzy.core.scheduling import HasPolicy, apply_actions, decide
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.scheduling_facts import QueuedJob, SchedulingFacts
from frenzy.sim.clusters import cluster_named
from frenzy.sim.traces import load_trace
from frenzy.sim.workloads import WorkloadSpec, generate

TRACE = "philly-82k"
STARTED_AGO_S = 1000.0


@lru_cache(maxsize=4)
def jobs_on(cluster_name: str, num_jobs: int) -> tuple[QueuedJob, ...]:
    """The first jobs of the trace, elastic, with their plans on the cluster of that name."""
    cluster = cluster_of(cluster_name)
    workload = generate(WorkloadSpec(trace=TRACE, num_jobs=num_jobs), load_trace(TRACE), cluster)
    return tuple(each.job for each in workload.scenario.jobs)


@lru_cache(maxsize=4)
def cluster_of(name: str) -> Cluster:
    """A named cluster; ``2048`` is the one of 288 GPUs, repeated."""
    return grown(cluster_named("288"), 2048) if name == "2048" else cluster_named(name)


def grown(cluster: Cluster, num_gpus: int) -> Cluster:
    """The nodes of ``cluster`` over and over, until there are ``num_gpus`` GPUs or no node fits under that."""
    nodes: list[Node] = []
    left, smallest = num_gpus, min(node.num_gpus for node in cluster.nodes)
    for at, node in enumerate(cycle(cluster.nodes)):
        if left < smallest:
            return Cluster(cluster.gpu_types, tuple(nodes))
        if node.num_gpus <= left:
            nodes.append(replace(node, name=f"node-{at:05d}"))
            left -= node.num_gpus
    raise AssertionError


def busy(cluster: Cluster, jobs: Iterable[QueuedJob], *, num_waiting: int | None = None) -> SchedulingFacts:
    """What ``has`` itself started of ``jobs`` on an empty cluster some time before the last arrived; the rest waits."""
    jobs = tuple(jobs)
    first = SchedulingFacts(cluster=cluster, queued=jobs, running=())
    began_s = now_of(jobs) - STARTED_AGO_S
    policy = HasPolicy()
    after = apply_actions(first, decide(first, began_s, policy), now_s=began_s)
    return replace(after, queued=after.queued[:num_waiting])


def now_of(jobs: Iterable[QueuedJob]) -> float:
    """Just after the last of ``jobs`` arrived."""
    return max(job.submitted_s for job in jobs) + 1.0


def with_own_plans(facts: SchedulingFacts) -> SchedulingFacts:
    """The same, but no two jobs share a tuple of plans, and the cluster is a new value, as when read from a ledger."""
    return replace(
        facts,
        cluster=Cluster(facts.cluster.gpu_types, facts.cluster.nodes),
        queued=tuple(replace(job, plans=(*job.plans[:1], *job.plans[1:])) for job in facts.queued),
        running=tuple(replace(job, plans=(*job.plans[:1], *job.plans[1:])) for job in facts.running),
    )


def rigid(facts: SchedulingFacts) -> SchedulingFacts:
    """The same, with no job that may be moved."""
    return replace(
        facts,
        queued=tuple(replace(job, elasticity=None) for job in facts.queued),
        running=tuple(replace(job, elasticity=None, plans=()) for job in facts.running),
    )


Event = Callable[[SchedulingFacts], SchedulingFacts]


def events(new: Iterable[QueuedJob], now_s: float) -> Iterator[tuple[float, Event]]:
    """In turn, one second apart: a job of ``new`` arrives, and the running job that started first ends."""
    for at, job in enumerate(new):
        when_s = now_s + 2 * at
        yield when_s, partial(_arrive, job=replace(job, submitted_s=when_s))
        yield when_s + 1, _end


def _arrive(facts: SchedulingFacts, *, job: QueuedJob) -> SchedulingFacts:
    return replace(facts, queued=(*facts.queued, job))


def _end(facts: SchedulingFacts) -> SchedulingFacts:
    return replace(facts, running=facts.running[1:])
