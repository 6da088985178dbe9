"""Small simulations for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.unit.core.has_world import gpu_type, node, plan

from frenzy.core.scheduling import HasPolicy, Policy, SchedulingState
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Action, Elasticity, QueuedJob
from frenzy.sim.scenario_jobs import Scenario, SimJob

SMALL, LARGE = gpu_type("small", memory_gib=16), gpu_type("large", memory_gib=40)


def cluster(*nodes: Node) -> Cluster:
    return Cluster((SMALL, LARGE), nodes or (node("s1", "small", 2), node("l1", "large", 2)))


def sim_job(  # noqa: PLR0913
    name: str,
    *plans: ResourcePlan,
    submitted_s: float = 0.0,
    work: float = 1.0,
    believed: float | None = None,
    memory_factor: float = 1.0,
) -> SimJob:
    """A job whose scheduler knows its work, if nothing else is said, and may move it for 10 s a time."""
    job = QueuedJob(
        run_key=name,
        job_name=name,
        submitted_s=submitted_s,
        plans=plans,
        work_left=work if believed is None else believed,
        elasticity=Elasticity(restart_s=10.0, moves_left=3),
    )
    return SimJob(job=job, work=work, memory_factor=memory_factor)


def scenario(*jobs: SimJob, **others: object) -> Scenario:
    fields: dict[str, object] = {"name": "test", "cluster": cluster(), **others}
    return Scenario(jobs=jobs, **fields)  # type: ignore[arg-type]


def on_small(num_gpus: int, run_s: float, required_gib: float = 8) -> ResourcePlan:
    return plan("small", num_gpus, run_s=run_s, required_gib=required_gib, gpu_memory_gib=16)


def on_large(num_gpus: int, run_s: float, required_gib: float = 8) -> ResourcePlan:
    return plan("large", num_gpus, run_s=run_s, required_gib=required_gib, gpu_memory_gib=40)


@dataclass
class Scripted:
    """A scheduler that does what a function says."""

    say: Callable[[SchedulingState, float], tuple[Action, ...]]
    round_s: float | None = None
    rules: Policy = HasPolicy()
    name: str = "scripted"

    def decide(self, state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        return self.say(state, now_s)
