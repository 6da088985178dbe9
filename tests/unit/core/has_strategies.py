"""Random clusters, queues and running jobs for the scheduler's invariants."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from tests.unit.core.has_world import EASY, gpu_type, node, plan, running

from frenzy.core.scheduling import (
    BackfillPolicy,
    FifoPolicy,
    HasPolicy,
    PaperPolicy,
    apply_actions,
    schedule,
)
from frenzy.core.values.cluster import Cluster, Node, NodeState
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.job import Objective
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Elasticity, QueuedJob, RunningJob, SchedulingFacts
from frenzy.core.values.units import GIB

TYPES = (
    gpu_type("big", memory_gib=40, tflops=300),
    gpu_type("mid", memory_gib=32, tflops=100),
    gpu_type("low", memory_gib=16, tflops=60),
)
SIZES = {each.name: each.memory_bytes // GIB for each in TYPES}
NOW_S = 1000.0

policies = st.sampled_from(
    (
        HasPolicy(),
        PaperPolicy(),
        HasPolicy(cpus_per_gpu=2.0),
        HasPolicy(min_gain=0.0),
        FifoPolicy(),
        BackfillPolicy(),
    )
)
has_policies = st.sampled_from(
    (HasPolicy(), HasPolicy(max_wait_share=0.0), HasPolicy(min_gain=0.0, max_wait_share=9.0))
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    states = st.sampled_from((NodeState.READY, NodeState.READY, NodeState.READY, NodeState.DRAINING, NodeState.LOST))
    nodes = [
        node(
            f"n{index}",
            draw(st.sampled_from([each.name for each in TYPES])),
            draw(st.integers(1, 4)),
            host_gib=draw(st.sampled_from((16, 64))),
            num_cpus=draw(st.sampled_from((2, 8))),
            state=draw(states),
        )
        for index in range(draw(st.integers(1, 6)))
    ]
    return Cluster(TYPES, tuple(nodes))


@st.composite
def plans(draw: st.DrawFn) -> ResourcePlan:
    gpu: GpuType = draw(st.sampled_from(TYPES))
    tp = draw(st.sampled_from((1, 1, 1, 2, 4)))
    found = plan(
        gpu.name,
        tp * draw(st.integers(1, 3)),
        run_s=draw(st.sampled_from((50.0, 100.0, 200.0, 900.0))),
        tp=tp,
        required_gib=draw(st.sampled_from((4, 16))),
        host_gib=draw(st.sampled_from((0, 0, 10, 40))),
        host_gib_per_gpu=draw(st.sampled_from((0, 0, 3, 8))),
        gpu_memory_gib=SIZES[gpu.name],
        micro_batch_size=draw(st.sampled_from((1, 2))),
    )
    return replace(found, predicted_cost=None) if draw(st.sampled_from((False, False, True))) else found


@st.composite
def queues(draw: st.DrawFn, max_size: int = 7) -> tuple[QueuedJob, ...]:
    return tuple(
        QueuedJob(
            run_key=f"q{index}",
            job_name=f"job-q{index}",
            submitted_s=draw(st.sampled_from((0.0, 500.0, 990.0, 1000.0))),
            plans=best_first(draw(st.lists(plans(), max_size=4)), objective),
            priority=draw(st.integers(-1, 1)),
            objective=objective,
            ordered=draw(st.sampled_from((False, False, False, True))),
            excluded_nodes=draw(st.sampled_from(((), (), ("n0",)))),
            asked_gpus=draw(st.sampled_from((None, 2, 3))),
            memory_constrained=draw(st.sampled_from((False, False, True))),
        )
        for index, objective in enumerate(draw(st.lists(st.sampled_from(Objective), max_size=max_size)))
    )


def best_first(choices: list[ResourcePlan], objective: Objective) -> tuple[ResourcePlan, ...]:
    """As MARP ranks them."""
    if objective is Objective.COST:
        return tuple(sorted(choices, key=lambda each: (each.cost_order, each.predicted_run_s)))
    return tuple(sorted(choices, key=lambda each: (each.predicted_run_s, each.cost_order)))


@st.composite
def running_on(draw: st.DrawFn, cluster: Cluster) -> tuple[RunningJob, ...]:
    """Jobs on the nodes of ``cluster``, drained and lost ones too, none oversubscribed."""
    idle = {each.name: each.num_gpus for each in cluster.nodes}
    jobs = []
    for index in range(draw(st.integers(0, 5))):
        at: Node = draw(st.sampled_from(cluster.nodes))
        if idle[at.name] == 0:
            continue
        count = draw(st.integers(1, idle[at.name]))
        idle[at.name] -= count
        end_s = draw(st.sampled_from((None, 900.0, 1010.0, 1060.0, 1150.0, 1500.0)))
        jobs.append(running(f"r{index}", plan(at.gpu_type, count), (at.name, count), end_s=end_s))
    return tuple(jobs)


@st.composite
def all_facts(draw: st.DrawFn) -> SchedulingFacts:
    cluster = draw(clusters())
    return SchedulingFacts(cluster=cluster, queued=draw(queues()), running=draw(running_on(cluster)))


def only(facts: SchedulingFacts, run_keys: set[str]) -> SchedulingFacts:
    return replace(facts, queued=tuple(job for job in facts.queued if job.run_key in run_keys))


@st.composite
def started_before(
    draw: st.DrawFn, elasticities: st.SearchStrategy[Elasticity | None], ages_s: tuple[float, ...]
) -> tuple[SchedulingFacts, tuple[QueuedJob, ...]]:
    """What the policy itself made of some jobs so long ago, and other jobs that have come since."""
    cluster = draw(clusters())
    jobs = tuple(
        replace(
            job,
            elasticity=draw(elasticities),
            work_left=draw(st.sampled_from((0.2, 1.0, 30.0))),
            team=draw(st.sampled_from(("red", "blue"))),
        )
        for job in draw(queues(max_size=9))
    )
    before = SchedulingFacts(cluster=cluster, queued=jobs[::2], running=())
    past_s = NOW_S - draw(st.sampled_from(ages_s))
    return apply_actions(before, schedule(before, past_s, HasPolicy()), now_s=past_s), jobs[1::2]


@st.composite
def elastic_facts(draw: st.DrawFn) -> SchedulingFacts:
    """Facts in which most jobs may be moved; the running ones were started by the policy itself."""
    few_left = Elasticity(restart_s=5.0, moves_left=0)
    after, then = draw(started_before(st.sampled_from((None, EASY, EASY, few_left)), (0.0, 1.0, 40.0, 800.0)))
    return replace(after, queued=after.queued + then)
