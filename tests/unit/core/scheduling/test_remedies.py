"""A number in a remedy is true: with so much the job starts, with less it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, all_facts, elastic_facts, policies
from tests.unit.core.has_world import (
    EASY,
    elastic,
    facts,
    held,
    node,
    plan,
    queue_weights,
    running,
    scaling,
    started,
    team_quotas,
    waiting,
)

from frenzy.core.scheduling import BackfillPolicy, HasPolicy, Policy, apply_actions, explain, schedule
from frenzy.core.scheduling.engine.policy_settings import with_queues
from frenzy.core.scheduling.reasons.remedies import gpus_wanted
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.scheduling_facts import Hold, SchedulingFacts
from frenzy.core.values.units import GIB, MIB

HAS = HasPolicy()
thorough = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
with_rules = st.sampled_from(
    (
        HasPolicy(queues=team_quotas(red=2)),
        BackfillPolicy(queues=team_quotas(red=3, blue=4)),
        HasPolicy(queues=queue_weights(a=1.0, b=2.0)),
        HAS,
    )
)
MORE_GPUS = re.compile(r"(?:^| or |With )(\d+) more (\S+) (?:free|in the)")
PRIORITY = re.compile(r"a priority above (-?\d+)")
QUOTA = re.compile(r"a quota of (\d+) GPUs? for team (\w+)")
HOST = re.compile(r"([\d.]+) (GiB|MiB) of host memory more free on (\S+)")


def starts(there: SchedulingFacts, run_key: str, policy: Policy) -> bool:
    return run_key in started(schedule(there, NOW_S, policy))


def with_gpus(there: SchedulingFacts, gpu_type: str, num_gpus: int) -> SchedulingFacts:
    new = node("new", gpu_type, num_gpus, host_gib=100_000, num_cpus=10_000)
    nodes = (*there.cluster.nodes, new) if num_gpus else there.cluster.nodes
    return replace(there, cluster=Cluster(there.cluster.gpu_types, nodes))


def at_priority(there: SchedulingFacts, run_key: str, priority: int) -> SchedulingFacts:
    queued = tuple(replace(each, priority=priority) if each.run_key == run_key else each for each in there.queued)
    return replace(there, queued=queued)


def with_host(there: SchedulingFacts, name: str, num_bytes: float) -> SchedulingFacts:
    nodes = tuple(
        replace(each, host_memory_bytes=each.host_memory_bytes + round(num_bytes)) if each.name == name else each
        for each in there.cluster.nodes
    )
    return replace(there, cluster=Cluster(there.cluster.gpu_types, nodes))


def claims(
    there: SchedulingFacts, run_key: str, text: str, policy: Policy
) -> Iterator[tuple[int, Callable[[int], bool], range]]:
    """Every number in ``text``, whether the job starts with another in its place, and all that is less."""
    for number, gpu_type in MORE_GPUS.findall(text):
        yield int(number), lambda n, t=gpu_type: starts(with_gpus(there, t, n), run_key, policy), range(int(number))
    for number in PRIORITY.findall(text):
        own = next(each.priority for each in there.queued if each.run_key == run_key)
        raised = range(own, int(number) + 1)
        yield int(number) + 1, lambda n: starts(at_priority(there, run_key, n), run_key, policy), raised
    for number, team in QUOTA.findall(text):
        quotas = quotas_of(policy)
        larger = range(quotas[team], int(number))
        yield int(number), lambda n, t=team, q=quotas: starts(there, run_key, with_quotas(policy, {**q, t: n})), larger
    for amount, unit, name in HOST.findall(text):
        tenths, tenth = round(float(amount) * 10), (GIB if unit == "GiB" else MIB) / 10
        less = range(tenths - 1, tenths)
        yield tenths, lambda n, at=name, one=tenth: starts(with_host(there, at, n * one), run_key, policy), less


def quotas_of(policy: Policy) -> dict[str, int]:
    assert isinstance(policy, BackfillPolicy)
    return {each.name: each.quota.max_gpus for each in policy.queues.teams if each.quota.max_gpus is not None}


def with_quotas(policy: Policy, max_gpus: dict[str, int]) -> Policy:
    return with_queues(policy, team_quotas(**max_gpus))


def check(there: SchedulingFacts, hold: Hold, policy: Policy) -> int:
    """How many numbers there were; all of them are true, before what is decided is done and after."""
    found = 0
    then = apply_actions(there, schedule(there, NOW_S, policy), now_s=NOW_S)
    text = hold.reason.remedy or ""
    both = chain(claims(there, hold.run_key, text, policy), claims(then, hold.run_key, text, policy))
    for number, apply, less in both:
        found += 1
        assert apply(number), f"{hold} does not start with {number}"
        assert not [each for each in less if apply(each)], f"{hold} starts with less"
    return found


@thorough
@given(all_facts() | elastic_facts(), policies)
def test_every_number_in_a_remedy_is_true(there: SchedulingFacts, policy: Policy) -> None:
    for hold in held(schedule(there, NOW_S, policy)).values():
        check(there, hold, policy)


@thorough
@given(elastic_facts(), with_rules)
def test_every_number_in_a_remedy_is_true_under_quotas_and_shares(there: SchedulingFacts, policy: HasPolicy) -> None:
    there = replace(there, queued=tuple(replace(job, queue="ab"[at % 2]) for at, job in enumerate(there.queued)))
    for hold in held(schedule(there, NOW_S, policy)).values():
        check(there, hold, policy)


@thorough
@given(elastic_facts())
def test_what_explain_claims_would_start_a_job_does(there: SchedulingFacts) -> None:
    for job in there.queued[:3]:
        for sentence in explain(there, job.run_key, NOW_S, HAS).lines:
            for number, apply, _ in claims(there, job.run_key, sentence, HAS):
                assert apply(number), sentence


def kept_idle() -> SchedulingFacts:
    """Two GPUs are idle, but kept for the urgent job, which lacks two."""
    fixed = running("fixed", plan("g", 2), ("n", 2))
    urgent = elastic(waiting("urgent", plan("g", 4, run_s=1e6), submitted_s=999.0, priority=1))
    small = elastic(waiting("small", plan("g", 2, run_s=5.0)))
    return facts([node("n", "g", 4)], [urgent, small], [fixed])


def test_gpus_that_are_kept_for_another_are_counted_in_what_is_missing() -> None:
    there = kept_idle()
    hold = held(schedule(there, NOW_S, HAS))["small"]
    assert hold.reason.code is ReasonCode.WAITING_BEHIND_HEAD
    assert hold.reason.detail == "2 g are left, but 2 are kept for job-urgent, which is due or matters more."
    assert hold.reason.remedy == "4 more g free (other jobs take some of them first) or a priority above 0"
    assert check(there, hold, HAS) == 4


def test_reason_options_and_counterfactuals_of_one_job_agree() -> None:
    told = explain(kept_idle(), "small", NOW_S, HAS)
    options = [each for each in told.lines if each.startswith("2xg")]
    assert options == ["2xg-z2-mb1 would fit what was left at its turn, were it not kept for job-urgent."]
    change = next(each for each in told.lines if each.startswith("With "))
    assert change == "With 4 more g free (other jobs take some of them first) it would start now."


def test_a_job_that_lacks_gpus_is_told_what_was_left_at_its_turn_and_who_holds_the_rest() -> None:
    there = facts(
        [node("n", "g", 4)],
        [elastic(waiting("last", plan("g", 2), submitted_s=990.0))],
        [running("first", plan("g", 3), ("n", 3))],
    )
    hold = held(schedule(there, NOW_S, HAS))["last"]
    assert hold.reason.detail == "Needs 2 g; left at its turn: 1 of 4 g; g is held by job-first."
    assert hold.reason.remedy == "1 more g free"


def test_of_each_type_that_a_job_could_take_it_is_told_who_holds_it() -> None:
    there = facts(
        [node("n", "g", 2), node("m", "h", 2), node("o", "i", 1)],
        [elastic(waiting("last", *(plan(each, 2) for each in "ghi"), submitted_s=990.0))],
        [running("first", plan("g", 2), ("n", 2)), running("second", plan("h", 1), ("m", 1))],
    )
    detail = held(schedule(there, NOW_S, HAS))["last"].reason.detail
    assert detail.endswith("; g is held by job-first; h is held by job-second.")


def test_a_job_that_starts_smaller_than_it_could_is_not_said_to_have_its_best_plan() -> None:
    jobs = [elastic(waiting(f"j{at}", *scaling("g", 1, 2, 4, work_s=6000.0)), EASY) for at in range(2)]
    there = facts([node("n", "g", 6)], jobs)
    plans = {key: start.plan for key, start in started(schedule(there, NOW_S, HAS)).items()}
    small = next(key for key, chosen in plans.items() if chosen.num_gpus < 4)
    why = explain(there, small, NOW_S, HAS).lines[-1]
    assert why.startswith("Why this plan: BEST_PLAN_NOW: It is number ")
    assert "delays it and the jobs behind it least" in why


def test_no_number_is_named_where_trials_would_take_long() -> None:
    jobs = [elastic(waiting(f"j{at:04}", plan("g", 4), submitted_s=float(at))) for at in range(1200)]
    hold = held(schedule(facts([node("n", "g", 4)], jobs), 2000.0, HAS))["j0500"]
    assert hold.reason.remedy == "more idle g"


@pytest.mark.parametrize(("num_jobs", "tried"), [(3, 24), (1000, 64)])
def test_no_more_gpus_are_tried_than_all_jobs_take_or_an_answer_may_ask_for(num_jobs: int, tried: int) -> None:
    jobs = [waiting(f"j{at}", plan("g", 8), plan("g", 2), plan("other", 16)) for at in range(num_jobs)]
    assert gpus_wanted(jobs, "g") == tried
