"""For whom idle GPUs are kept, so that nobody is overtaken for ever, and for whom not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.has_strategies import NOW_S
from tests.unit.core.has_world import (
    by_job,
    elastic,
    facts,
    node,
    on,
    plan,
    running,
    scaling,
    started,
    team_quotas,
    waiting,
)

from frenzy.core.scheduling import HasPolicy, schedule
from frenzy.core.values.cluster import Node, NodeState
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Hold, Start

HAS = HasPolicy()
ONE_NODE = [node("n", "g", 4)]
LONG = elastic(waiting("long", *scaling("g", 1, 2, 4, work_s=100_000.0)))
SHORT = elastic(waiting("short", *scaling("g", 1, 2, 4, work_s=600.0), submitted_s=900.0))


def test_many_jobs_that_cannot_be_placed_keep_nobody_behind_them_waiting() -> None:
    """Four GPUs are idle, two on each node: groups of four fit nowhere."""
    nodes = [node("a", "g", 4), node("b", "g", 4)]
    fixed = [running(f"on-{name}", plan("g", 2), (name, 2)) for name in ("a", "b")]
    grouped = [elastic(waiting(f"tensor{at}", plan("g", 4, tp=4, run_s=1.0), submitted_s=at)) for at in range(12)]
    single = [elastic(waiting(f"single{at}", plan("g", 1, run_s=900.0), submitted_s=990.0)) for at in range(4)]
    actions = started(schedule(facts(nodes, [*grouped, *single], fixed), NOW_S, HasPolicy(slowdown=1e6)))
    assert set(actions) == {each.run_key for each in single}


def test_a_job_that_is_due_keeps_others_from_what_it_waits_for() -> None:
    fixed = running("fixed", plan("g", 2), ("n", 2))
    large = elastic(waiting("large", plan("g", 4, run_s=10.0), submitted_s=0.0))
    small = elastic(waiting("small", plan("g", 1, run_s=5.0), submitted_s=999.0))
    due = schedule(facts(ONE_NODE, [large, small], [fixed]), NOW_S, HasPolicy(slowdown=1.0))
    assert started(due) == {}
    not_due = schedule(facts(ONE_NODE, [large, small], [fixed]), NOW_S, HasPolicy(slowdown=1000.0))
    assert set(started(not_due)) == {"small"}


def test_a_job_of_higher_priority_keeps_others_from_what_it_waits_for() -> None:
    fixed = running("fixed", plan("g", 2), ("n", 2))
    urgent = elastic(waiting("urgent", plan("g", 4, run_s=1e6), submitted_s=999.0, priority=1))
    small = elastic(waiting("small", plan("g", 1, run_s=5.0)))
    actions = schedule(facts(ONE_NODE, [urgent, small], [fixed]), NOW_S, HAS)
    assert started(actions) == {}
    hold = by_job(actions)["small"]
    assert isinstance(hold, Hold)
    assert hold.reason.code is ReasonCode.WAITING_BEHIND_HEAD


@pytest.mark.parametrize(("slowdown", "expected"), [(0.0, set()), (1e6, {"small"})], ids=["due", "not due"])
def test_gpus_are_kept_for_a_job_that_is_due_though_none_of_its_many_plans_finds_a_place(
    slowdown: float, expected: set[str]
) -> None:
    """Four GPUs are idle, two on each node; more groups of four are tried than a decision makes sweeps."""
    nodes = [node("a", "g", 4), node("b", "g", 4)]
    fixed = [running(f"on-{name}", plan("g", 2), (name, 2)) for name in ("a", "b")]
    groups = [plan("g", 4, tp=4, host_gib=at, run_s=100.0 + at) for at in range(20)]
    large = elastic(waiting("large", *groups))
    small = elastic(waiting("small", plan("g", 1, run_s=900.0), submitted_s=990.0))
    actions = schedule(facts(nodes, [large, small], fixed), NOW_S, HasPolicy(slowdown=slowdown))
    assert set(started(actions)) == expected


@pytest.mark.parametrize(
    ("nodes", "wanted", "excluded"),
    [
        ([node("m", "g", 4)], plan("g", 8, tp=8), ()),
        ([node("m", "g", 4), node("lost", "g", 8, state=NodeState.LOST)], plan("g", 8, tp=8), ()),
        ([node("m", "g", 4)], plan("g", 8, host_gib=5000), ()),
        ([node("m", "g", 4, num_cpus=2)], plan("g", 8), ()),
        ([node("m", "g", 4)], plan("g", 8), ("m",)),
    ],
    ids=["group", "lost node", "host memory", "CPUs", "excluded node"],
)
def test_a_job_that_no_node_has_room_for_keeps_nobody_waiting(
    nodes: list[Node], wanted: ResourcePlan, excluded: tuple[str, ...]
) -> None:
    first = elastic(waiting("first", wanted, priority=1), excluded_nodes=excluded)
    behind = elastic(waiting("behind", plan("g", 4), submitted_s=900.0))
    found = by_job(schedule(facts([*ONE_NODE, *nodes], [first, behind]), NOW_S, HAS))
    assert isinstance(found["first"], Hold)
    assert isinstance(found["behind"], Start)


def test_a_job_that_its_quota_holds_back_keeps_nobody_waiting() -> None:
    policy = HasPolicy(queues=team_quotas(red=4))
    holder = replace(on(elastic(waiting("holder", plan("g", 4), priority=2)), plan("g", 4), ("n", 4)), team="red")
    first = elastic(waiting("first", plan("g", 4), priority=1), team="red")
    behind = elastic(waiting("behind", plan("g", 4), submitted_s=900.0), team="blue")
    found = by_job(schedule(facts([*ONE_NODE, node("m", "g", 4)], [first, behind], [holder]), NOW_S, policy))
    assert isinstance(found["behind"], Start)
    assert isinstance(found["first"], Hold)
    assert found["first"].reason.code == ReasonCode.WAITING_FOR_QUOTA


def test_a_long_job_is_not_overtaken_for_ever() -> None:
    old = replace(LONG, submitted_s=-1e9)
    actions = by_job(schedule(facts(ONE_NODE, [old, SHORT]), NOW_S, HAS))
    assert isinstance(actions["long"], Start)
