"""A start is granted once what it is to have is really free: the nodes, and the quotas it comes under."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.has_world import facts, node, plan, queue_weights, running, team_quotas

from frenzy.core.lifecycle.handover import Held, Holding, wait_for_leaving
from frenzy.core.scheduling import HasPolicy
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.queue_rules import QueueRule, QueueRules, Quota
from frenzy.core.values.scheduling_facts import Start

CLUSTER = facts([node("n", "g", 4, host_gib=64), node("m", "g", 4)], []).cluster
TWO = plan("g", 2, host_gib=40)


def holding(name: str, at: str, num_gpus: int = 2, *, leaving: bool = True, team: str = "red") -> Holding:
    held = running(name, plan("g", num_gpus, host_gib=40), (at, num_gpus))
    return Holding(job_name=name, queue="a", team=team, plan=held.plan, placement=held.placement, is_leaving=leaving)


def told(*held: Holding, on: str = "n", policy: HasPolicy | None = None, num_gpus: int = 2) -> str | None:
    wanted = replace(TWO, num_gpus=num_gpus, dp=num_gpus)
    start = Start(run_key="new", plan=wanted, placement=running("new", wanted, (on, num_gpus)).placement)
    reason = wait_for_leaving(start, Held.of(held, CLUSTER, policy or HasPolicy()), queue="a", team="red")
    assert reason is None or reason.code is ReasonCode.WAITING_FOR_MOVE
    return None if reason is None else reason.sentence


def test_where_nobody_leaves_nothing_is_waited_for() -> None:
    assert told(holding("stays", "n", 4, leaving=False)) is None


def test_gpus_that_a_leaving_job_still_holds_are_waited_for() -> None:
    sentence = f"Starts as {TWO.plan_id} as soon as job leaving has saved a checkpoint and left n."
    assert told(holding("leaving", "n", 4)) == sentence
    assert told(holding("leaving", "m", 4)) is None, "it leaves another node"


def test_host_memory_that_a_leaving_job_still_holds_is_waited_for() -> None:
    assert "left n" in (told(holding("leaving", "n", 2)) or "")


def test_all_jobs_that_have_to_leave_are_named() -> None:
    both = told(holding("one", "n", 2), holding("two", "n", 2))
    assert both is not None
    assert "as soon as jobs one, two have saved a checkpoint" in both


@pytest.mark.parametrize(("quota", "waits"), [(4, True), (6, False)])
def test_a_quota_that_a_leaving_job_still_uses_is_waited_for(quota: int, waits: bool) -> None:
    policy = HasPolicy(queues=team_quotas(red=quota))
    found = told(holding("leaving", "n", 4), on="m", policy=policy)
    assert (found is not None) == waits
    assert not waits or f"given its GPUs back, for team red may hold {quota}" in (found or "")


def test_a_quota_is_waited_for_though_another_that_nobody_leaves_lacks_more() -> None:
    """Of queue a nobody leaves: what it is over is not this one's doing; but team red's GPUs are still held."""
    queues = (QueueRule(name="a", quota=Quota(max_gpus=1)), *queue_weights(b=1.0).queues)
    policy = HasPolicy(queues=QueueRules(queues=queues, teams=team_quotas(red=4).teams))
    leaving = replace(holding("leaving", "n", 4), queue="b")
    others = [holding(name, "m", 1, leaving=False, team="blue") for name in ("other", "more")]
    found = told(leaving, *others, on="m", policy=policy, num_gpus=1)
    assert found is not None
    assert "team red may hold 4" in found
