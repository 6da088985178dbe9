"""What a running job is told of the plans it does not run."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from tests.unit.core.has_strategies import NOW_S, elastic_facts
from tests.unit.core.has_world import EASY, by_job, elastic, facts, gpu_type, node, on, plan, running, scaling, waiting

from frenzy.core.scheduling import BackfillPolicy, HasPolicy, explain, schedule
from frenzy.core.scheduling.engine.wording import about
from frenzy.core.values.job import Objective
from frenzy.core.values.queue_rules import QueueRules, Quota, TeamRule
from frenzy.core.values.scheduling_facts import Elasticity, Resize, SchedulingFacts

HAS = HasPolicy()
PLANS = (*scaling("fast", 1, 2, 4, work_s=100_000.0), *scaling("slow", 1, work_s=400_000.0))
JOB = elastic(waiting("mine", *PLANS))
OTHER = elastic(waiting("other", *scaling("fast", 4, work_s=90_000.0)))
NODES = [node("f", "fast", 4), node("s", "slow", 1)]


def told(there: SchedulingFacts, policy: HasPolicy | BackfillPolicy = HAS) -> tuple[str, ...]:
    return explain(there, "mine", NOW_S, policy).lines


def held_up(job: object = None) -> SchedulingFacts:
    """It runs on the slow GPU; another job that may not be moved holds the fast ones."""
    fixed = replace(on(OTHER, OTHER.plans[0], ("f", 4)), elasticity=None, plans=())
    mine = on(JOB, PLANS[-1], ("s", 1))
    return facts(NODES, [], [fixed, job or mine])  # type: ignore[list-item]


def test_the_least_number_of_idle_gpus_that_would_move_it_is_named() -> None:
    rank, better = told(held_up())
    assert rank == "It runs number 4 of its 4 plans."
    there = held_up()
    more = facts([*NODES, node("new", "fast", 1)], [], list(there.running))
    assert isinstance(move := by_job(schedule(more, NOW_S, HAS))["mine"], Resize)
    left_s = 1.0 - NOW_S / PLANS[-1].predicted_run_s
    sooner_s = left_s * (PLANS[-1].predicted_run_s - move.plan.predicted_run_s) - EASY.restart_s
    assert better == (
        f"1 more idle fast would make it move to {move.plan.plan_id} now and end {about(sooner_s)} sooner, its restart "
        "counted."
    )
    assert move.plan.num_gpus == 1, "what is promised is the plan of that one GPU"


def test_a_job_that_outlived_its_estimate_is_told_what_would_move_it() -> None:
    """The engine believes that as much is left of it as it did."""
    late = replace(on(JOB, PLANS[-1], ("s", 1)), work_left=0.5 * NOW_S / PLANS[-1].predicted_run_s)
    assert late.progress(NOW_S) > late.work_left
    assert told(held_up(late))[1].startswith("1 more idle fast would make it move to 1xfast-z2-mb1 now")


def test_cards_of_many_times_the_memory_are_no_advice() -> None:
    tiny, vast = gpu_type("tiny", memory_gib=1), gpu_type("vast", memory_gib=46)
    plans = (plan("vast", 1, run_s=1e4, gpu_memory_gib=46), plan("tiny", 1, run_s=4e4, gpu_memory_gib=1))
    mine = on(elastic(waiting("mine", *plans)), plans[1], ("t", 1))
    fixed = running("fixed", plan("vast", 1, gpu_memory_gib=46), ("v", 1))
    there = facts([node("v", "vast", 1), node("t", "tiny", 1)], [], [mine, fixed], types=(tiny, vast))
    assert told(there) == ("It runs number 2 of its 2 plans.",)


def test_what_is_claimed_happens() -> None:
    there = held_up()
    more = facts([*NODES, node("new", "fast", 1)], [], list(there.running))
    assert "It is to move to 1xfast-z2-mb1 at its next checkpoint." in told(more)


def test_a_job_with_its_best_plan_is_told_so_and_nothing_else() -> None:
    alone = facts(NODES, [], [on(JOB, PLANS[0], ("f", 4))])
    assert told(alone) == ("It runs the best of its 4 plans.",)


def test_why_more_gpus_would_not_move_it_is_said() -> None:
    fresh = Elasticity(restart_s=10.0, moves_left=3, min_run_s=7200.0)
    assert told(held_up(on(replace(JOB, elasticity=fresh), PLANS[-1], ("s", 1))))[1].endswith(
        "more idle fast would not move it now: between two moves it runs for about 2.0 h."
    )
    quotas = HasPolicy(queues=QueueRules(teams=(TeamRule(name="red", quota=Quota(max_gpus_by_type=(("fast", 0),))),)))
    assert told(held_up(on(replace(JOB, team="red"), PLANS[-1], ("s", 1))), quotas)[1].endswith(
        "it would be over the quota of team red."
    )


def test_nothing_is_claimed_of_a_job_that_is_never_moved_or_of_a_policy_that_moves_none() -> None:
    assert told(held_up(replace(on(JOB, PLANS[-1], ("s", 1)), elasticity=None, plans=()))) == ()
    assert told(held_up(), BackfillPolicy()) == ()


def test_no_more_gpus_are_tried_than_its_faster_plan_takes_however_long_the_queue() -> None:
    """They were once as many as the whole queue could take: minutes for a queue of ten thousand."""
    first = [elastic(waiting(f"w{at}", *scaling("fast", 4, work_s=900.0), priority=1)) for at in range(8)]
    there = replace(held_up(), queued=tuple(first))
    assert told(there)[1].endswith(
        "; 4 more idle fast would not move it now: others would take them, or it gains too little."
    )


def test_a_job_that_is_to_give_way_is_told_so() -> None:
    mine = on(JOB, PLANS[0], ("f", 4))
    urgent = elastic(waiting("urgent", *scaling("fast", 4, work_s=90_000.0), priority=1))
    lone = replace(mine, plans=(PLANS[0],))
    assert told(facts([node("f", "fast", 4)], [urgent], [lone])) == (
        "It runs its only plan.",
        "It is to stop at its next checkpoint, and to wait again.",
    )


def test_a_job_that_is_to_be_cheap_is_not_sent_to_faster_gpus() -> None:
    cheap = replace(on(JOB, PLANS[-1], ("s", 1)), objective=Objective.COST)
    assert told(held_up(cheap)) == ("It runs number 4 of its 4 plans.",)


@settings(max_examples=30, deadline=None)
@given(elastic_facts())
def test_every_running_job_is_explained_in_sentences(there: SchedulingFacts) -> None:
    for job in there.running:
        lines = explain(there, job.run_key, NOW_S, HAS).lines
        assert all(line.endswith(".") for line in lines)
        assert len(set(lines)) == len(lines)
