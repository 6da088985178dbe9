"""The sweep over all jobs takes short cuts; it decides as the plain rules do, written down here without any."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.has_strategies import NOW_S, elastic_facts
from tests.unit.core.has_world import team_quotas

from frenzy.core.scheduling import HasPolicy, SchedulingState
from frenzy.core.scheduling.engine.choices import Capacity, Choice
from frenzy.core.scheduling.engine.claims import Claim, is_settled
from frenzy.core.scheduling.engine.line import Line, claims_of
from frenzy.core.scheduling.engine.shares import targets
from frenzy.core.values.queue_rules import NO_RULES
from frenzy.core.values.scheduling_facts import SchedulingFacts

policies = st.builds(
    HasPolicy,
    urgency=st.sampled_from((0.0, 0.5, 2.0)),
    hysteresis=st.sampled_from((0.8, 0.95)),
    disturbance=st.sampled_from((0.0, 6.0)),
    payback=st.sampled_from((0.01, 1.0, 100.0)),
    size_exponent=st.sampled_from((0.0, 0.3)),
    queues=st.sampled_from((NO_RULES, team_quotas(red=2), team_quotas(red=2, blue=4))),
)


class Plain:
    """One sweep, every rule looked up for every choice of every job."""

    def __init__(self, claims: list[Claim], state: SchedulingState, policy: HasPolicy) -> None:
        capacity = Capacity.of(state.cluster)
        self.claims, self.policy = claims, policy
        self.left, self.fits_empty = dict(capacity.num_gpus), state.fits_empty
        self.reserved: set[str] = set()
        self.idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
        self.effective = capacity.effective
        self.by_team: dict[str, int] = {}
        costs = [each.restart_s for each in claims if each.current is not None and not each.is_fixed]
        self.disturbance_s = policy.disturbance * (statistics.median_low(costs) if costs else 0.0)

    def targets(self) -> dict[str, Choice | None]:
        found: dict[str, Choice | None] = {}
        for claim in self.claims:
            if claim.current is not None and (claim.is_fixed or not claim.has_moves or claim.is_displaced):
                found[claim.run_key] = claim.current
                self.keep(claim, claim.current, 1)
        free = [claim for claim in self.claims if not claim.is_fixed]
        behind = sum(claim.weight for claim in free)
        for claim in free:
            behind -= claim.weight
            found[claim.run_key] = self.serve(claim, max(0.0, behind))
            is_first = claim.due_s <= NOW_S or claim.job.priority > free[-1].job.priority
            if claim.current is None and found[claim.run_key] is None and is_first:
                self.reserve(claim)
        for claim in free:
            chosen = found[claim.run_key]
            if chosen is not None and not (chosen is claim.current and claim.is_displaced):
                found[claim.run_key] = self.grow(claim, chosen)
        return found

    def reserve(self, claim: Claim) -> None:
        possible = [
            each for each in claim.others.choices if self.fits_empty(each.need) and not self.breaks_quota(claim, each)
        ]
        if not possible or self.reserved & {each.gpu_type for each in possible}:
            return
        nearest = min(possible, key=lambda each: (each.num_gpus - self.left.get(each.gpu_type, 0), each.unit_s))
        self.reserved.add(nearest.gpu_type)
        left = self.left.get(nearest.gpu_type, 0)
        self.left[nearest.gpu_type] = min(left, 0 if nearest.need.group_size > 1 else max(0, left - nearest.num_gpus))

    def keep(self, claim: Claim, choice: Choice, sign: int) -> None:
        num_gpus = claim.num_held if choice is claim.current else choice.num_gpus
        self.left[choice.gpu_type] = self.left.get(choice.gpu_type, 0) - sign * num_gpus
        self.effective -= sign * choice.gpus * num_gpus / choice.num_gpus
        self.by_team[claim.job.team] = self.by_team.get(claim.job.team, 0) + sign * choice.num_gpus

    def serve(self, claim: Claim, behind: float) -> Choice | None:
        current = claim.current
        if current is not None and (claim.is_displaced or not claim.has_moves):
            self.keep(claim, current, -1)
        price = self.policy.urgency * behind / (claim.weight * max(self.effective, 1e-9))
        open_choices = [each for each in choices_of(claim) if self.is_open(claim, each)]
        best = open_choices[0] if open_choices and claim.in_order else None
        if best is None:
            best = min(open_choices, key=lambda each: self.cost(claim, each, price), default=None)
        if best is None and current is not None and (claim.is_displaced or not claim.has_moves):
            best = current
        if current is not None:
            self.idle[current.gpu_type] = self.idle.get(current.gpu_type, 0) + claim.num_held
        if best is not None:
            self.keep(claim, best, 1)
        if best is not None and best is current:
            self.idle[best.gpu_type] -= claim.num_held
        elif best is not None:
            self.idle[best.gpu_type] = self.idle.get(best.gpu_type, 0) - best.num_gpus
        return best

    def cost(self, claim: Claim, choice: Choice, price: float) -> float:
        stays = choice is claim.current
        may_stay = claim.current is not None and not claim.is_displaced and self.is_open(claim, claim.current)
        moved_s = claim.run_s(choice) + claim.restart_s + (claim.moves_again_s if may_stay else 0.0)
        if claim.by_cost:
            takes_s = claim.run_s(choice) * self.policy.hysteresis if stays else moved_s
            return choice.plan.predicted_cost * takes_s / choice.unit_s
        if stays:
            return claim.run_s(choice) * self.policy.hysteresis * (1.0 + price * choice.gpus)
        disturbs_s = 0.0 if self.is_idle(claim, choice) else self.disturbance_s
        return moved_s * (1.0 + price * choice.gpus) + disturbs_s

    def breaks_quota(self, claim: Claim, choice: Choice) -> bool:
        quota = next((each.quota.max_gpus for each in self.policy.queues.teams if each.name == claim.job.team), None)
        return quota is not None and self.by_team.get(claim.job.team, 0) + choice.num_gpus > quota

    def is_open(self, claim: Claim, choice: Choice) -> bool:
        if choice.num_gpus > self.left.get(choice.gpu_type, 0) or self.breaks_quota(claim, choice):
            return False
        if claim.current is None or choice is claim.current or claim.has_moves:
            return True
        moved_s = claim.run_s(choice) + claim.restart_s + claim.moves_again_s
        pays = moved_s * self.policy.gain_without_budget <= claim.run_s(claim.current)
        return pays and self.is_idle(claim, choice)

    def is_idle(self, claim: Claim, choice: Choice) -> bool:
        current = claim.current
        own = claim.num_held if current is not None and current.gpu_type == choice.gpu_type else 0
        return choice.num_gpus <= self.idle.get(choice.gpu_type, 0) + own

    def grow(self, claim: Claim, chosen: Choice) -> Choice:
        if claim.by_cost or claim.in_order:
            return chosen
        threshold = claim.run_s(chosen)
        if claim.has_moves:
            stays = chosen is claim.current
            stays_s = threshold * self.policy.hysteresis - claim.moves_again_s
            threshold = stays_s if stays else threshold + claim.restart_s
        best = chosen
        self.keep(claim, chosen, -1)
        for choice in choices_of(claim):
            takes_s = claim.run_s(choice) + (0.0 if choice is claim.current else claim.restart_s)
            if takes_s < threshold and self.is_open(claim, choice):
                best, threshold = choice, takes_s
        self.keep(claim, best, 1)
        return best


def choices_of(claim: Claim) -> Iterator[Choice]:
    if claim.current is not None and not claim.is_displaced:
        yield claim.current
    yield from claim.others.choices


@settings(max_examples=200, deadline=None)
@given(elastic_facts(), policies)
def test_short_cuts_change_no_target(there: SchedulingFacts, policy: HasPolicy) -> None:
    state = SchedulingState.of(there, policy)
    capacity = Capacity.of(there.cluster)
    claims = claims_of(state, NOW_S, policy, capacity)
    idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
    found, _ = targets(Line.of(claims, NOW_S), idle, policy, capacity, frozenset(), state.fits_empty)
    plain = Plain(claims, state, policy).targets()
    active = [claim for claim in claims if not claim.is_fixed and (claim.current is not None or plain[claim.run_key])]
    assert [(claim.run_key, target) for claim, target in found] == [
        (claim.run_key, plain[claim.run_key]) for claim in active
    ]


@settings(max_examples=60, deadline=None)
@given(elastic_facts(), policies)
def test_what_is_remembered_of_plans_changes_no_claim(there: SchedulingFacts, policy: HasPolicy) -> None:
    """Facts made anew have plans of their own, of which nothing is remembered."""
    queued = tuple(replace(job, plans=tuple(replace(each) for each in job.plans)) for job in there.queued)
    run = tuple(replace(job, plan=replace(job.plan), plans=tuple(list(job.plans))) for job in there.running)
    anew = replace(there, queued=queued, running=run)
    capacity = Capacity.of(there.cluster)
    one, other = (claims_of(SchedulingState.of(each, policy), NOW_S, policy, capacity) for each in (there, anew))
    assert one == [claim._replace(job=same.job) for claim, same in zip(other, one, strict=True)]


@settings(max_examples=60, deadline=None)
@given(elastic_facts(), policies)
def test_work_is_that_of_the_most_efficient_choice(there: SchedulingFacts, policy: HasPolicy) -> None:
    for claim in claims_of(SchedulingState.of(there, policy), NOW_S, policy, Capacity.of(there.cluster)):
        works = [claim.run_s(each) * each.gpus for each in choices_of(claim)]
        if works:
            assert math.isclose(claim.work, min(works))


@settings(max_examples=60, deadline=None)
@given(elastic_facts(), st.floats(0, 5000))
def test_what_a_running_job_claims_follows_its_progress(there: SchedulingFacts, after_s: float) -> None:
    policy, now_s = HasPolicy(), NOW_S + after_s
    claims = claims_of(SchedulingState.of(there, policy), now_s, policy, Capacity.of(there.cluster))
    running = {job.run_key: job for job in there.running}
    for claim in (each for each in claims if each.current is not None):
        job = running[claim.run_key]
        left = job.work_left - job.progress(now_s)
        over = max(policy.overrun_share * (job.work_done + job.progress(now_s)), 1e-9)
        assert claim.left == pytest.approx(left if left > 0 else over)
        assert claim.is_fixed == (not is_settled(job, now_s))
        assert claim.has_moves == (claim.is_displaced or job.moves_left(now_s) >= 1)
