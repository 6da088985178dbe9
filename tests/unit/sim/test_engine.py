"""What the simulator does to jobs: it follows the scheduler, and keeps account of work and GPUs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import clusters, policies, queues
from tests.unit.core.has_world import node, running
from tests.unit.sim.sim_world import Scripted, cluster, on_large, on_small, scenario, sim_job

from frenzy.core.capacity.free_capacity import place
from frenzy.core.scheduling import HasPolicy, Policy, SchedulingState, schedule
from frenzy.core.values.cluster import Cluster, NodeAllocation, NodeState, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Action, Elasticity, Preempt, QueuedJob, Resize, SchedulingFacts, Start
from frenzy.sim.engine import SimulationError, simulate
from frenzy.sim.results import JobOutcome, SimResult
from frenzy.sim.scenario_jobs import NodeFailure, Scenario, SimJob, SimRunning
from frenzy.sim.schedulers import ProductScheduler

HAS = ProductScheduler(HasPolicy())


def outcome(result: SimResult, key: str) -> JobOutcome:
    return next(job for job in result.jobs if job.run_key == key)


def at(name: str, num_gpus: int) -> Placement:
    return Placement(allocations=(NodeAllocation(node=name, num_gpus=num_gpus),))


def without_cpu_times(result: SimResult) -> SimResult:
    return replace(result, decision_s=())


def test_job_that_fits_runs_as_long_as_its_work_takes() -> None:
    result = simulate(scenario(sim_job("a", on_small(1, 100.0), submitted_s=50.0, work=3.0)), HAS)
    assert (outcome(result, "a").first_start_s, outcome(result, "a").end_s) == (50.0, 350.0)
    assert (outcome(result, "a").waiting_s, outcome(result, "a").num_restarts) == (0.0, 0)
    assert result.num_gpus == {"small": 2, "large": 2}


def test_true_work_decides_when_a_job_ends_not_what_is_believed_of_it() -> None:
    result = simulate(scenario(sim_job("a", on_small(1, 100.0), work=2.0, believed=9.0)), HAS)
    assert outcome(result, "a").end_s == 200.0


def test_second_job_waits_for_the_first() -> None:
    jobs = [sim_job(name, on_small(2, 100.0), submitted_s=when) for name, when in (("a", 0.0), ("b", 10.0))]
    result = simulate(scenario(*jobs), HAS)
    assert (outcome(result, "b").waiting_s, outcome(result, "b").end_s) == (90.0, 200.0)
    assert result.queue == ((0.0, 0), (10.0, 1), (100.0, 0))


def test_job_that_fits_nowhere_never_ends_and_the_simulation_does() -> None:
    result = simulate(scenario(sim_job("a", on_small(9, 100.0)), sim_job("b", on_small(1, 70.0))), HAS)
    assert (outcome(result, "a").end_s, outcome(result, "a").waiting_s) == (None, 70.0)


def test_out_of_memory_loses_the_attempt_and_goes_to_a_larger_card() -> None:
    job = sim_job("a", on_small(1, 100.0, 10), on_large(1, 300.0, 10), memory_factor=2.0)
    result = simulate(scenario(job), HAS)
    assert [(stay.gpu_type, stay.start_s, stay.end_s) for stay in result.stays] == [
        ("small", 0.0, 60.0),
        ("large", 60.0, 370.0),
    ]
    assert (outcome(result, "a").num_ooms, outcome(result, "a").num_restarts) == (1, 1)
    assert [stay.lost_gpu_s for stay in result.stays] == [60.0, 10.0]


def test_a_job_out_of_memory_gets_larger_cards_from_one_that_fits_elsewhere() -> None:
    growing = sim_job("growing", on_small(2, 1000.0, 10), on_large(2, 1300.0, 10), memory_factor=2.0)
    roomy = sim_job("roomy", on_large(2, 1000.0), on_small(2, 1100.0), submitted_s=1.0)
    result = simulate(scenario(growing, roomy), HAS)
    taken = {(stay.run_key, stay.gpu_type) for stay in result.stays if stay.start_s < 200.0}
    assert taken == {("growing", "small"), ("growing", "large"), ("roomy", "large"), ("roomy", "small")}
    assert outcome(result, "roomy").num_restarts == outcome(result, "growing").num_restarts == 1


def test_lost_node_costs_a_job_at_most_one_checkpoint_interval() -> None:
    job = sim_job("a", on_small(1, 1000.0))
    failure = NodeFailure(node="s1", at_s=350.0, repair_s=50.0)
    result = simulate(scenario(job, failures=(failure,), checkpoint_s=100.0), HAS)
    assert [stay.repeated_s for stay in result.stays] == [pytest.approx(50.0), 0.0]
    assert outcome(result, "a").end_s == pytest.approx(400 + 10 + 700)


def test_node_comes_back_when_its_last_failure_is_over() -> None:
    failures = (NodeFailure(node="s1", at_s=0.0, repair_s=50.0), NodeFailure(node="s1", at_s=40.0, repair_s=60.0))
    result = simulate(scenario(sim_job("a", on_small(1, 10.0)), failures=failures), HAS)
    assert outcome(result, "a").first_start_s == 100.0


def test_moves_keep_work_and_cost_a_restart() -> None:
    slow, fast = on_small(1, 100.0), on_large(1, 50.0)

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        if now_s == 0.0:
            return (Start(run_key="a", plan=slow, placement=at("s1", 1)),)
        return (Resize(run_key="a", plan=fast, placement=at("l1", 1)),) if now_s == 40.0 else ()

    jobs = (sim_job("a", slow, fast), sim_job("alarm", on_small(9, 1.0), submitted_s=40.0))
    result = simulate(scenario(*jobs), Scripted(say))
    assert outcome(result, "a").end_s == pytest.approx(40 + 10 + 0.6 * 50)
    assert outcome(result, "a").num_restarts == 1


@pytest.mark.parametrize(("overhead_s", "moved_s"), [(5.0, 10.0), (25.0, 25.0)])
def test_every_start_takes_the_start_overhead_and_a_move_its_restart_if_that_is_longer(
    overhead_s: float, moved_s: float
) -> None:
    slow, fast = on_small(1, 100.0), on_large(1, 50.0)

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        if now_s == 0.0:
            return (Start(run_key="a", plan=slow, placement=at("s1", 1)),)
        return (Resize(run_key="a", plan=fast, placement=at("l1", 1)),) if now_s == 40.0 + overhead_s else ()

    jobs = (sim_job("a", slow, fast), sim_job("alarm", on_small(9, 1.0), submitted_s=40.0 + overhead_s))
    result = simulate(scenario(*jobs, start_overhead_s=overhead_s), Scripted(say))
    assert outcome(result, "a").end_s == pytest.approx(40 + overhead_s + moved_s + 0.6 * 50)
    assert [stay.busy_from_s - stay.start_s for stay in result.stays] == [overhead_s, moved_s]


def test_a_job_that_is_never_moved_takes_the_start_overhead_at_each_start() -> None:
    sim = sim_job("a", on_small(1, 1000.0))
    rigid = replace(sim, job=replace(sim.job, elasticity=None))
    failure = NodeFailure(node="s1", at_s=350.0, repair_s=50.0)
    result = simulate(scenario(rigid, failures=(failure,), checkpoint_s=100.0, start_overhead_s=30.0), HAS)
    assert outcome(result, "a").end_s == pytest.approx(400 + 30 + 700)


def test_preempted_job_waits_and_goes_on_where_it_was() -> None:
    only = on_small(1, 100.0)

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        if now_s == 40.0:
            return (Preempt(run_key="a", reason=Reason(code=ReasonCode.PREEMPTED)),)
        waits = any(each.job.run_key == "a" for each in state.waiting)
        return (Start(run_key="a", plan=only, placement=at("s1", 1)),) if waits else ()

    alarms = [sim_job(f"alarm{when}", on_small(9, 1.0), submitted_s=when) for when in (40.0, 70.0)]
    result = simulate(scenario(sim_job("a", only), *alarms), Scripted(say))
    assert (outcome(result, "a").waiting_s, outcome(result, "a").end_s) == (30.0, pytest.approx(70 + 10 + 60))


def test_job_that_may_be_moved_from_now_on_is_looked_at_though_nothing_else_happens() -> None:
    short, long = sim_job("short", on_large(2, 30.0)), sim_job("long", on_small(1, 10_000.0), on_large(2, 1000.0))
    patient = replace(long.job, elasticity=Elasticity(restart_s=10.0, moves_left=3, min_run_s=60.0))
    result = simulate(scenario(short, replace(long, job=patient)), HAS)
    assert outcome(result, "long").end_s == pytest.approx(60 + 10 + (1 - 60 / 10_000) * 1000)


def test_a_job_that_is_left_alone_is_looked_at_again_and_again_though_nothing_else_happens() -> None:
    asked_s = []

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        asked_s.append(now_s)
        return schedule(state, now_s, state.policy) if not now_s else ()

    patient = sim_job("a", on_small(1, 1000.0))
    alone = replace(patient, job=replace(patient.job, elasticity=Elasticity(restart_s=10.0, moves_left=3)))
    result = simulate(scenario(alone), Scripted(say))
    assert asked_s == pytest.approx([0, 0, 60, 120, 240, 480, 960, 1000], abs=0.1)
    assert result.idle.gpu_s == pytest.approx(3 * 1000.0)


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        ((("a", "s1", 2), ("b", "s1", 1)), "not free"),
        ((("a", "nowhere", 2),), "not free"),
        ((("a", "s1", 1),), "was given 1 GPUs"),
        ((("c", "s1", 2),), "does not wait"),
    ],
)
def test_scheduler_that_asks_for_what_cannot_be_is_refused(
    starts: tuple[tuple[str, str, int], ...], words: str
) -> None:
    two, one = on_small(2, 100.0), on_small(1, 100.0)

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        plans = {"a": two, "b": one, "c": two}
        return tuple(Start(run_key=key, plan=plans[key], placement=at(name, count)) for key, name, count in starts)

    with pytest.raises(SimulationError, match=words):
        simulate(scenario(sim_job("a", two), sim_job("b", one)), Scripted(say))


def test_job_that_does_not_run_cannot_be_moved() -> None:
    say = lambda state, now_s: (Resize(run_key="a", plan=on_small(1, 1.0), placement=at("s1", 1)),)  # noqa: E731
    with pytest.raises(SimulationError, match="does not run"):
        simulate(scenario(sim_job("a", on_small(1, 1.0))), Scripted(say))


def test_scheduler_with_rounds_is_asked_once_a_round() -> None:
    asked: list[float] = []

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        asked.append(now_s)
        return tuple(action for action in schedule(state, now_s, state.policy) if isinstance(action, Start))

    jobs = [sim_job(f"j{index}", on_small(1, 130.0), submitted_s=10.0 + index) for index in range(4)]
    result = simulate(scenario(*jobs), Scripted(say, round_s=60.0))
    assert asked == sorted(set(asked))
    assert all(when % 60 == 0 for when in asked)
    assert all(job.end_s is not None for job in result.jobs)


def test_captured_jobs_go_on_and_the_waiting_ones_wait_from_the_beginning() -> None:
    held = running("old", on_small(2, 100.0), ("s1", 2), end_s=1050.0, started_s=950.0)
    new = sim_job("new", on_small(1, 10.0), submitted_s=900.0)
    captured = scenario(new, running=(SimRunning(job=held, work=1.0),), start_s=1000.0)
    result = simulate(captured, HAS)
    assert outcome(result, "old").end_s == 1050.0
    assert (outcome(result, "new").first_start_s, outcome(result, "new").waiting_s) == (1050.0, 150.0)


def test_first_decision_on_captured_facts_is_that_of_the_product() -> None:
    held = running("old", on_small(2, 100.0), ("s1", 2), end_s=1050.0, started_s=950.0)
    jobs = [sim_job(f"j{index}", on_small(1, 10.0), on_large(1, 30.0), submitted_s=900.0 + index) for index in range(4)]
    seen: list[tuple[Action, ...]] = []

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        seen.append(schedule(state, now_s, state.policy))
        return tuple(each for each in seen[-1] if isinstance(each, Start))

    simulate(scenario(*jobs, running=(SimRunning(job=held, work=1.0),), start_s=1000.0), Scripted(say))
    queued = tuple(each.job for each in jobs)
    facts = SchedulingFacts(cluster=cluster(), queued=queued, running=(held,))
    assert seen[0] == schedule(facts, 1000.0, HasPolicy())


def test_a_captured_job_is_looked_at_again_and_again_though_nothing_else_happens() -> None:
    asked_s = []

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        asked_s.append(now_s)
        return ()

    held = running("old", on_small(2, 1000.0), ("s1", 2), end_s=1700.0, started_s=700.0)
    movable = replace(held, elasticity=Elasticity(restart_s=10.0, moves_left=3))
    simulate(scenario(running=(SimRunning(job=movable, work=1.0),), start_s=1000.0), Scripted(say))
    assert asked_s == pytest.approx([1000, 1300, 1700], abs=0.1)


def test_captured_job_whose_expected_end_is_past_ends_at_once() -> None:
    held = running("old", on_small(2, 100.0), ("s1", 2), started_s=0.0)
    result = simulate(scenario(running=(SimRunning(job=held, work=1.0),), start_s=1000.0), HAS)
    assert outcome(result, "old").end_s == 1000.0


def test_idle_gpus_that_a_waiting_job_counts_on_are_told_apart() -> None:
    """Two nodes with one idle GPU each are of no use to a job that needs two in one group."""
    nodes = cluster(node("s1", "small", 2), node("s2", "small", 2))
    pair = replace(on_small(2, 100.0), tp=2, dp=1)
    ones = [sim_job(f"one{index}", on_small(1, 100.0)) for index in range(3)]
    split = {"one0": "s1", "one1": "s2"}

    def say(state: SchedulingState, now_s: float) -> tuple[Action, ...]:
        if now_s > 0.0:
            return tuple(each for each in schedule(state, now_s, state.policy) if isinstance(each, Start))
        return tuple(Start(run_key=key, plan=on_small(1, 100.0), placement=at(name, 1)) for key, name in split.items())

    result = simulate(scenario(*ones[:2], sim_job("pair", pair), cluster=nodes), Scripted(say))
    assert result.idle.wanted_gpu_s == pytest.approx(2 * 100.0)
    assert result.idle.gpu_s == pytest.approx(2 * 100.0 + 2 * 100.0)


@st.composite
def workloads(draw: st.DrawFn) -> Scenario:
    seed = draw(st.integers(0, 10_000))
    rng = random.Random(seed)
    on: Cluster = draw(clusters())
    jobs = tuple(_true_job(rng, job) for job in draw(queues()))
    ready = Cluster(on.gpu_types, tuple(replace(each, state=NodeState.READY) for each in on.nodes))
    failures = tuple(
        NodeFailure(node=rng.choice(on.nodes).name, at_s=rng.uniform(0, 1500), repair_s=rng.uniform(1, 300))
        for _ in range(rng.choice((0, 0, 2)))
    )
    return Scenario(name=str(seed), cluster=ready, jobs=jobs, failures=failures, checkpoint_s=40.0)


def _true_job(rng: random.Random, job: QueuedJob) -> SimJob:
    return SimJob(job=job, work=rng.uniform(0.1, 3.0), memory_factor=rng.choice((1.0, 1.0, 1.2)))


thorough = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@thorough
@given(workloads(), policies)
def test_work_done_is_the_work_there_was(case: Scenario, policy: Policy) -> None:
    result = simulate(case, ProductScheduler(policy))
    plans = {sim.job.run_key: sim for sim in case.jobs}
    for job in result.jobs:
        if job.end_s is None:
            continue
        stays = [stay for stay in result.stays if stay.run_key == job.run_key]
        lengths = {
            (plan.gpu_type, plan.num_gpus): plan.predicted_run_s for plan in reversed(plans[job.run_key].job.plans)
        }
        if len(lengths) != len(plans[job.run_key].job.plans):
            continue
        done = sum(
            (stay.end_s - stay.busy_from_s - stay.repeated_s) / lengths[stay.gpu_type, stay.num_gpus] for stay in stays
        )
        assert done == pytest.approx(plans[job.run_key].work)
        assert job.waiting_s + sum(stay.end_s - stay.start_s for stay in stays) == pytest.approx(
            job.end_s - job.submitted_s
        )


@thorough
@given(workloads(), policies)
def test_gpus_are_held_once_or_idle(case: Scenario, policy: Policy) -> None:
    """The engine refuses a GPU held twice; counted over all time as well, no type holds more than there is."""
    result = simulate(case, ProductScheduler(policy))
    for gpu_type, num_gpus in result.num_gpus.items():
        stays = [stay for stay in result.stays if stay.gpu_type == gpu_type]
        for moment in (stay.start_s for stay in stays):
            assert sum(stay.num_gpus for stay in stays if stay.start_s <= moment < stay.end_s) <= num_gpus


@thorough
@given(workloads(), policies)
def test_every_job_ends_that_fits_the_empty_cluster(case: Scenario, policy: Policy) -> None:
    result = simulate(case, ProductScheduler(policy))
    state = SchedulingState.of(SchedulingFacts(cluster=case.cluster, queued=(), running=()), policy)
    for sim in case.jobs:
        needs = [
            policy.need(plan, sim.job.excluded_nodes) for plan in sim.job.plans if not sim.runs_out_of_memory(plan)
        ]
        fits = any(
            place(state.capacity.empty.by_type[need.gpu_type], need)
            for need in needs
            if need.gpu_type in state.capacity.empty.by_type
        )
        assert (outcome(result, sim.job.run_key).end_s is not None) == fits


@thorough
@given(workloads(), policies)
def test_same_scenario_gives_the_same_result(case: Scenario, policy: Policy) -> None:
    first, second = (simulate(case, ProductScheduler(policy)) for _ in range(2))
    assert without_cpu_times(first) == without_cpu_times(second)
