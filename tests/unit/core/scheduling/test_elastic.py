"""Jobs that may be moved: who gets what, who gives way, and what they are told."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.unit.core.has_strategies import NOW_S
from tests.unit.core.has_world import (
    by_job,
    elastic,
    facts,
    gpu_type,
    held_on,
    node,
    on,
    plan,
    scaling,
    started,
    team_quotas,
    waiting,
)

from frenzy.core.scheduling import HasPolicy, apply_actions, schedule
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.job import Objective
from frenzy.core.values.scheduling_facts import Elasticity, Hold, Preempt, Resize, SchedulingFacts, Start

HAS = HasPolicy()
LONG = elastic(waiting("long", *scaling("g", 1, 2, 4, work_s=100_000.0)))
SHORT = elastic(waiting("short", *scaling("g", 1, 2, 4, work_s=600.0), submitted_s=900.0))
ONE_NODE = [node("n", "g", 4)]


def test_a_job_alone_runs_as_fast_as_it_can() -> None:
    actions = schedule(facts(ONE_NODE, [LONG]), NOW_S, HAS)
    assert started(actions)["long"].plan.num_gpus == 4


def test_a_long_job_shrinks_or_gives_way_when_a_short_one_arrives() -> None:
    there = facts(ONE_NODE, [SHORT], [on(LONG, LONG.plans[0], ("n", 4))])
    actions = by_job(schedule(there, NOW_S, HAS))
    assert isinstance(actions["short"], Start)
    assert isinstance(actions["long"], Resize | Preempt)


def test_it_grows_back_when_the_short_one_is_gone() -> None:
    there = facts(ONE_NODE, [], [on(LONG, LONG.plans[2], ("n", 1))])
    (action,) = schedule(there, NOW_S, HAS)
    assert isinstance(action, Resize)
    assert action.plan.num_gpus == 4


def test_a_job_that_has_just_been_moved_grows_only_when_that_pays_within_a_few_times_what_it_has_run() -> None:
    costly = elastic(LONG, Elasticity(restart_s=100.0, moves_left=3))
    fresh = on(costly, LONG.plans[2], ("n", 1), since_s=NOW_S - 5.0)
    left_alone = on(costly, LONG.plans[2], ("n", 1), since_s=NOW_S - 900.0)
    assert schedule(facts(ONE_NODE, [], [fresh]), NOW_S, HAS) == ()
    (action,) = schedule(facts(ONE_NODE, [], [left_alone]), NOW_S, HAS)
    assert isinstance(action, Resize)


def test_a_job_that_may_not_be_moved_is_never_touched() -> None:
    fixed = replace(on(LONG, LONG.plans[0], ("n", 4)), elasticity=None, plans=())
    (action,) = schedule(facts(ONE_NODE, [SHORT], [fixed]), NOW_S, HAS)
    assert isinstance(action, Hold)


def test_a_job_that_has_just_been_moved_is_left_alone_for_its_least_run_time() -> None:
    settled = elastic(LONG, Elasticity(restart_s=10.0, moves_left=3, min_run_s=60.0))
    fresh = on(settled, LONG.plans[0], ("n", 4), since_s=NOW_S - 30.0)
    (action,) = schedule(facts(ONE_NODE, [SHORT], [fresh]), NOW_S, HAS)
    assert isinstance(action, Hold)


def test_a_job_without_moves_left_gives_no_way_but_grows_into_idle_gpus() -> None:
    spent = elastic(LONG, Elasticity(restart_s=10.0, moves_left=0))
    held = facts(ONE_NODE, [SHORT], [on(spent, LONG.plans[0], ("n", 4))])
    assert isinstance(by_job(schedule(held, NOW_S, HAS))["short"], Hold)
    (action,) = schedule(facts(ONE_NODE, [], [on(spent, LONG.plans[2], ("n", 1))]), NOW_S, HAS)
    assert isinstance(action, Resize)


def test_no_move_for_a_gain_that_the_restart_eats_up() -> None:
    nearly_done = replace(on(LONG, LONG.plans[2], ("n", 1)), work_left=(NOW_S + 12.0) / LONG.plans[2].predicted_run_s)
    assert schedule(facts(ONE_NODE, [], [nearly_done]), NOW_S, HAS) == ()


def test_equal_jobs_share_what_there_is() -> None:
    badly_scaling = [plan("g", count, run_s=5000.0 / count**0.3) for count in (4, 2, 1)]
    jobs = [elastic(waiting(f"j{at}", *badly_scaling)) for at in range(4)]
    actions = started(schedule(facts(ONE_NODE, jobs), NOW_S, HAS))
    assert len(actions) >= 3


def test_of_jobs_that_ask_alike_those_start_that_find_a_place() -> None:
    in_one_node = [elastic(waiting(f"j{at}", plan("g", 4, tp=4, run_s=5000.0))) for at in range(3)]
    there = facts([node("whole", "g", 4), node("half", "g", 2), node("other-half", "g", 2)], in_one_node)
    actions = by_job(schedule(there, NOW_S, HAS))
    assert [isinstance(actions[f"j{at}"], Start) for at in range(3)] == [True, False, False]


def test_higher_priority_takes_gpus_from_lower_priority_whatever_their_sizes() -> None:
    urgent = elastic(waiting("urgent", *scaling("g", 4, work_s=500_000.0), submitted_s=990.0, priority=1))
    actions = by_job(schedule(facts(ONE_NODE, [urgent], [on(LONG, LONG.plans[0], ("n", 4))]), NOW_S, HAS))
    assert isinstance(actions["urgent"], Start)
    preempted = actions["long"]
    assert isinstance(preempted, Preempt)
    assert preempted.reason.code is ReasonCode.PREEMPTED
    assert "job-urgent" in preempted.reason.sentence


def test_a_quota_bounds_what_a_team_holds() -> None:
    policy = HasPolicy(queues=team_quotas(blue=2))
    blue = [replace(each, team="blue") for each in (LONG, SHORT)]
    red = elastic(waiting("red", *scaling("g", 1, work_s=1e6)), submitted_s=999.0)
    actions = started(schedule(facts(ONE_NODE, [*blue, red]), NOW_S, policy))
    assert sum(actions[key].plan.num_gpus for key in ("long", "short") if key in actions) <= 2
    assert "red" in actions


def test_a_job_leaves_a_node_that_is_drained_if_there_is_another() -> None:
    drained = node("n", "g", 4, state=NodeState.DRAINING)
    there = facts([drained, node("m", "g", 4)], [], [on(LONG, LONG.plans[0], ("n", 4))])
    (action,) = schedule(there, NOW_S, HAS)
    assert isinstance(action, Resize)
    assert [each.node for each in action.placement.allocations] == ["m"]
    assert schedule(facts([drained], [], [on(LONG, LONG.plans[0], ("n", 4))]), NOW_S, HAS) == ()


def test_a_job_leaves_a_drained_node_with_the_plan_it_has() -> None:
    drained = node("n", "g", 2, state=NodeState.DRAINING)
    only_two = elastic(waiting("two", *scaling("g", 2, work_s=100_000.0)))
    there = facts([drained, node("m", "g", 2)], [], [on(only_two, only_two.plans[0], ("n", 2))])
    (action,) = schedule(there, NOW_S, HAS)
    assert isinstance(action, Resize)
    assert action.plan.num_gpus == 2


def test_a_quota_counts_what_is_held_on_drained_nodes() -> None:
    policy = HasPolicy(queues=team_quotas(red=2))
    drained = node("n", "g", 2, state=NodeState.DRAINING)
    held = replace(elastic(waiting("held", *scaling("g", 2, work_s=9e5))), team="red", submitted_s=-1e9)
    more = replace(elastic(waiting("more", *scaling("h", 2, work_s=9e5))), team="red")
    there = facts([drained, node("m", "h", 2)], [more], [on(held, held.plans[0], ("n", 2))])
    assert started(schedule(there, NOW_S, policy)) == {}


def test_gpus_on_the_ready_half_of_a_displaced_job_are_not_given_twice() -> None:
    nodes = [node("n", "g", 2, state=NodeState.DRAINING), node("m", "g", 4)]
    half = elastic(waiting("half", plan("g", 4, run_s=1e5)), Elasticity(restart_s=10.0, moves_left=0))
    single = elastic(waiting("single", *scaling("g", 1, 2, 4, work_s=600.0)))
    there = facts(nodes, [single], [on(half, half.plans[0], ("n", 2), ("m", 2))])
    after = apply_actions(there, schedule(there, NOW_S, HAS), now_s=NOW_S)
    assert held_on(after)["m"] <= 4


def test_what_a_job_holds_on_a_node_that_has_gone_is_taken_from_nobody() -> None:
    gone = replace(on(LONG, LONG.plans[0], ("gone", 4)), elasticity=None, plans=())
    assert set(started(schedule(facts(ONE_NODE, [SHORT], [gone]), NOW_S, HAS))) == {"short"}


def test_gpus_that_others_hold_are_no_capacity() -> None:
    """Four of eight are others': all is as on a node of four."""
    taken = replace(node("n", "g", 8), num_taken=4)
    held = on(LONG, LONG.plans[0], ("n", 4))
    urgent = replace(SHORT, priority=1)
    for job in (SHORT, urgent):
        assert schedule(facts([taken], [job], [held]), NOW_S, HAS) == schedule(
            facts(ONE_NODE, [job], [held]), NOW_S, HAS
        )
    assert by_job(schedule(facts([taken], [urgent], [held]), NOW_S, HAS))["short"].kind == "start"


def reason_of(there: SchedulingFacts, policy: HasPolicy, of: str) -> str:
    action = by_job(schedule(there, NOW_S, policy))[of]
    assert isinstance(action, Preempt)
    return action.reason.sentence


def test_a_job_that_gives_way_is_told_who_takes_its_gpus_not_who_can_have_none() -> None:
    never = elastic(waiting("never", plan("g", 64), priority=9))
    urgent = elastic(waiting("urgent", plan("g", 4), priority=1))
    there = facts(ONE_NODE, [never, urgent], [on(elastic(waiting("a", plan("g", 4))), plan("g", 4), ("n", 4))])
    assert "needed by job-urgent, whose priority is higher" in reason_of(there, HAS, "a")


def test_a_job_that_gives_way_to_nobody_is_told_of_its_quota_or_its_node() -> None:
    held = replace(on(elastic(waiting("a", plan("g", 4))), plan("g", 4), ("n", 4)), team="red")
    lowered = HasPolicy(queues=team_quotas(red=2))
    assert reason_of(facts(ONE_NODE, [], [held]), lowered, "a").startswith("Team red may hold 2 GPUs, fewer than")
    smaller = facts([node("n", "g", 2)], [], [held])
    assert reason_of(smaller, HAS, "a").startswith("n has fewer GPUs for jobs than they hold")


def test_a_job_that_goes_by_cost_is_not_moved_for_less_than_the_move_costs() -> None:
    cheap, dear = plan("g", 1, run_s=600.0, cost=6.0), plan("g", 2, run_s=310.0, cost=10.0)
    thrifty = replace(elastic(waiting("thrifty", cheap, dear)), objective=Objective.COST)
    there = replace(on(thrifty, dear, ("n", 2)), objective=Objective.COST)
    nearly_done, half_done = (replace(there, work_left=(NOW_S + left_s) / 310.0) for left_s in (1.0, 300.0))
    assert schedule(facts(ONE_NODE, [], [nearly_done]), NOW_S, HAS) == ()
    (action,) = schedule(facts(ONE_NODE, [], [half_done]), NOW_S, HAS)
    assert isinstance(action, Resize)


def test_no_move_to_a_type_that_has_become_too_small() -> None:
    types = (gpu_type("g", memory_gib=4),)
    large = elastic(waiting("large", *scaling("g", 1, 4, work_s=1e5)))
    assert schedule(facts(ONE_NODE, [], [on(large, large.plans[1], ("n", 1))], types=types), NOW_S, HAS) == ()


def test_groups_that_cannot_be_placed_fall_back_to_another_plan() -> None:
    grouped = elastic(
        waiting("tensor", plan("g", 4, tp=4, run_s=100.0), plan("g", 1, run_s=900.0)),
    )
    actions = started(schedule(facts([node("a", "g", 2), node("b", "g", 2)], [grouped]), NOW_S, HAS))
    assert actions["tensor"].plan.num_gpus == 1


def test_fragments_are_used_up_first() -> None:
    nodes = [node("a", "g", 2), node("b", "g", 1), node("c", "g", 1)]
    jobs = [elastic(waiting(name, *scaling("g", 1, work_s=50.0))) for name in ("x", "y")]
    two = elastic(waiting("two", plan("g", 2, tp=2, run_s=100.0)), submitted_s=10.0)
    actions = started(schedule(facts(nodes, [*jobs, two]), NOW_S, HAS))
    assert [each.node for each in actions["two"].placement.allocations] == ["a"]


def test_shares_are_near_those_of_hesrpt() -> None:
    """Five jobs with speed k^0.5: heSRPT gives the smallest 1 - (4/5)^2 = 36 % of the GPUs."""
    counts = tuple(range(16, 0, -1))
    jobs = [
        elastic(waiting(f"j{at}", *(plan("g", n, run_s=1000.0 * (1 + at) / math.sqrt(n)) for n in counts)))
        for at in range(5)
    ]
    actions = started(schedule(facts([node("n", "g", 16)], jobs), NOW_S, HasPolicy(urgency=1.0)))
    assert 4 <= actions["j0"].plan.num_gpus <= 6
    assert sum(start.plan.num_gpus for start in actions.values()) == 16


def test_effective_capacity_counts_slow_types_less() -> None:
    types = (gpu_type("fast", tflops=300), gpu_type("slow", tflops=30))
    quick = elastic(waiting("quick", plan("fast", 1, run_s=10.0), plan("slow", 1, run_s=100.0)))
    actions = started(schedule(facts([node("f", "fast", 1), node("s", "slow", 8)], [quick], types=types), NOW_S, HAS))
    assert actions["quick"].plan.gpu_type == "fast"
