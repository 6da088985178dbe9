"""Running jobs that a scripted scheduler moves: what tests of moves are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tests.in_memory.sources import FixedInventory
from tests.unit.app.playing import Airflow, make_job
from tests.unit.installation import small_cluster

from frenzy.app.facts import scheduling_facts
from frenzy.app.inventory import refresh_inventory
from frenzy.app.reconciliation import reconcile
from frenzy.core.runs.protocol import DirectiveKind, PlaceStatus, ReconcileReport, VerdictKind
from frenzy.core.scheduling import Policy, schedule
from frenzy.core.values.cluster import Cluster, NodeAllocation, NodeState, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import ConstraintsSpec, TrainingJob
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Action, Preempt, Resize, RunningJob, SchedulingFacts, Start

Script = Callable[[SchedulingFacts], tuple[Action, ...]]
STOPPED, DONE, KILLED, OUT_OF_MEMORY = 98, 0, 137, 97
FOR_ANOTHER = Reason(code=ReasonCode.PREEMPTED, detail="Job urgent has a higher priority.")


@dataclass
class ScriptedScheduler:
    """Does what the test's script says in every pass; without one, what the product does."""

    script: Script | None = None
    seen: list[SchedulingFacts] = field(default_factory=list)

    def __call__(self, facts: SchedulingFacts, now_s: float, policy: Policy) -> tuple[Action, ...]:
        self.seen.append(facts)
        return schedule(facts, now_s, policy) if self.script is None else self.script(facts)


def on_small(name: str, **job: int) -> TrainingJob:
    return replace(make_job(name, **job), constraints=ConstraintsSpec(gpu_types=("small",)))


def run_on(airflow: Airflow, scheduler: ScriptedScheduler, job: TrainingJob, num_gpus: int, *, step: int) -> None:
    """Register ``job`` and bring it to ``step`` of its first attempt, on ``num_gpus`` GPUs of node a."""
    airflow.register(job)
    scheduler.script = lambda facts: tuple(
        Start(run_key=each.run_key, plan=plan_of(each.plans, num_gpus), placement=on_a(num_gpus))
        for each in facts.queued
        if each.run_key == airflow.key
    )
    assert airflow.place().status is PlaceStatus.PLACED
    scheduler.script = None
    airflow.launch(1)
    airflow.clock.advance(5)
    airflow.step(1, step)


def on_a(num_gpus: int) -> Placement:
    return Placement(allocations=(NodeAllocation(node="a", num_gpus=num_gpus),))


def plan_of(plans: tuple[ResourcePlan, ...], num_gpus: int, gpu_type: str = "small") -> ResourcePlan:
    return next(plan for plan in plans if (plan.gpu_type, plan.num_gpus) == (gpu_type, num_gpus))


def facts_of(airflow: Airflow) -> SchedulingFacts:
    with airflow.services.ledger.reading() as tx:
        return scheduling_facts(tx, airflow.services, airflow.clock.now_s())


def running_job(airflow: Airflow) -> RunningJob:
    return next(each for each in facts_of(airflow).running if each.run_key == airflow.key)


def a_pass(airflow: Airflow) -> None:
    reconcile(airflow.services, ReconcileReport(findings=()))


def resize(airflow: Airflow, scheduler: ScriptedScheduler, num_gpus: int) -> None:
    """Script one move of the running job, and let a pass happen."""
    job = running_job(airflow)
    move = Resize(run_key=airflow.key, plan=plan_of(job.plans, num_gpus), placement=on_a(num_gpus))
    scheduler.script = lambda facts: (move,)
    a_pass(airflow)
    scheduler.script = None


def preempt(airflow: Airflow, scheduler: ScriptedScheduler, reason: Reason = FOR_ANOTHER) -> None:
    scheduler.script = lambda facts: (Preempt(run_key=airflow.key, reason=reason),)
    a_pass(airflow)
    scheduler.script = None


def told_to_stop(airflow: Airflow, attempt: int, step: int) -> Reason:
    """Why the attempt, which reports ``step``, is to save a checkpoint and stop; fails if it is not."""
    asked = airflow.step(attempt, step)
    assert asked.kind is DirectiveKind.CHECKPOINT_AND_STOP
    assert asked.reason is not None
    return asked.reason


def moves(airflow: Airflow, scheduler: ScriptedScheduler, sizes: Iterator[int]) -> Iterator[int]:
    """Move the job through ``sizes``; yields each new attempt's number, the attempt running."""
    for attempt, num_gpus in enumerate(sizes, start=1):
        resize(airflow, scheduler, num_gpus)
        airflow.end(attempt, STOPPED, last_step=20 + attempt)
        assert airflow.decide().kind is VerdictKind.RETRY
        assert airflow.place().status is PlaceStatus.PLACED
        airflow.launch(attempt + 1)
        airflow.step(attempt + 1, 21 + attempt)
        yield attempt + 1


def pinned(long: Airflow) -> bool:
    job = running_job(long)
    return job.elasticity is None and job.plans == ()


def set_node(airflow: Airflow, state: NodeState) -> None:
    whole = small_cluster()
    nodes = tuple(replace(node, state=state) if node.name == "a" else node for node in whole.nodes)
    assert isinstance(airflow.services.inventory, FixedInventory)
    airflow.services.inventory.replace(Cluster(gpu_types=whole.gpu_types, nodes=nodes))
    with airflow.services.ledger.transaction() as tx:
        refresh_inventory(tx, airflow.services.inventory.cluster(), airflow.services.inventory.cluster)
