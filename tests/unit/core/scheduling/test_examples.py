"""What the default policy does in small cases that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.has_world import elastic, facts, gpu_type, held, node, plan, running, started, waiting, where

from frenzy.core.scheduling import (
    BackfillPolicy,
    HasPolicy,
    PaperPolicy,
    Policy,
    SchedulingState,
    apply_actions,
    explain,
    policy_named,
    schedule,
)
from frenzy.core.values.cluster import Node, NodeState
from frenzy.core.values.errors import ReasonCode, SpecError
from frenzy.core.values.job import Objective
from frenzy.core.values.scheduling_facts import Elasticity, Hold, QueuedJob, RunningJob, SchedulingFacts

HAS = HasPolicy()
# Each job is due when it comes.
IN_ORDER = HasPolicy(slowdown=0.0)


def hold_of(snapshot: SchedulingFacts, name: str, *, now_s: float = 0.0, policy: HasPolicy = HAS) -> Hold:
    return held(schedule(snapshot, now_s, policy))[name]


def hold_in_order(snapshot: SchedulingFacts, name: str) -> Hold:
    return hold_of(snapshot, name, policy=IN_ORDER)


class TestPlacement:
    def test_single_gpu_jobs_take_the_odd_gpus_and_leave_the_pair_to_the_job_that_needs_it(self) -> None:
        nodes = [node("n1", "v100", 2), node("n2", "v100", 1), node("n3", "v100", 1)]
        jobs = [waiting("a", plan("v100", 1)), waiting("b", plan("v100", 1)), waiting("c", plan("v100", 2))]
        starts = started(schedule(facts(nodes, jobs), 0.0, HAS))
        placed = {name: where(start) for name, start in starts.items()}
        assert placed == {"a": {"n2": 1}, "b": {"n3": 1}, "c": {"n1": 2}}

    def test_gpus_that_others_hold_are_left_to_them_and_the_job_waits(self) -> None:
        crowded, free = replace(node("n1", "v100", 4), num_taken=3), node("n2", "v100", 1)
        snapshot = facts([crowded, free], [waiting("a", plan("v100", 2)), waiting("b", plan("v100", 4))])
        actions = schedule(snapshot, 0.0, HAS)
        assert where(started(actions)["a"]) == {"n1": 1, "n2": 1}
        assert "b" in held(actions)

    def test_the_fullest_node_that_suffices_is_taken(self) -> None:
        nodes = [node("n1", "v100", 8), node("n2", "v100", 4)]
        run = [running("r", plan("v100", 1), ("n2", 1))]
        start = started(schedule(facts(nodes, [waiting("a", plan("v100", 2))], run), 0.0, HAS))["a"]
        assert where(start) == {"n2": 2}

    def test_a_job_larger_than_a_node_takes_the_fewest_nodes_and_the_best_fit_for_the_rest(self) -> None:
        nodes = [node("n1", "v100", 4), node("n2", "v100", 3), node("n3", "v100", 1), node("n4", "v100", 2)]
        start = started(schedule(facts(nodes, [waiting("a", plan("v100", 5))]), 0.0, HAS))["a"]
        assert where(start) == {"n1": 4, "n3": 1}

    def test_tensor_parallel_groups_stay_on_one_node(self) -> None:
        nodes = [node("n1", "v100", 3), node("n2", "v100", 3)]
        job = waiting("a", plan("v100", 4, tp=2))
        assert where(started(schedule(facts(nodes, [job]), 0.0, HAS))["a"]) == {"n1": 2, "n2": 2}
        assert started(schedule(facts(nodes, [waiting("b", plan("v100", 4, tp=4))]), 0.0, HAS)) == {}

    def test_the_best_plan_that_can_start_now_is_taken_and_types_never_mix(self) -> None:
        nodes = [node("n1", "a100", 1), node("n2", "v100", 2)]
        job = waiting("a", plan("a100", 2, run_s=100), plan("v100", 2, run_s=150), plan("a100", 1, run_s=200))
        assert started(schedule(facts(nodes, [job]), 0.0, HAS))["a"].plan == job.plans[1]

    def test_a_node_gives_host_memory_for_the_ranks_it_gets(self) -> None:
        small = [node(f"s{at}", "v100", 1, host_gib=12) for at in range(8)]
        there = [node("wide", "v100", 8, host_gib=64), *small]
        busy = running("r", plan("v100", 8), ("wide", 8))
        wide = waiting("a", plan("v100", 8, host_gib=6, host_gib_per_gpu=2))
        actions = schedule(facts(there, [wide], [busy]), 0.0, HAS)
        assert where(started(actions)["a"]) == {each.name: 1 for each in small}

    def test_a_node_gives_as_many_gpus_as_it_has_host_memory_for_and_none_short_of_one_rank(self) -> None:
        nodes = [node("n1", "v100", 4, host_gib=7), node("n2", "v100", 4, host_gib=10), node("n3", "v100", 4)]
        spread = waiting("a", plan("v100", 6, host_gib=6, host_gib_per_gpu=2))
        assert where(started(schedule(facts(nodes, [spread]), 0.0, HAS))["a"]) == {"n3": 4, "n2": 2}
        reason = hold_of(facts(nodes[:1], [waiting("a", plan("v100", 1, host_gib=6, host_gib_per_gpu=2))]), "a").reason
        assert reason.code is ReasonCode.NEVER_FITS
        assert "6.0 GiB of host memory, and 2.0 GiB and 1 CPU more for each GPU on a node" in reason.detail

    def test_what_running_ranks_hold_of_a_nodes_host_memory_is_not_given_twice(self) -> None:
        nodes = [node("n1", "v100", 4, host_gib=24)]
        two = plan("v100", 2, host_gib=6, host_gib_per_gpu=3)
        assert "a" in started(schedule(facts(nodes, [waiting("a", two)], [running("r", two, ("n1", 2))]), 0.0, HAS))
        held_all = facts(nodes, [waiting("a", two)], [running("r", plan("v100", 2, host_gib=13), ("n1", 2))])
        reason = hold_of(held_all, "a").reason
        assert reason.code is ReasonCode.WAITING_FOR_HOST_RESOURCES
        assert reason.remedy == "1.0 GiB of host memory more free on n1"

    def test_host_memory_and_cpus_are_counted(self) -> None:
        nodes = [node("n1", "v100", 4, host_gib=16, num_cpus=4), node("n2", "v100", 4, host_gib=64, num_cpus=1)]
        hungry = waiting("a", plan("v100", 1, host_gib=32))
        busy = waiting("b", plan("v100", 2))
        starts = started(schedule(facts(nodes, [hungry, busy]), 0.0, HAS))
        assert {name: where(start) for name, start in starts.items()} == {"a": {"n2": 1}, "b": {"n1": 2}}

    @pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.LOST])
    def test_nodes_out_of_service_take_nothing(self, state: NodeState) -> None:
        nodes = [node("n1", "v100", 4, state=state), node("n2", "v100", 1)]
        snapshot = facts(nodes, [waiting("a", plan("v100", 2)), waiting("b", plan("v100", 1))])
        assert set(started(schedule(snapshot, 0.0, HAS))) == {"b"}
        hold = hold_of(snapshot, "a")
        assert hold.reason.code is ReasonCode.WAITING_FOR_NODES
        assert hold.reason.remedy == "n1 back in service"

    def test_a_node_that_failed_a_run_is_not_used_for_it_again(self) -> None:
        nodes = [node("n1", "v100", 1), node("n2", "v100", 1)]
        job = replace(waiting("a", plan("v100", 1)), excluded_nodes=("n1",))
        assert where(started(schedule(facts(nodes, [job]), 0.0, HAS))["a"]) == {"n2": 1}

    def test_a_plan_made_for_a_larger_card_than_there_is_now_is_not_started(self) -> None:
        types = (gpu_type("v100", memory_gib=4),)
        snapshot = facts([node("n1", "v100", 1)], [waiting("a", plan("v100", 1, required_gib=8))], types=types)
        assert hold_of(snapshot, "a").reason.code is ReasonCode.NEVER_FITS


class TestQueue:
    def test_two_jobs_compete_for_the_last_gpus(self) -> None:
        nodes = [node("n1", "v100", 2)]
        jobs = [waiting("first", plan("v100", 2, run_s=600)), waiting("second", plan("v100", 2), submitted_s=1)]
        snapshot = facts(nodes, jobs)
        actions = schedule(snapshot, 0.0, HAS)
        assert set(started(actions)) == {"first"}
        hold = held(actions)["second"]
        assert (hold.position, hold.expected_start_s) == (1, 600.0)
        assert hold.reason.code is ReasonCode.WAITING_FOR_GPUS
        assert hold.reason.detail == "Needs 2 v100; idle: 0 of 2 v100."
        assert hold.reason.remedy == "2 more v100 free; about 10 min, when job-first ends"
        freed = replace(apply_actions(snapshot, actions, now_s=0.0), running=())
        assert set(started(schedule(freed, 600.0, HAS))) == {"second"}

    def test_priority_goes_first_then_the_time_of_submission(self) -> None:
        nodes = [node("n1", "v100", 1)]
        jobs = [waiting("a", plan("v100", 1), submitted_s=5), waiting("b", plan("v100", 1), submitted_s=4)]
        jobs.append(waiting("c", plan("v100", 1), submitted_s=9, priority=1))
        actions = schedule(facts(nodes, jobs), 10.0, HAS)
        assert set(started(actions)) == {"c"}
        assert {name: hold.position for name, hold in held(actions).items()} == {"b": 1, "a": 2}

    def test_a_run_whose_old_workers_still_hold_gpus_waits_for_them(self) -> None:
        nodes = [node("n1", "v100", 4)]
        run = [running("a", plan("v100", 1), ("n1", 1))]
        snapshot = facts(nodes, [waiting("a", plan("v100", 1))], run)
        assert hold_of(snapshot, "a").reason.code is ReasonCode.WAITING_FOR_OLD_WORKERS

    def test_an_ordered_job_takes_the_first_of_its_plans_that_can_start(self) -> None:
        nodes = [node("n1", "a100", 2), node("n2", "v100", 2)]
        slow_first = (plan("v100", 2, run_s=900), plan("a100", 2, run_s=100))
        job = replace(waiting("a", *slow_first), ordered=True)
        assert started(schedule(facts(nodes, [job]), 0.0, HAS))["a"].plan == slow_first[0]


class TestReservation:
    def test_backfill_uses_only_what_the_head_does_not_need_in_time(self) -> None:
        nodes = [node("n1", "v100", 4)]
        head = waiting("head", plan("v100", 4), submitted_s=1)
        short = waiting("short", plan("v100", 1, run_s=99), submitted_s=2)
        long = waiting("long", plan("v100", 1, run_s=101), submitted_s=2)
        run = [running("r", plan("v100", 3), ("n1", 3), end_s=100.0)]
        assert set(started(schedule(facts(nodes, [head, long], run), 0.0, IN_ORDER))) == set()
        assert set(started(schedule(facts(nodes, [head, short], run), 0.0, IN_ORDER))) == {"short"}
        hold = hold_in_order(facts(nodes, [head, long], run), "long")
        assert hold.reason.code is ReasonCode.WAITING_BEHIND_HEAD
        assert "job-head" in hold.reason.detail
        assert hold.reason.remedy is not None
        assert "a priority above 0" in hold.reason.remedy

    def test_a_long_job_may_use_gpus_the_head_will_not_need(self) -> None:
        nodes = [node("n1", "v100", 4), node("n2", "v100", 1)]
        head = waiting("head", plan("v100", 4), submitted_s=1)
        long = waiting("long", plan("v100", 1, run_s=9999), submitted_s=2)
        run = [running("r", plan("v100", 3), ("n1", 3), end_s=100.0)]
        starts = started(schedule(facts(nodes, [head, long], run), 0.0, IN_ORDER))
        assert where(starts["long"]) == {"n2": 1}

    def test_with_an_unknown_end_only_gpus_outside_the_reservation_are_backfilled(self) -> None:
        nodes = [node("n1", "v100", 4)]
        head = waiting("head", plan("v100", 4), submitted_s=1)
        short = waiting("short", plan("v100", 1, run_s=1), submitted_s=2)
        run = [running("r", plan("v100", 3), ("n1", 3), end_s=None)]
        snapshot = facts(nodes, [head, short], run)
        assert started(schedule(snapshot, 0.0, IN_ORDER)) == {}
        assert hold_in_order(snapshot, "head").expected_start_s is None

    def test_each_gpu_type_keeps_a_reservation_of_its_own(self) -> None:
        nodes = [node("n1", "a100", 2), node("n2", "v100", 2)]
        run = [
            running("r1", plan("a100", 1), ("n1", 1), end_s=50.0),
            running("r2", plan("v100", 1), ("n2", 1), end_s=50.0),
        ]
        jobs = [
            waiting("a", plan("a100", 2), submitted_s=1),
            waiting("b", plan("v100", 2), submitted_s=2),
            waiting("c", plan("v100", 1, run_s=500), submitted_s=3),
        ]
        snapshot = facts(nodes, jobs, run)
        assert started(schedule(snapshot, 0.0, IN_ORDER)) == {}
        assert hold_in_order(snapshot, "b").expected_start_s == 50.0
        assert hold_in_order(snapshot, "c").reason.code is ReasonCode.WAITING_BEHIND_HEAD

    def test_a_big_job_is_not_starved_by_a_stream_of_small_ones(self) -> None:
        nodes = [node("n1", "v100", 4)]
        big = waiting("big", plan("v100", 4, run_s=100), submitted_s=0.5)
        begun_s = _start_of_big(nodes, big, policy=BackfillPolicy())
        due_s = 0.5 + BackfillPolicy().slowdown * 100
        assert begun_s is not None
        assert begun_s <= due_s + 2 * 55

    def test_the_published_policy_does_starve_it(self) -> None:
        nodes = [node("n1", "v100", 4)]
        big = waiting("big", plan("v100", 4, run_s=100), submitted_s=0.5)
        assert _start_of_big(nodes, big, policy=PaperPolicy()) is None


def _start_of_big(nodes: list[Node], big: QueuedJob, *, policy: BackfillPolicy | PaperPolicy) -> float | None:
    """When ``big`` starts while a small job arrives every 10 s and runs for 55 s; None within 1,000 s."""
    alive: tuple[RunningJob, ...] = ()
    queued: tuple[QueuedJob, ...] = ()
    for tick in range(100):
        now_s = tick * 10.0
        alive = tuple(job for job in alive if job.expected_end_s is not None and job.expected_end_s > now_s)
        queued += (waiting(f"small-{tick:03d}", plan("v100", 1, run_s=55), submitted_s=now_s),)
        queued += (big,) if tick == 1 else ()
        snapshot = facts(nodes, list(queued), list(alive))
        after = apply_actions(snapshot, schedule(snapshot, now_s, policy), now_s=now_s)
        alive, queued = after.running, after.queued
        if any(job.run_key == "big" for job in alive):
            return now_s
    return None


class TestBetterPlan:
    nodes = [node("n1", "a100", 1), node("n2", "t4", 1)]
    fast, slow = plan("a100", 1, run_s=100), plan("t4", 1, run_s=1000)

    def snapshot(self, end_s: float | None, *, submitted_s: float = 0.0, **changes: object) -> SchedulingFacts:
        run = [running("r", self.fast, ("n1", 1), end_s=end_s)]
        job = replace(waiting("a", self.fast, self.slow, submitted_s=submitted_s), **changes)  # type: ignore[arg-type]
        return facts(self.nodes, [job], run)

    def test_a_job_waits_for_a_much_better_plan_that_is_about_to_be_free(self) -> None:
        hold = hold_of(self.snapshot(end_s=200.0), "a")
        assert hold.reason.code is ReasonCode.WAITING_FOR_BETTER_PLAN
        assert hold.expected_start_s == 200.0
        assert hold.reason.detail == (
            "1xa100-z2-mb1, expected soon, ends about 12 min earlier than 1xt4-z2-mb1, which could start now."
        )

    @pytest.mark.parametrize("end_s", [None, 850.0])
    def test_it_does_not_when_the_better_plan_comes_too_late_or_nobody_knows_when(self, end_s: float | None) -> None:
        assert started(schedule(self.snapshot(end_s), 0.0, HAS))["a"].plan == self.slow

    def test_its_patience_is_bounded_by_all_the_time_it_has_waited(self) -> None:
        assert started(schedule(self.snapshot(end_s=600.0, submitted_s=0.0), 590.0, HAS))["a"].plan == self.slow
        patient = HasPolicy(max_wait_share=0.9)
        assert started(schedule(self.snapshot(end_s=600.0, submitted_s=0.0), 590.0, patient)) == {}

    def test_a_cheaper_plan_is_worth_waiting_for_when_cost_is_the_objective(self) -> None:
        cheap, dear = plan("a100", 1, run_s=1000, cost=1.0), plan("t4", 1, run_s=900, cost=5.0)
        run = [running("r", cheap, ("n1", 1), end_s=100.0)]
        by_cost = replace(waiting("a", cheap, dear), objective=Objective.COST)
        assert started(schedule(facts(self.nodes, [by_cost], run), 0.0, HAS)) == {}
        free = (replace(cheap, predicted_cost=0.0), replace(dear, predicted_cost=0.0))
        all_free = replace(waiting("a", *free), objective=Objective.COST)
        there = with_prices(facts(self.nodes, [all_free], run), 0.0)
        assert set(started(schedule(there, 0.0, HAS))) == {"a"}
        by_time = waiting("a", dear, cheap)
        assert started(schedule(facts(self.nodes, [by_time], run), 0.0, HAS))["a"].plan == dear

    @pytest.mark.parametrize("lacking", ["t4", ""])
    @pytest.mark.parametrize(("unknown", "why"), [(None, "has a price, unlike 1xt4"), (0.0, "than 1xt4")])
    def test_a_plan_of_unknown_cost_counts_as_the_dearest(self, unknown: float | None, why: str, lacking: str) -> None:
        """Also as plans of before were stored, with a cost of 0 where the type had no price, be there one by now."""
        cheap, dear = plan("a100", 1, run_s=1000, cost=1.0), plan("a100", 2, run_s=900, cost=5.0)
        new = replace(plan("t4", 1, run_s=900), predicted_cost=unknown)
        run = [running("r", cheap, ("n1", 1), end_s=100.0)]
        job = replace(waiting("a", cheap, dear, new), objective=Objective.COST)
        there = with_prices(facts(self.nodes, [job], run), 1.0, lacking=lacking)
        assert started(schedule(there, 0.0, HAS)) == {}
        assert why in hold_of(there, "a").reason.detail

    def test_a_plan_of_unknown_cost_is_the_dearest_also_for_the_little_that_a_restarted_job_has_left(self) -> None:
        known = plan("a100", 8, run_s=3600, cost=8.0)
        unknown = replace(plan("t4", 1, run_s=36_000), predicted_cost=None)
        job = replace(waiting("a", known, unknown), objective=Objective.COST, work_left=0.1, work_done=0.9)
        job = replace(job, elasticity=Elasticity(restart_s=600.0, moves_left=3, min_run_s=60.0))
        nodes = [node("n1", "a100", 8), node("n2", "t4", 1)]
        assert started(schedule(with_prices(facts(nodes, [job]), 1.0, lacking="t4"), 0.0, HAS))["a"].plan == known

    def test_without_any_price_a_job_that_goes_by_cost_takes_the_fewest_gpu_hours(self) -> None:
        one, two = (replace(plan("t4", count, run_s=1000 / count**0.5), predicted_cost=None) for count in (1, 2))
        job = replace(waiting("a", one, two), objective=Objective.COST)
        assert started(schedule(facts([node("n1", "t4", 2)], [job]), 0.0, HAS))["a"].plan == one


def with_prices(there: SchedulingFacts, price: float, *, lacking: str = "") -> SchedulingFacts:
    types = [replace(each, price_per_hour=None if each.name == lacking else price) for each in there.cluster.gpu_types]
    return replace(there, cluster=replace(there.cluster, gpu_types=tuple(types)))


class TestReasons:
    def test_a_job_larger_than_the_cluster_says_what_would_make_it_fit(self) -> None:
        reason = hold_of(facts([node("n1", "v100", 2)], [waiting("a", plan("v100", 3))]), "a").reason
        assert reason.code is ReasonCode.NEVER_FITS
        assert reason.detail == "Needs 3 v100; the cluster has 2 v100."
        assert reason.remedy == "1 more v100 in the cluster"

    def test_a_tensor_parallel_group_larger_than_a_node_never_fits(self) -> None:
        nodes = [node("n1", "v100", 2), node("n2", "v100", 2)]
        reason = hold_of(facts(nodes, [waiting("a", plan("v100", 4, tp=4))]), "a").reason
        assert reason.code is ReasonCode.NEVER_FITS
        assert reason.remedy == "4 more v100 in the cluster on one further node"

    def test_a_fragmented_cluster_asks_for_a_whole_group_on_one_node(self) -> None:
        nodes = [node("n1", "v100", 2), node("n2", "v100", 2)]
        run = [running(f"r{at}", plan("v100", 1), (f"n{at}", 1)) for at in (1, 2)]
        reason = hold_of(facts(nodes, [waiting("a", plan("v100", 2, tp=2))], run), "a").reason
        assert reason.code is ReasonCode.WAITING_FOR_GPUS
        assert reason.detail == "Needs 2 v100 in groups of 2 on one node; idle: 2 of 4 v100."
        assert reason.remedy == "2 more v100 free on one further node"

    def test_idle_gpus_that_are_too_small_are_named_as_such(self) -> None:
        types = (gpu_type("a100", memory_gib=40), gpu_type("t4", memory_gib=16))
        nodes = [node("n1", "a100", 1), node("n2", "t4", 4)]
        run = [running("r", plan("a100", 1), ("n1", 1))]
        job = waiting("a", plan("a100", 1, required_gib=24, gpu_memory_gib=40))
        reason = hold_of(facts(nodes, [job], run, types=types), "a").reason
        assert reason.code is ReasonCode.WAITING_FOR_GPU_MEMORY
        assert reason.detail == "Idle GPUs have 16.0 GiB at most; the job needs 24.0 GiB on each."

    def test_a_lack_of_host_memory_names_the_nearest_node(self) -> None:
        nodes = [node("n1", "v100", 2, host_gib=64)]
        run = [running("r", plan("v100", 1, host_gib=40), ("n1", 1))]
        reason = hold_of(facts(nodes, [waiting("a", plan("v100", 1, host_gib=32))], run), "a").reason
        assert reason.code is ReasonCode.WAITING_FOR_HOST_RESOURCES
        assert reason.remedy == "8.0 GiB of host memory more free on n1"

    def test_a_gpu_type_the_cluster_does_not_have_is_named(self) -> None:
        snapshot = facts([node("n1", "v100", 1)], [waiting("a", plan("h100", 1))])
        reason = hold_of(snapshot, "a").reason
        assert reason.code is ReasonCode.NEVER_FITS
        assert reason.detail == "Needs 1 h100; the cluster has 0 h100."
        assert explain(snapshot, "a", 0.0, HAS).reason == reason

    def test_a_job_without_plans_never_fits(self) -> None:
        reason = hold_of(facts([node("n1", "v100", 1)], [waiting("a")]), "a").reason
        assert reason.code is ReasonCode.NEVER_FITS

    def test_the_start_of_jobs_further_back_is_foreseen_too(self) -> None:
        run = [running("r", plan("v100", 1), ("n1", 1), end_s=100.0)]
        jobs = [waiting(name, plan("v100", 1, run_s=1000)) for name in "abc"]
        snapshot = facts([node("n1", "v100", 1)], jobs, run)
        starts = {name: hold.expected_start_s for name, hold in held(schedule(snapshot, 0.0, HAS)).items()}
        assert starts == {"a": 100.0, "b": 1100.0, "c": 2100.0}


def held_lines(snapshot: SchedulingFacts, name: str, policy: Policy) -> list[str]:
    return [each for each in explain(snapshot, name, 0.0, policy).lines if each.startswith("v100 is held by ")]


class TestExplain:
    def test_it_tries_what_would_start_the_job_now(self) -> None:
        run = [running("r", plan("v100", 2), ("n1", 2), end_s=600.0)]
        head = waiting("head", plan("v100", 2), submitted_s=1)
        last = waiting("last", plan("v100", 2), submitted_s=2)
        snapshot = facts([node("n1", "v100", 3)], [head, last], run)
        found = explain(snapshot, "last", 0.0, HAS)
        assert found.lines == (
            "It is number 2 in the queue.",
            "2xv100-z2-mb1 needs 2 v100; idle: 1 of 3 v100.",
            "v100 is held by job-r (2 GPUs, for about 10 min more).",
            "With 3 more v100 free (other jobs take some of them first) it would start now.",
        )
        assert found.reason == hold_of(snapshot, "last").reason
        remedy = found.reason.remedy or ""
        assert remedy.startswith("3 more v100 free (other jobs take some of them first)")

    @pytest.mark.parametrize("policy", [HAS, BackfillPolicy()])
    def test_it_says_who_holds_what_the_job_waits_for_and_until_when(self, policy: Policy) -> None:
        ends = {"late": 7200.0, "soon": 30.0, "open": None}
        run = [running(name, plan("v100", 1), ("n1", 1), end_s=end) for name, end in ends.items()]
        snapshot = facts([node("n1", "v100", 3)], [elastic(waiting("a", plan("v100", 2)))], run)
        (held_by,) = held_lines(snapshot, "a", policy)
        assert held_by == (
            "v100 is held by job-soon (1 GPU, for less than a minute more), job-late (1 GPU, for about 2.0 h more) "
            "and job-open (1 GPU)."
        )

    def test_runs_of_one_job_that_hold_alike_are_counted(self) -> None:
        run = [replace(running(name, plan("v100", 1), ("n1", 1)), job_name="nightly") for name in ("r1", "r2")]
        snapshot = facts([node("n1", "v100", 2)], [waiting("a", plan("v100", 2))], run)
        (held_by,) = held_lines(snapshot, "a", HAS)
        assert held_by.startswith("v100 is held by 2 runs of nightly (1 GPU")

    def test_a_run_that_starts_is_told_why_there(self) -> None:
        nodes = [node("n1", "v100", 2), node("n2", "v100", 1)]
        found = explain(facts(nodes, [waiting("a", plan("v100", 1))]), "a", 0.0, HAS)
        why = "Why this plan: BEST_PLAN: Ranks first for the job's objective."
        assert found == (None, ("It would start now as 1xv100-z2-mb1 on n2 (1).", why))

    def test_an_unknown_run_is_refused(self) -> None:
        with pytest.raises(SpecError, match="run_key"):
            explain(facts([node("n1", "v100", 2)], []), "nobody", 0.0, HAS)


def test_a_policy_is_found_by_its_name() -> None:
    assert policy_named("has") == HasPolicy()
    assert policy_named("frenzy-paper") == PaperPolicy()
    with pytest.raises(SpecError, match="frenzy-paper, has"):
        policy_named("lottery")


def test_a_state_is_used_only_under_the_policy_it_was_made_for() -> None:
    state = SchedulingState.of(facts([node("n1", "v100", 1)], []), HAS)
    with pytest.raises(ValueError, match="made under"):
        schedule(state, 0.0, PaperPolicy())
