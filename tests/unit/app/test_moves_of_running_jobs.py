"""What the scheduler asks of running jobs really happens: at a checkpoint, once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from tests.unit.app.conftest import Airflow, make_job, small_cluster

from frenzy.adapters.memory import FixedInventory
from frenzy.app.cancel import cancel
from frenzy.app.facts import scheduling_facts
from frenzy.app.inventory import refresh_inventory
from frenzy.app.observe import report_progress
from frenzy.app.place import place_status
from frenzy.app.queries import explain, gpus_view, queue_view, run_view
from frenzy.app.sweep import apply_sweep, sweep_targets
from frenzy.core.cluster import Cluster, NodeAllocation, NodeState, Placement
from frenzy.core.errors import Reason, ReasonCode
from frenzy.core.has import Policy, schedule
from frenzy.core.job import ConstraintsSpec, TrainingJob
from frenzy.core.ledger import JobState
from frenzy.core.moves import ElasticRules
from frenzy.core.plan import ResourcePlan
from frenzy.core.protocol import DirectiveKind, PlaceStatus, ProgressReport, SweepReport, VerdictKind
from frenzy.core.queue import Action, Preempt, Resize, RunningJob, SchedulingFacts, Start
from frenzy.core.units import MIB

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


@pytest.fixture
def scheduler() -> ScriptedScheduler:
    return ScriptedScheduler()


@pytest.fixture
def anywhere(airflow: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    """The same, but allowed on all GPUs of the cluster."""
    job = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(job, scheduler, make_job("anywhere"), 2, step=20)
    return job


@pytest.fixture
def long(airflow: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    """A job that runs on both GPUs of node a."""
    services = replace(airflow.services, schedule=scheduler, elastic=ElasticRules(min_run_s=0.0))
    long = replace(airflow, services=services)
    run_on(long, scheduler, on_small("long"), 2, step=20)
    return long


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
        return scheduling_facts(tx, airflow.services.elastic, airflow.clock.now_s())


def running_job(airflow: Airflow) -> RunningJob:
    return next(each for each in facts_of(airflow).running if each.run_key == airflow.key)


def a_pass(airflow: Airflow) -> None:
    apply_sweep(airflow.services, SweepReport(findings=()))


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


def test_a_resize_stops_the_job_at_a_checkpoint_and_goes_on_from_there(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    resize(long, scheduler, 1)
    view = run_view(long.services, long.key)
    assert view.run.state is JobState.CHECKPOINTING
    assert view.run.reason is not None
    assert view.run.reason.code is ReasonCode.MOVED_TO_SHRINK
    told = long.step(1, 21)
    assert (told.kind, told.reason) == (DirectiveKind.CHECKPOINT_AND_STOP, view.run.reason)
    long.end(1, STOPPED, last_step=22)
    assert long.decide().kind is VerdictKind.RETRY
    spec = long.place().spec
    assert spec is not None
    assert (spec.attempt, spec.plan.gpu_type, spec.plan.num_gpus) == (2, "small", 1)
    assert spec.plan.global_batch_size == 8
    second = run_view(long.services, long.key).attempts[1]
    assert second.next_attempt.checkpoint_step == 22


def test_the_same_move_is_not_made_twice_while_one_is_under_way(long: Airflow, scheduler: ScriptedScheduler) -> None:
    again = running_job(long)
    resize(long, scheduler, 1)
    before = run_view(long.services, long.key)
    scheduler.script = lambda facts: (
        Resize(run_key=long.key, plan=plan_of(again.plans, 1), placement=on_a(1)),
        Preempt(run_key=long.key, reason=FOR_ANOTHER),
    )
    long.clock.advance(1)
    a_pass(long)
    assert run_view(long.services, long.key) == before


def test_where_a_job_is_already_it_is_not_moved_to(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 2)
    assert run_view(long.services, long.key).run.state is JobState.RUNNING


def test_moves_leave_the_users_budget_of_reschedules_alone(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    services = replace(airflow.services, schedule=scheduler, elastic=ElasticRules(min_run_s=0.0))
    job = replace(airflow, services=services)
    run_on(job, scheduler, on_small("moved", max_reschedules=1), 2, step=20)
    for attempt in moves(job, scheduler, iter([1, 2, 1])):
        last = attempt
    assert run_view(job.services, job.key).run.num_reschedules == 0
    job.end(last, KILLED, last_step=30)
    assert job.decide().kind is VerdictKind.RETRY
    job.place()
    job.launch(last + 1)
    job.end(last + 1, KILLED, last_step=31)
    assert job.decide().reason.code is ReasonCode.RESCHEDULE_BUDGET_SPENT


def test_moves_have_a_budget_of_their_own_that_refills_with_running(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    left = []
    for _ in moves(long, scheduler, iter([1, 2])):
        elastic = running_job(long).elasticity
        assert elastic is not None
        left.append(elastic.moves_left)
    assert left == [2.0, 1.0]
    long.clock.advance(long.services.elastic.refill_s)
    resize(long, scheduler, 1)
    long.end(3, STOPPED, last_step=30)
    long.decide()
    long.place()
    long.launch(4)
    long.step(4, 31)
    elastic = running_job(long).elasticity
    assert elastic is not None
    assert elastic.moves_left == pytest.approx(1.0)


def waiting_short(long: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    """A short job that is to start on the GPU that ``long`` is to give up, both decided in one pass."""
    short = long.another()
    short.register(on_small("short"), run_id="r2")
    one = plan_of(running_job(long).plans, 1)

    def shrink_and_start(facts: SchedulingFacts) -> tuple[Action, ...]:
        queued = {each.run_key: each for each in facts.queued}
        start = Start(run_key=short.key, plan=plan_of(queued[short.key].plans, 1), placement=on_a(1))
        return (start, Resize(run_key=long.key, plan=one, placement=on_a(1)))

    scheduler.script = shrink_and_start
    assert short.place().status is PlaceStatus.WAITING
    scheduler.script = None
    return short


def test_a_start_on_gpus_that_a_moving_job_still_holds_waits_until_they_are_free(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    short = waiting_short(long, scheduler)
    told = place_status(short.services, short.key)
    assert told.reason is not None
    assert told.reason.code is ReasonCode.WAITING_FOR_MOVE
    assert "job long has saved a checkpoint and left a" in told.reason.sentence
    reason = run_view(long.services, long.key).run.reason
    assert reason is not None
    assert "so that job short can start" in reason.sentence
    a_pass(long)
    assert place_status(short.services, short.key).status is PlaceStatus.WAITING
    assert sum(row.num_free for row in gpus_view(long.services).types if row.gpu_type == "small") == 0
    long.end(1, STOPPED, last_step=22)
    assert place_status(short.services, short.key).status is PlaceStatus.PLACED
    assert place_status(short.services, short.key).spec is not None
    long.decide()
    spec = long.place().spec
    assert spec is not None
    assert spec.plan.num_gpus == 1


def test_the_place_a_job_moves_to_is_kept_while_it_is_between_attempts(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    resize(long, scheduler, 1)
    long.end(1, STOPPED, last_step=22)
    kept = running_job(long)
    assert (kept.plan.num_gpus, kept.placement, kept.elasticity) == (1, on_a(1), None)
    long.clock.advance(60)
    assert facts_of(long).running == ()


def test_the_target_is_a_preference_and_no_promise(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    long.end(1, STOPPED, last_step=22)
    long.decide()
    scheduler.script = lambda facts: ()
    assert long.place().status is PlaceStatus.WAITING
    (waiting,) = facts_of(long).queued
    assert waiting.ordered
    assert (waiting.plans[0].num_gpus, len({plan.num_gpus for plan in waiting.plans})) == (1, 2)
    assert waiting.elasticity is not None
    assert waiting.elasticity.moves_left == 2.0


def test_a_preempted_job_waits_with_its_reason_and_resumes(long: Airflow, scheduler: ScriptedScheduler) -> None:
    preempt(long, scheduler)
    assert long.step(1, 21).kind is DirectiveKind.CHECKPOINT_AND_STOP
    long.end(1, STOPPED, last_step=22)
    verdict = long.decide()
    assert (verdict.kind, verdict.reason) == (VerdictKind.RETRY, FOR_ANOTHER)
    scheduler.script = lambda facts: ()
    assert long.place().status is PlaceStatus.WAITING
    view = run_view(long.services, long.key)
    assert (view.run.state, view.run.reason) == (JobState.QUEUED, FOR_ANOTHER)
    scheduler.script = None
    a_pass(long)
    second = run_view(long.services, long.key).attempts[-1]
    assert (second.attempt, second.next_attempt.checkpoint_step) == (2, 22)


def test_a_preemption_without_words_names_the_job_that_gets_the_gpus(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    urgent = long.another()
    urgent.register(on_small("urgent"), run_id="r2")

    def preempt_and_start(facts: SchedulingFacts) -> tuple[Action, ...]:
        (queued,) = (each for each in facts.queued if each.run_key == urgent.key)
        return (
            Preempt(run_key=long.key, reason=Reason(code=ReasonCode.PREEMPTED)),
            Start(run_key=urgent.key, plan=plan_of(queued.plans, 2), placement=on_a(2)),
        )

    scheduler.script = preempt_and_start
    urgent.place()
    reason = run_view(long.services, long.key).run.reason
    assert reason is not None
    assert reason.code is ReasonCode.PREEMPTED
    assert "job urgent" in reason.sentence


def test_a_job_that_is_being_preempted_counts_as_waiting(long: Airflow, scheduler: ScriptedScheduler) -> None:
    preempt(long, scheduler)
    facts = facts_of(long)
    assert [each.run_key for each in facts.queued] == [long.key]
    assert facts.running == ()
    a_pass(long)  # the product's scheduler starts it again at once; it cannot while its workers are there
    assert run_view(long.services, long.key).queue_entry is None


def test_workers_that_did_not_stop_in_time_are_moved_all_the_same(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    long.end(1, KILLED, last_step=20)
    assert long.decide().reason.code is ReasonCode.MOVED_TO_SHRINK
    long.place()
    assert run_view(long.services, long.key).run.num_reschedules == 0


def test_memory_that_runs_out_while_a_job_is_moved_is_treated_as_such(
    anywhere: Airflow, scheduler: ScriptedScheduler
) -> None:
    first = running_job(anywhere).plan
    resize(anywhere, scheduler, 1)
    anywhere.end(1, OUT_OF_MEMORY, last_step=20)
    assert facts_of(anywhere).running == ()
    anywhere.decide()
    anywhere.place()
    view = run_view(anywhere.services, anywhere.key)
    assert view.run.num_reschedules == 1
    assert first.shape in view.attempts[-1].next_attempt.excluded_shapes


def test_a_job_that_ends_before_it_is_moved_is_done(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    long.end(1, DONE, last_step=100)
    assert long.decide().kind is VerdictKind.DONE
    assert sum(row.num_free for row in gpus_view(long.services).types) == 4


def test_a_job_cancelled_while_it_is_moved_stays_cancelled(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    cancel(long.services, long.key, Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Enough."))
    assert long.step(1, 21).kind is DirectiveKind.KILL
    assert running_job(long).placement == on_a(2)
    long.end(1, STOPPED, last_step=22)
    assert long.decide().kind is VerdictKind.FAIL
    assert run_view(long.services, long.key).run.state is JobState.CANCELLED


def test_what_memory_taught_before_a_move_is_known_after_it(anywhere: Airflow, scheduler: ScriptedScheduler) -> None:
    assert anywhere.press(1, extra=16 * MIB, number=21).kind is DirectiveKind.CHECKPOINT_AND_STOP
    anywhere.end(1, STOPPED, last_step=22)
    anywhere.decide()
    anywhere.place()
    anywhere.launch(2)
    anywhere.step(2, 25)
    before = run_view(anywhere.services, anywhere.key).attempts[1].next_attempt
    assert before.extra_bytes_per_gpu == 16 * MIB
    preempt(anywhere, scheduler)
    anywhere.end(2, STOPPED, last_step=26)
    following = anywhere.decide().next_attempt
    assert following is not None
    assert following.excluded_shapes == before.excluded_shapes
    assert following.extra_bytes_per_gpu == before.extra_bytes_per_gpu
    assert following.forecast_extra_bytes_per_gpu == before.forecast_extra_bytes_per_gpu


def test_a_running_job_tells_the_scheduler_what_it_takes_to_move_it(long: Airflow) -> None:
    assert (running_job(long).work_left, running_job(long).work_done) == (0.8, 0.2)
    long.clock.advance(10)
    job = running_job(long)
    run = run_view(long.services, long.key).run
    assert (job.submitted_s, job.objective) == (run.created_s, run.job.objective)
    assert job.ready_s == long.clock.now_s() - 10
    assert job.work_left - job.progress(long.clock.now_s()) == pytest.approx(0.8)
    assert job.plan in job.plans
    assert {plan.num_gpus for plan in job.plans} == {1, 2}
    assert job.elasticity is not None
    assert job.elasticity.restart_s == 5.0  # measured: granted, and five seconds later the first step
    assert job.elasticity.moves_left == 3


def test_work_is_counted_from_the_checkpoint_that_the_plans_were_made_for(
    long: Airflow, scheduler: ScriptedScheduler
) -> None:
    resize(long, scheduler, 1)
    long.clock.advance(3)
    long.end(1, STOPPED, last_step=60)
    long.decide()
    long.place()
    long.launch(2)
    long.clock.advance(7)
    long.step(2, 80)
    job = running_job(long)
    assert job.work_left == pytest.approx(0.5)
    assert job.work_done == pytest.approx(80 / 40)
    assert job.elasticity is not None
    assert job.elasticity.restart_s == 10.0  # seven seconds to the first step, three to the end before


def pinned(long: Airflow) -> bool:
    job = running_job(long)
    return job.elasticity is None and job.plans == ()


@pytest.mark.parametrize(
    "job",
    [
        replace(on_small("stays"), elastic="off"),
        on_small("stays", max_reschedules=0),
    ],
    ids=["switched off", "no reschedules"],
)
def test_a_job_whose_user_does_not_want_it_moved_is_not_moved(
    airflow: Airflow, scheduler: ScriptedScheduler, job: TrainingJob
) -> None:
    stays = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(stays, scheduler, job, 2, step=20)
    assert pinned(stays)
    preempt(stays, scheduler)
    assert run_view(stays.services, stays.key).run.state is JobState.RUNNING


def test_no_job_is_moved_where_the_setting_is_off(long: Airflow) -> None:
    assert pinned(replace(long, services=replace(long.services, elastic=ElasticRules(enabled=False))))


def test_a_job_whose_memory_grows_is_left_to_the_monitor(long: Airflow) -> None:
    report_progress(long.services, long.key, 1, ProgressReport(last_step=21, growth_step=20))
    assert pinned(long)


def test_a_job_before_its_first_step_is_not_moved(airflow: Airflow) -> None:
    airflow.register(make_job())
    airflow.place()
    airflow.launch(1)
    assert pinned(airflow)
    job = running_job(airflow)
    assert job.ready_s == job.started_s + airflow.services.elastic.restart_s


def set_node(airflow: Airflow, state: NodeState) -> None:
    whole = small_cluster()
    nodes = tuple(replace(node, state=state) if node.name == "a" else node for node in whole.nodes)
    assert isinstance(airflow.services.inventory, FixedInventory)
    airflow.services.inventory.replace(Cluster(gpu_types=whole.gpu_types, nodes=nodes))
    with airflow.services.ledger.transaction() as tx:
        refresh_inventory(tx, airflow.services)


def test_a_job_leaves_a_drained_node_at_a_checkpoint(anywhere: Airflow, scheduler: ScriptedScheduler) -> None:
    job = anywhere
    set_node(job, NodeState.DRAINING)
    large = plan_of(running_job(job).plans, 1, "large")
    target = Placement(allocations=(NodeAllocation(node="b", num_gpus=1),))
    scheduler.script = lambda facts: (Resize(run_key=job.key, plan=large, placement=target),)
    a_pass(job)
    scheduler.script = None
    job.end(1, STOPPED, last_step=22)
    assert job.decide().reason.code is ReasonCode.MOVED_TO_OTHER_GPUS
    spec = job.place().spec
    assert spec is not None
    assert spec.placement == target


def test_a_job_on_a_lost_node_cannot_be_asked_to_stop(long: Airflow) -> None:
    set_node(long, NodeState.LOST)
    assert pinned(long)


def test_a_job_that_is_not_heard_of_is_taken_to_be_where_it_was(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    long.clock.advance(61)
    sweep_targets(long.services)
    assert running_job(long).placement == on_a(2)
    assert pinned(long)


def test_a_job_that_is_not_heard_of_is_not_asked(long: Airflow, scheduler: ScriptedScheduler) -> None:
    long.clock.advance(61)
    sweep_targets(long.services)
    assert pinned(long)
    preempt(long, scheduler)
    assert run_view(long.services, long.key).run.state is JobState.RUNNING


def test_a_move_under_way_is_told(long: Airflow, scheduler: ScriptedScheduler) -> None:
    resize(long, scheduler, 1)
    lines = explain(long.services, long.key).lines
    assert any("saving a checkpoint to stop: MOVED_TO_SHRINK" in line for line in lines)
    (row,) = queue_view(long.services).running
    assert row.reason is not None
    assert row.reason.code is ReasonCode.MOVED_TO_SHRINK
    assert any("MOVED_TO_SHRINK" in event.text for event in run_view(long.services, long.key).events)


def test_a_pass_happens_when_a_job_can_be_moved_from_now_on(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    rules = ElasticRules(min_run_s=10.0)
    job = replace(airflow, services=replace(airflow.services, schedule=scheduler, elastic=rules))
    run_on(job, scheduler, on_small("job"), 2, step=1)
    first_step_s = job.clock.now_s()
    passes = len(scheduler.seen)
    for second, number in ((9, 2), (2, 3), (2, 4)):
        job.clock.advance(second)
        progress = ProgressReport(last_step=number, step_time_s=1.0, first_step_s=first_step_s)
        report_progress(job.services, job.key, 1, progress)
    assert len(scheduler.seen) == passes + 1
