"""Why a job runs where it runs, would start, or waits; and what would have to differ: tried, not argued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from frenzy.core.capacity.queue_use import QuotaUse
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.policy_settings import HasPolicy, Policy
from frenzy.core.scheduling.engine.service_order import deadline_sentence, running_sentence
from frenzy.core.scheduling.engine.state import Entry, SchedulingState, end_of
from frenzy.core.scheduling.engine.swap import refusals
from frenzy.core.scheduling.engine.wording import about, listed
from frenzy.core.scheduling.reasons.holds import Decision, Judge, why_this_plan
from frenzy.core.scheduling.reasons.remedies import (
    Trials,
    Untold,
    one_for_each_type,
    with_idle_gpus,
)
from frenzy.core.scheduling.schedule import as_state, decide, decision_of, holds
from frenzy.core.values.cluster import Placement
from frenzy.core.values.errors import Reason, SpecError, Violation
from frenzy.core.values.job import Objective
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Hold, Preempt, Resize, RunningJob, SchedulingFacts, Start
from frenzy.core.values.units import counted

_MAX_PLANS_SHOWN = 5
_MAX_HOLDERS_SHOWN = 5
_MAX_TYPES_HELD = 3
# Each try is a whole decision: seconds in all for a queue of thousands.
_MOST_LOOKS = 200_000
_MAX_FASTER_TYPES: Final = 3
# Cards of so many times the memory are for other jobs.
_MOST_TIMES_THE_MEMORY: Final = 16


class Explanation(NamedTuple):
    """reason: why the job waits; None where it runs, or would start. lines: further sentences, in reading order."""

    reason: Reason | None
    lines: tuple[str, ...]


def explain(facts: SchedulingFacts, run_key: str, now_s: float, policy: Policy) -> Explanation:
    """Why ``run_key`` is where it is. Raises SpecError when it neither waits nor runs."""
    waiting = next((job for job in facts.queued if job.run_key == run_key), None)
    running = next((job for job in facts.running if job.run_key == run_key), None)
    if waiting is None and running is None:
        raise SpecError([Violation(path="run_key", value=repr(run_key), allowed="name a run that waits or runs")])
    if waiting is None and running is not None:
        return Explanation(None, tuple(_of_running(facts, running, now_s, policy)))
    decision = decision_of(facts, now_s, policy)
    start = next((each for each in decision.actions if isinstance(each, Start) and each.run_key == run_key), None)
    if start is not None:
        return Explanation(None, tuple(_of_start(decision, start)))
    hold = next(each for each in holds(decision) if each.run_key == run_key)
    return Explanation(hold.reason, tuple(_of_waiting(decision, hold)))


def _of_running(facts: SchedulingFacts, job: RunningJob, now_s: float, policy: Policy) -> Iterator[str]:
    deadline = running_sentence(job, now_s)
    if deadline is not None:
        yield deadline
    yield from _better_plans(facts, job, now_s, policy)


def _of_start(decision: Decision, start: Start) -> Iterator[str]:
    yield f"It would start now as {start.plan.plan_id} on {_nodes(start.placement)}."
    job = next(each for each in decision.facts.queued if each.run_key == start.run_key)
    why = why_this_plan(decision, job, start.plan)
    yield f"Why this plan: {why.code}: {why.sentence}"


def _of_waiting(decision: Decision, hold: Hold) -> Iterator[str]:
    state, now_s, entry = decision.after, decision.now_s, decision.served[hold.position - 1]
    yield f"It is number {hold.position} in the queue."
    deadline = deadline_sentence(state, entry, now_s)
    if deadline is not None:
        yield deadline
    if entry.run_key in decision.sweep.missed:  # else it had no turn
        yield from _plans(Judge(decision), entry)
    yield from _held(state, entry, now_s)
    yield from islice(_who_stays(decision, entry), _MAX_HOLDERS_SHOWN)
    trials = Trials(decision.facts, decision.facts, now_s, decision.policy, _MOST_LOOKS)
    with suppress(Untold):
        for change in trials.changes(entry):
            yield f"With {change} it would start now."


def _plans(judge: Judge, entry: Entry) -> Iterator[str]:
    plans = entry.others.listed
    yield from (judge.plan(entry, each) for each in plans[:_MAX_PLANS_SHOWN])
    left = len(plans) - _MAX_PLANS_SHOWN
    if left > 0:
        yield f"{left} more {'plan needs' if left == 1 else 'plans need'} other GPUs."


def _held(state: SchedulingState, entry: Entry, now_s: float) -> Iterator[str]:
    """Who has the GPUs of each type that it could take, those first that end soonest."""
    types = dict.fromkeys(ranked.gpu_type for ranked in entry.others.listed)
    for gpu_type in islice(types, _MAX_TYPES_HELD):
        jobs = (job for job in state.running.values() if job.plan.gpu_type == gpu_type)
        alike = Counter(_until(job, now_s) for job in sorted(jobs, key=end_of))
        holders = [each if count == 1 else f"{count} runs of {each}" for each, count in alike.items()]
        if holders:
            yield f"{gpu_type} is held by {listed(holders, last='and')}."


def _until(job: RunningJob, now_s: float) -> str:
    left = "" if job.expected_end_s is None else f", for {about(job.expected_end_s - now_s)} more"
    return f"{job.job_name} ({counted(job.plan.num_gpus, 'GPU')}{left})"


def _who_stays(decision: Decision, entry: Entry) -> Iterator[str]:
    """Of a job under memory pressure: why those that hold larger GPUs do not move for it."""
    policy = decision.policy
    if entry.job.memory_constrained and isinstance(policy, HasPolicy):
        for job, refusal in refusals(as_state(decision.facts, policy), entry, decision.now_s):
            yield f"{job.job_name} keeps {_nodes(job.placement)}: {refusal}."


def _nodes(placement: Placement) -> str:
    return listed([f"{each.node} ({each.num_gpus})" for each in placement.allocations], last="and", noun="more node")


def _better_plans(facts: SchedulingFacts, job: RunningJob, now_s: float, policy: Policy) -> Iterator[str]:
    """Which of its plans a job that may be moved has, and what would move it to a faster one of each GPU type."""
    if job.elasticity is None or job.plan not in job.plans or not isinstance(policy, HasPolicy):
        return
    rank, count = job.plans.index(job.plan) + 1, len(job.plans)
    best = "It runs its only plan." if count == 1 else f"It runs the best of its {count} plans."
    yield best if rank == 1 else f"It runs number {rank} of its {count} plans."
    state = SchedulingState.of(facts, policy)
    asked = _Asked(facts, job, state.running_entry(job, now_s), now_s, policy)
    move = asked.move(facts)
    if isinstance(move, Preempt):
        yield "It is to stop at its next checkpoint, and to wait again."
    elif move is not None:
        yield f"It is to move to {move.plan.plan_id} at its next checkpoint."
    elif job.objective is Objective.TIME:
        _, others = state.plans.of_running(job)
        yield from map(asked.sentence, asked.sooner(others.plans))


@dataclass(frozen=True, slots=True)
class _Asked:
    facts: SchedulingFacts
    job: RunningJob
    entry: Entry
    now_s: float
    policy: HasPolicy

    def gain_s(self, plan: ResourcePlan) -> float:
        """How much sooner it would end with ``plan``, its restart counted, by what the engine believes is left."""
        return self.entry.left * (self.entry.held.unit_s - plan.predicted_run_s) - self.entry.restart_s

    def sooner(self, plans: Iterable[RankedPlan]) -> list[RankedPlan]:
        """Of each GPU type that of ``plans`` with which it would end soonest, if that is sooner; most to gain first."""
        most_bytes = _MOST_TIMES_THE_MEMORY * self.job.plan.gpu_memory_bytes
        usual = (each for each in plans if each.plan.gpu_memory_bytes <= most_bytes)
        sooner = (each for each in usual if self.gain_s(each.plan) > 0)
        return one_for_each_type(sooner, self.facts.cluster)[:_MAX_FASTER_TYPES]

    def move(self, facts: SchedulingFacts) -> Resize | Preempt | None:
        """Where it is moved to, or that it is stopped, if these were the facts."""
        actions, key = decide(facts, self.now_s, self.policy), self.job.run_key
        return next((each for each in actions if isinstance(each, Resize | Preempt) and each.run_key == key), None)

    def sentence(self, ranked: RankedPlan) -> str:
        """What would move it to GPUs of the type of ``ranked``: tried, not argued."""
        # Not with all that a long queue could take: one try takes half a minute.
        gpu_type, most = ranked.gpu_type, ranked.num_gpus
        for num_gpus in range(1, most + 1):
            move = self.move(with_idle_gpus(self.facts, gpu_type, num_gpus))
            if isinstance(move, Resize) and move.plan.gpu_type == gpu_type and self.gain_s(move.plan) > 0:
                return (
                    f"{num_gpus} more idle {gpu_type} would make it move to {move.plan.plan_id} now and end "
                    f"{about(self.gain_s(move.plan))} sooner, its restart counted."
                )
        return (
            f"With {ranked.plan.plan_id} it would end {about(self.gain_s(ranked.plan))} sooner, its restart counted; "
            f"{most} more idle {gpu_type} would not move it now: {self._why_it_stays(ranked)}."
        )

    def _why_it_stays(self, ranked: RankedPlan) -> str:
        others = [each for each in self.facts.running if each.run_key != self.job.run_key]
        limit = QuotaUse.of(self.policy.queues, others).exceeded(self.job, ranked.gpu_type, ranked.num_gpus)
        if limit is not None:
            return f"it would be over the quota of {limit.title}"
        if self.entry.is_fixed and self.job.elasticity is not None:
            return f"between two moves it runs for {about(self.job.elasticity.min_run_s)}"
        if not self.entry.has_moves:
            return "it was moved as often as it may for now"
        return "others would take them, or it gains too little" if self.facts.queued else "that gains too little"
