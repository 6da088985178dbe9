"""What a reason says of one job is true of this job, and of the cluster as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.has_world import elastic, facts, held, node, plan, running, started, team_quotas, waiting

from frenzy.core.scheduling import HasPolicy, Policy, explain, schedule
from frenzy.core.values.cluster import Node
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import MAX_PRIORITY, Objective
from frenzy.core.values.queue_rules import QueueRule, QueueRules, Quota, TeamRule
from frenzy.core.values.scheduling_facts import QueuedJob, SchedulingFacts

HAS = HasPolicy()


def reason_of(there: SchedulingFacts, name: str, policy: Policy = HAS) -> Reason:
    return held(schedule(there, 2000.0, policy))[name].reason


def taken(name: str, num_gpus: int, num_taken: int, *, host_gib: int = 1024) -> Node:
    return replace(node(name, "g", num_gpus, host_gib=host_gib), num_taken=num_taken)


@pytest.mark.parametrize(
    ("job", "preference"),
    [
        (elastic(waiting("a", plan("h", 2), plan("g", 2))), "the one that delays it and the jobs behind it least"),
        (
            elastic(waiting("a", plan("h", 2, cost=1.0), plan("g", 2, cost=2.0)), objective=Objective.COST),
            "the cheapest that it could have at its turn",
        ),
        (elastic(waiting("a", plan("h", 2), plan("g", 2)), ordered=True), "the first of them that it could have"),
    ],
)
def test_a_start_says_by_what_its_plan_was_chosen(job: QueuedJob, preference: str) -> None:
    there = facts([node("n", "g", 2), node("m", "h", 2)], [job], [running("r", plan("h", 1), ("m", 1))])
    reason = started(schedule(there, 2000.0, HAS))["a"].reason
    assert reason.code is ReasonCode.BEST_PLAN_NOW
    assert preference in reason.detail


def behind(priority: int, policy: Policy) -> str | None:
    """The remedy of a job behind one of this priority, which keeps GPUs."""
    fixed = running("fixed", plan("g", 2), ("n", 2))
    urgent = elastic(waiting("urgent", plan("g", 4, run_s=1e6), priority=priority))
    small = elastic(waiting("small", plan("g", 2, run_s=5.0), submitted_s=1999.0, priority=priority - 1))
    return reason_of(facts([node("n", "g", 4)], [urgent, small], [fixed]), "small", policy).remedy


def test_no_priority_is_named_that_a_job_may_not_have() -> None:
    rules = QueueRules(queues=(QueueRule(name="default", max_priority=100),))
    below, above = (behind(priority, HasPolicy(queues=rules)) or "" for priority in (99, 101))
    assert "a priority above 98" in below
    assert "priority" not in above
    assert "priority" in (behind(MAX_PRIORITY, HAS) or "")
    assert "priority" not in (behind(MAX_PRIORITY + 1, HAS) or "")


def test_gpus_of_work_outside_frenzy_are_waited_for_and_named() -> None:
    reason = reason_of(facts([taken("n", 4, 2)], [waiting("a", plan("g", 3))]), "a")
    assert reason.code is ReasonCode.WAITING_FOR_GPUS
    assert reason.detail == "Needs 3 g; the cluster has 4 g (2 held by work outside Frenzy)."
    assert reason.remedy == "1 more g free"
    never = reason_of(facts([taken("n", 4, 2)], [waiting("a", plan("g", 5))]), "a")
    assert never.code is ReasonCode.NEVER_FITS
    assert never.detail == "Needs 5 g; the cluster has 4 g (2 held by work outside Frenzy)."


def test_a_job_that_lacks_gpus_is_told_of_those_that_work_outside_frenzy_holds() -> None:
    there = facts([taken("n", 4, 1)], [elastic(waiting("a", plan("g", 2)))], [running("r", plan("g", 2), ("n", 2))])
    found = "left at its turn: 1 of 4 g (1 held by work outside Frenzy); g is held by job-r"
    assert reason_of(there, "a").detail == f"Needs 2 g; {found}."


def test_nodes_are_not_called_too_small_for_what_work_outside_frenzy_holds() -> None:
    nodes = [taken("large", 4, 4), node("small", "g", 4, host_gib=8)]
    reason = reason_of(facts(nodes, [waiting("a", plan("g", 2, host_gib=64))]), "a")
    assert (reason.code, "more than nodes" in reason.detail) == (ReasonCode.WAITING_FOR_GPUS, False)


def test_a_job_barred_from_a_node_that_is_too_small_is_told_of_its_size() -> None:
    barred = replace(waiting("a", plan("g", 2, host_gib=64)), excluded_nodes=("n",))
    reason = reason_of(facts([node("n", "g", 2, host_gib=8)], [barred]), "a")
    assert reason.remedy != "1 more g in the cluster"
    assert "64.0 GiB of host memory" in reason.detail


def test_the_name_of_a_team_over_its_quota_keeps_its_capitals() -> None:
    rules = QueueRules(teams=(TeamRule(name="*", quota=Quota(max_gpus=1)),))
    there = facts([node("n", "g", 4)], [replace(waiting("a", plan("g", 2)), team="NLP")])
    detail = "Team NLP may hold 1 GPU and holds 0; one of the job's plans needs 2 g."
    reason = reason_of(there, "a", HasPolicy(queues=rules))
    assert (reason.detail, reason.remedy) == (detail, "a quota of 2 GPUs for team NLP")


def test_a_job_over_its_quota_is_not_told_of_the_plan_of_another() -> None:
    jobs = [replace(waiting(f"a{size}", plan("g", 2, micro_batch_size=size)), team="red") for size in (1, 2)]
    told = held(schedule(facts([node("n", "g", 4)], jobs), 2000.0, HasPolicy(queues=team_quotas(red=1))))
    assert not [hold.reason for hold in told.values() if "mb" in hold.reason.sentence]


def test_a_quota_of_one_gpu_is_one_gpu() -> None:
    there = facts([node("n", "g", 4)], [replace(waiting("a", plan("g", 1)), team="red")])
    policy = HasPolicy(queues=team_quotas(red=0))
    assert reason_of(there, "a", policy).remedy == "a quota of 1 GPU for team red"
    assert "With a quota of 1 GPU for team red it would start now." in explain(there, "a", 2000.0, policy).lines
