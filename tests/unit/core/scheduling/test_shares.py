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

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.scheduling import HasPolicy, SchedulingState
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.service_order import ServiceOrder, entries_of
from frenzy.core.scheduling.engine.shares import targets
from frenzy.core.scheduling.engine.state import Entry, due_s, is_settled
from frenzy.core.values.queue_rules import NO_RULES
from frenzy.core.values.scheduling_facts import SchedulingFacts

policies = st.builds(
    HasPolicy,
    urgency=st.sampled_from((0.0, 0.5, 2.0)),
    hysteresis=st.sampled_from((0.8, 0.95)),
    disturbance=st.sampled_from((0.0, 6.0)),
    payback=st.sampled_from((0.01, 1.0, 100.0)),
    queues=st.sampled_from((NO_RULES, team_quotas(red=2), team_quotas(red=2, blue=4))),
)


class Plain:
    """One sweep, every rule looked up for every choice of every job."""

    def __init__(self, entries: list[Entry], state: SchedulingState, policy: HasPolicy) -> None:
        capacity = Capacity.of(state.cluster)
        self.entries, self.policy = entries, policy
        self.left, self.fits_empty = dict(capacity.num_gpus), state.capacity.fits_empty
        self.reserved: set[str] = set()
        self.idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
        self.effective = capacity.effective
        self.by_team: dict[str, int] = {}
        costs = [each.restart_s for each in entries if each.current is not None and not each.is_fixed]
        self.disturbance_s = policy.disturbance * (statistics.median_low(costs) if costs else 0.0)

    def targets(self) -> dict[str, RankedPlan | None]:
        found: dict[str, RankedPlan | None] = {}
        for entry in self.entries:
            if entry.current is not None and (entry.is_fixed or not entry.has_moves or entry.is_displaced):
                found[entry.run_key] = entry.current
                self.keep(entry, entry.current, 1)
        free = [entry for entry in self.entries if not entry.is_fixed]
        for at, entry in enumerate(free, start=1):
            found[entry.run_key] = self.serve(entry, len(free) - at)
            is_first = entry.due_s <= NOW_S or entry.job.priority > free[-1].job.priority
            if entry.current is None and found[entry.run_key] is None and is_first:
                self.reserve(entry)
        for entry in free:
            chosen = found[entry.run_key]
            if chosen is not None and not (chosen is entry.current and entry.is_displaced):
                found[entry.run_key] = self.grow(entry, chosen)
        return found

    def reserve(self, entry: Entry) -> None:
        possible = [
            each for each in entry.others.plans if self.fits_empty(each.need) and not self.breaks_quota(entry, each)
        ]
        if not possible or self.reserved & {each.gpu_type for each in possible}:
            return
        nearest = min(possible, key=lambda each: (each.num_gpus - self.left.get(each.gpu_type, 0), each.unit_s))
        self.reserved.add(nearest.gpu_type)
        left = self.left.get(nearest.gpu_type, 0)
        self.left[nearest.gpu_type] = min(left, 0 if nearest.need.group_size > 1 else max(0, left - nearest.num_gpus))

    def keep(self, entry: Entry, choice: RankedPlan, sign: int) -> None:
        num_gpus = entry.num_held if choice is entry.current else choice.num_gpus
        self.left[choice.gpu_type] = self.left.get(choice.gpu_type, 0) - sign * num_gpus
        self.effective -= sign * choice.gpus * num_gpus / choice.num_gpus
        self.by_team[entry.job.team] = self.by_team.get(entry.job.team, 0) + sign * choice.num_gpus

    def serve(self, entry: Entry, behind: int) -> RankedPlan | None:
        current = entry.current
        if current is not None and (entry.is_displaced or not entry.has_moves):
            self.keep(entry, current, -1)
        price = self.policy.urgency * behind / max(self.effective, 1e-9)
        open_choices = [each for each in choices_of(entry) if self.is_open(entry, each)]
        best = open_choices[0] if open_choices and entry.in_order else None
        if best is None:
            best = min(open_choices, key=lambda each: self.cost(entry, each, price), default=None)
        if best is None and current is not None and (entry.is_displaced or not entry.has_moves):
            best = current
        if current is not None:
            self.idle[current.gpu_type] = self.idle.get(current.gpu_type, 0) + entry.num_held
        if best is not None:
            self.keep(entry, best, 1)
        if best is not None and best is current:
            self.idle[best.gpu_type] -= entry.num_held
        elif best is not None:
            self.idle[best.gpu_type] = self.idle.get(best.gpu_type, 0) - best.num_gpus
        return best

    def cost(self, entry: Entry, choice: RankedPlan, price: float) -> float:
        stays = choice is entry.current
        may_stay = entry.current is not None and not entry.is_displaced and self.is_open(entry, entry.current)
        moved_s = entry.run_s(choice) + entry.restart_s + (entry.moves_again_s if may_stay else 0.0)
        if entry.by_cost:
            takes_s = entry.run_s(choice) * self.policy.hysteresis if stays else moved_s
            return choice.money(takes_s)
        if stays:
            return entry.run_s(choice) * self.policy.hysteresis * (1.0 + price * choice.gpus)
        disturbs_s = 0.0 if self.is_idle(entry, choice) else self.disturbance_s + self.lost_by_others_s(entry, choice)
        return moved_s * (1.0 + price * choice.gpus) + disturbs_s

    def lost_by_others_s(self, entry: Entry, choice: RankedPlan) -> float:
        """Of those that hold such GPUs and are served after it, the last ones give up what it lacks."""
        behind = [
            each
            for each in self.entries[self.entries.index(entry) + 1 :]
            if each.current is not None and not each.is_fixed and each.has_moves and not each.is_displaced
        ]
        missing = min(choice.num_gpus, choice.num_gpus - self.at_hand(entry, choice.gpu_type))
        lost_s = 0.0
        for other in reversed([each for each in behind if each.current and each.current.gpu_type == choice.gpu_type]):
            kept = max(0, other.num_held - missing)
            if missing > 0:
                lost_s += self.lost_s(other, kept, entry.run_s(choice) + entry.restart_s)
            missing -= other.num_held - kept
        return lost_s

    def lost_s(self, other: Entry, kept: int, while_s: float) -> float:
        """A restart, and where it runs slower, that until its end or, with one more, until it is back."""
        assert other.current is not None
        own = other.current
        possible = [
            each.unit_s
            for each in other.others.plans
            if each.num_gpus <= (kept if each.gpu_type == own.gpu_type else self.idle.get(each.gpu_type, 0))
        ]
        share = own.unit_s / min(possible, default=math.inf)
        if share >= 1:
            return other.restart_s
        to_the_end_s = other.run_s(own) / share - other.run_s(own) if share else math.inf
        return other.restart_s + min(to_the_end_s, other.restart_s + (1 - share) * while_s)

    def breaks_quota(self, entry: Entry, choice: RankedPlan) -> bool:
        quota = next((each.quota.max_gpus for each in self.policy.queues.teams if each.name == entry.job.team), None)
        return quota is not None and self.by_team.get(entry.job.team, 0) + choice.num_gpus > quota

    def is_open(self, entry: Entry, choice: RankedPlan) -> bool:
        if choice.num_gpus > self.left.get(choice.gpu_type, 0) or self.breaks_quota(entry, choice):
            return False
        if entry.current is None or choice is entry.current or entry.has_moves:
            return True
        moved_s = entry.run_s(choice) + entry.restart_s + entry.moves_again_s
        pays = moved_s * self.policy.gain_without_budget <= entry.run_s(entry.current)
        return pays and self.is_idle(entry, choice)

    def is_idle(self, entry: Entry, choice: RankedPlan) -> bool:
        return choice.num_gpus <= self.at_hand(entry, choice.gpu_type)

    def at_hand(self, entry: Entry, gpu_type: str) -> int:
        own = entry.num_held if entry.current is not None and entry.current.gpu_type == gpu_type else 0
        return self.idle.get(gpu_type, 0) + own

    def grow(self, entry: Entry, chosen: RankedPlan) -> RankedPlan:
        if entry.by_cost or entry.in_order:
            return chosen
        threshold = entry.run_s(chosen)
        if entry.has_moves:
            stays = chosen is entry.current
            stays_s = threshold * self.policy.hysteresis - entry.moves_again_s
            threshold = stays_s if stays else threshold + entry.restart_s
        best = chosen
        self.keep(entry, chosen, -1)
        for choice in choices_of(entry):
            takes_s = entry.run_s(choice) + (0.0 if choice is entry.current else entry.restart_s)
            if takes_s < threshold and self.is_open(entry, choice):
                best, threshold = choice, takes_s
        self.keep(entry, best, 1)
        return best


def choices_of(entry: Entry) -> Iterator[RankedPlan]:
    if entry.current is not None and not entry.is_displaced:
        yield entry.current
    yield from entry.others.plans


@settings(max_examples=60, deadline=None)
@given(elastic_facts(), policies)
def test_short_cuts_change_no_target(there: SchedulingFacts, policy: HasPolicy) -> None:
    state = SchedulingState.of(there, policy)
    entries = entries_of(state, NOW_S)
    found, _ = targets(state, ServiceOrder.of(entries, NOW_S), policy, {})
    plain = Plain(entries, state, policy).targets()
    active = [entry for entry in entries if not entry.is_fixed and (entry.current is not None or plain[entry.run_key])]
    assert [(entry.run_key, target) for entry, target in found] == [
        (entry.run_key, plain[entry.run_key]) for entry in active
    ]


@settings(max_examples=60, deadline=None)
@given(elastic_facts(), policies)
def test_what_is_remembered_of_plans_changes_no_claim(there: SchedulingFacts, policy: HasPolicy) -> None:
    """Facts made anew have plans of their own, of which nothing is remembered."""
    queued = tuple(replace(job, plans=tuple(replace(each) for each in job.plans)) for job in there.queued)
    run = tuple(replace(job, plan=replace(job.plan), plans=tuple(list(job.plans))) for job in there.running)
    anew = replace(there, queued=queued, running=run)
    one, other = (entries_of(SchedulingState.of(each, policy), NOW_S) for each in (there, anew))
    assert one == [entry._replace(job=same.job) for entry, same in zip(other, one, strict=True)]


@settings(max_examples=60, deadline=None)
@given(elastic_facts(), policies)
def test_a_job_is_due_by_the_work_of_its_most_efficient_choice(there: SchedulingFacts, policy: HasPolicy) -> None:
    state = SchedulingState.of(there, policy)
    for entry in entries_of(state, NOW_S):
        works = [entry.run_s(each) * each.gpus for each in choices_of(entry)]
        if works and entry.due_s > -math.inf:
            assert math.isclose(entry.due_s, due_s(entry.job, min(works), policy, state.capacity))


@settings(max_examples=60, deadline=None)
@given(elastic_facts(), st.floats(0, 5000))
def test_what_a_running_job_claims_follows_its_progress(there: SchedulingFacts, after_s: float) -> None:
    policy, now_s = HasPolicy(), NOW_S + after_s
    entries = entries_of(SchedulingState.of(there, policy), now_s)
    running = {job.run_key: job for job in there.running}
    for entry in (each for each in entries if each.current is not None):
        job = running[entry.run_key]
        left = job.work_left - job.progress(now_s)
        over = max(policy.overrun_share * (job.work_done + job.progress(now_s)), 1e-9)
        assert entry.left == pytest.approx(left if left > 0 else over)
        assert entry.is_fixed == (not is_settled(job, now_s))
        assert entry.has_moves == (entry.is_displaced or job.moves_left(now_s) >= 1)
