"""Small clusters, plans and jobs for the scheduler's tests."""

from __future__ import annotations

from dataclasses import replace

from frenzy.core.values.cluster import Cluster, Node, NodeAllocation, NodeState, Placement
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.queue_rules import QueueRule, QueueRules, Quota, TeamRule
from frenzy.core.values.resource_plan import HostTerm, MemoryPrediction, ResourcePlan
from frenzy.core.values.scheduling_facts import Action, Elasticity, Hold, QueuedJob, RunningJob, SchedulingFacts, Start
from frenzy.core.values.units import GIB

# A move costs ten seconds, and three are left.
EASY = Elasticity(restart_s=10.0, moves_left=3)


def gpu_type(name: str, *, memory_gib: int = 16, tflops: float = 100.0) -> GpuType:
    return GpuType(name=name, memory_bytes=memory_gib * GIB, flops_per_s=tflops * 1e12)


def node(  # noqa: PLR0913
    name: str,
    gpu: str,
    num_gpus: int,
    *,
    host_gib: int = 1024,
    num_cpus: float = 256,
    state: NodeState = NodeState.READY,
) -> Node:
    return Node(
        name=name,
        gpu_type=gpu,
        num_gpus=num_gpus,
        host_memory_bytes=host_gib * GIB,
        num_cpus=num_cpus,
        state=state,
    )


def plan(  # noqa: PLR0913
    gpu: str,
    num_gpus: int,
    *,
    run_s: float = 1000.0,
    tp: int = 1,
    required_gib: float = 8,
    host_gib: int = 0,
    host_gib_per_gpu: int = 0,
    gpu_memory_gib: int = 16,
    cost: float | None = None,
    micro_batch_size: int = 1,
) -> ResourcePlan:
    return ResourcePlan(
        gpu_type=gpu,
        num_gpus=num_gpus,
        dp=num_gpus // tp,
        tp=tp,
        zero_stage=2,
        micro_batch_size=micro_batch_size,
        accumulation_steps=1,
        activation_checkpointing=False,
        memory=MemoryPrediction(
            peak_allocated_bytes=round(required_gib * GIB * 0.9),
            required_bytes=round(required_gib * GIB),
            host_bytes=(host_gib + num_gpus * host_gib_per_gpu) * GIB,
            host_terms=(
                HostTerm("of the rank", host_gib_per_gpu * GIB),
                HostTerm("of the node", host_gib * GIB, of_each_rank=False),
            )
            if host_gib_per_gpu
            else (),
            at="step",
        ),
        gpu_memory_bytes=gpu_memory_gib * GIB,
        step_time_s=1.0,
        samples_per_s=1.0,
        predicted_run_s=run_s,
        predicted_cost=num_gpus * run_s if cost is None else cost,
    )


def waiting(name: str, *plans: ResourcePlan, submitted_s: float = 0.0, priority: int = 0) -> QueuedJob:
    return QueuedJob(run_key=name, job_name=f"job-{name}", submitted_s=submitted_s, plans=plans, priority=priority)


def running(
    name: str, on: ResourcePlan, *allocations: tuple[str, int], end_s: float | None = None, started_s: float = 0.0
) -> RunningJob:
    return RunningJob(
        run_key=name,
        job_name=f"job-{name}",
        plan=on,
        placement=Placement(allocations=tuple(NodeAllocation(node=at, num_gpus=count) for at, count in allocations)),
        started_s=started_s,
        expected_end_s=end_s,
    )


def scaling(gpu: str, *counts: int, work_s: float) -> tuple[ResourcePlan, ...]:
    """Plans whose speed is the number of GPUs to the power 0.9, fastest first."""
    return tuple(plan(gpu, count, run_s=work_s / count**0.9) for count in sorted(counts, reverse=True))


def elastic(job: QueuedJob, elasticity: Elasticity = EASY, **changes: object) -> QueuedJob:
    return replace(job, elasticity=elasticity, **changes)  # type: ignore[arg-type]


def on(job: QueuedJob, chosen: ResourcePlan, *allocations: tuple[str, int], since_s: float = 0.0) -> RunningJob:
    """``job`` at work since ``since_s``."""
    return replace(
        running(job.run_key, chosen, *allocations, started_s=since_s),
        plans=job.plans,
        elasticity=job.elasticity,
        submitted_s=job.submitted_s,
        priority=job.priority,
        team=job.team,
        work_left=job.work_left,
        expected_end_s=since_s + job.work_left * chosen.predicted_run_s,
    )


def facts(
    nodes: list[Node],
    queued: list[QueuedJob],
    run: list[RunningJob] | None = None,
    types: tuple[GpuType, ...] = (),
) -> SchedulingFacts:
    names = sorted({each.gpu_type for each in nodes} - {each.name for each in types})
    all_types = types + tuple(gpu_type(name) for name in names)
    return SchedulingFacts(cluster=Cluster(all_types, tuple(nodes)), queued=tuple(queued), running=tuple(run or ()))


def started(actions: tuple[Action, ...]) -> dict[str, Start]:
    return {action.run_key: action for action in actions if isinstance(action, Start)}


def held(actions: tuple[Action, ...]) -> dict[str, Hold]:
    return {action.run_key: action for action in actions if isinstance(action, Hold)}


def by_job(actions: tuple[Action, ...]) -> dict[str, Action]:
    return {action.run_key: action for action in actions}


def held_on(there: SchedulingFacts) -> dict[str, int]:
    held: dict[str, int] = {}
    for job in there.running:
        for each in job.placement.allocations:
            held[each.node] = held.get(each.node, 0) + each.num_gpus
    return held


def where(start: Start) -> dict[str, int]:
    return {each.node: each.num_gpus for each in start.placement.allocations}


def at_priority(job: QueuedJob, priority: int) -> QueuedJob:
    return replace(job, priority=priority)


def team_quotas(**max_gpus: int) -> QueueRules:
    """A quota for each of these teams, and no queues."""
    teams = tuple(TeamRule(name=name, quota=Quota(max_gpus=number)) for name, number in max_gpus.items())
    return QueueRules(teams=teams)


def queue_weights(**weights: float) -> QueueRules:
    """Queues that share the cluster, without quotas."""
    return QueueRules(queues=tuple(QueueRule(name=name, weight=weight) for name, weight in weights.items()))


# Of three sizes, and of one size two speeds.
MIXED_TYPES = (
    gpu_type("a100", memory_gib=40, tflops=312),
    gpu_type("rtx", memory_gib=24, tflops=70),
    gpu_type("l4", memory_gib=24, tflops=120),
    gpu_type("t4", memory_gib=16, tflops=65),
)


def on_any_type(num_gpus: int, required_gib: float, **settings: int) -> tuple[ResourcePlan, ...]:
    """One published plan: the same demand on every type that is large enough."""
    return tuple(
        plan(each.name, num_gpus, required_gib=required_gib, gpu_memory_gib=each.memory_bytes >> 30, **settings)
        for each in MIXED_TYPES
        if each.memory_bytes >= required_gib * 2**30
    )
