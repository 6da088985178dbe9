"""Why a job runs where it runs, would start, or waits; and what would have to differ.

Counterfactuals are not argued but tried: the facts are changed and scheduled again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from frenzy.core.scheduling.better_plans import better_plans
from frenzy.core.scheduling.engine.deadlines import deadline_sentence, running_sentence
from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.policy_settings import HasPolicy, Policy
from frenzy.core.scheduling.engine.state import SchedulingState, end_of
from frenzy.core.scheduling.engine.swap import refusals
from frenzy.core.scheduling.engine.wording import about, listed
from frenzy.core.scheduling.reasons.holds import Decision, Judge, why_this_plan
from frenzy.core.scheduling.reasons.remedies import Trials, Untold, smallest_of_each_type
from frenzy.core.scheduling.schedule import as_state, decide, decision_of, holds
from frenzy.core.values.cluster import Placement
from frenzy.core.values.errors import Reason, ReasonCode, SpecError, Violation
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob, SchedulingFacts, Start
from frenzy.core.values.units import counted

_MAX_OPTIONS_SHOWN = 5
_MAX_HOLDERS_SHOWN = 5
_MAX_TYPES_HELD = 3
# Each try is a whole decision: seconds in all for a queue of thousands.
_MAX_TYPES_TRIED = 4
_MOST_LOOKS = 200_000


class Outcome(StrEnum):
    RUNS = "runs"
    STARTS = "starts"
    WAITS = "waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionView:
    """One plan of a waiting job, and what it found."""

    plan: ResourcePlan
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the scheduler does with one job, and why.

    plan, placement: of a job that runs or would start. position, expected_start_s: of one that
    waits. deadline: what comes of it. held: who has the GPUs that it could take, and for how long.
    counterfactuals: changes that were tried and would start it now, or move it to a better plan, one sentence each.
    holders: who does not move for it, though its memory exceeded its GPUs, likewise.
    """

    run_key: str
    job_name: str
    outcome: Outcome
    reason: Reason
    plan: ResourcePlan | None = None
    placement: Placement | None = None
    position: int | None = None
    expected_start_s: float | None = None
    deadline: str | None = None
    options: tuple[OptionView, ...] = ()
    held: tuple[str, ...] = ()
    counterfactuals: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences beyond the reason's own, in reading order, each true by itself."""
        position = (f"It is number {self.position} in the queue.",) if self.position is not None else ()
        deadline = (self.deadline,) if self.deadline is not None else ()
        shown = tuple(ranked.sentence for ranked in self.options[:_MAX_OPTIONS_SHOWN])
        left = len(self.options) - len(shown)
        rest = (f"{left} more {'plan needs' if left == 1 else 'plans need'} other GPUs.",) if left > 0 else ()
        return (*position, *deadline, *shown, *rest, *self.held, *self.holders, *self.counterfactuals)


def explain(facts: SchedulingFacts, run_key: str, now_s: float, policy: Policy) -> Explanation:
    """Why ``run_key`` is where it is. Raises SpecError when it neither waits nor runs."""
    waiting = next((job for job in facts.queued if job.run_key == run_key), None)
    if waiting is None:
        return _running(facts, run_key, now_s, policy)
    decision = decision_of(facts, now_s, policy)
    start = next((each for each in decision.actions if isinstance(each, Start) and each.run_key == run_key), None)
    if start is not None:
        return _starting(waiting, start, decision)
    judge = Judge(decision)
    hold = next(each for each in holds(decision) if each.run_key == run_key)
    entry = next(each for each in decision.after.waiting if each.run_key == run_key)
    return Explanation(
        run_key=run_key,
        job_name=waiting.job_name,
        outcome=Outcome.WAITS,
        reason=hold.reason,
        position=hold.position,
        expected_start_s=hold.expected_start_s,
        deadline=deadline_sentence(decision.after, entry, now_s),
        # None of a job whose old workers are still there: it had no turn.
        options=() if run_key in decision.after.running else _options(judge, entry),
        held=tuple(_held(decision.after, entry, now_s)),
        counterfactuals=_counterfactuals(Trials(facts, facts, now_s, policy, decide, _MOST_LOOKS), entry),
        holders=tuple(islice(_who_stays(facts, entry, now_s, policy), _MAX_HOLDERS_SHOWN)),
    )


def _options(judge: Judge, entry: Entry) -> tuple[OptionView, ...]:
    return tuple(OptionView(plan=each.plan, sentence=judge.option(entry, each)) for each in entry.others.listed)


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


def _who_stays(facts: SchedulingFacts, entry: Entry, now_s: float, policy: Policy) -> Iterator[str]:
    """Of a job under memory pressure: why those that hold larger GPUs do not move for it."""
    if not entry.job.memory_constrained or not isinstance(policy, HasPolicy):
        return
    for job, refusal in refusals(as_state(facts, policy), entry, now_s, policy):
        yield f"{job.job_name} keeps {_nodes(job.placement)}: {refusal}."


def _running(facts: SchedulingFacts, run_key: str, now_s: float, policy: Policy) -> Explanation:
    job = next((job for job in facts.running if job.run_key == run_key), None)
    if job is None:
        allowed = "name a run that waits or runs"
        raise SpecError([Violation(path="run_key", value=repr(run_key), allowed=allowed)])
    detail = f"{job.job_name} runs {job.plan.plan_id} on {_nodes(job.placement)}."
    return Explanation(
        run_key=run_key,
        job_name=job.job_name,
        outcome=Outcome.RUNS,
        reason=Reason(code=_code_of_running(job), detail=detail),
        plan=job.plan,
        placement=job.placement,
        deadline=running_sentence(job, now_s),
        counterfactuals=tuple(better_plans(facts, job, now_s, policy)),
    )


def _code_of_running(job: RunningJob) -> ReasonCode:
    """Whether it has its best plan, one that its memory made it take, or the best that could be had."""
    if job.memory_constrained:
        return ReasonCode.MOVED_FOR_MEMORY
    return ReasonCode.BEST_PLAN if job.plan in job.plans[:1] else ReasonCode.BEST_PLAN_NOW


def _starting(job: QueuedJob, start: Start, decision: Decision) -> Explanation:
    why = why_this_plan(decision, job, start.plan)
    which = ", its best plan," if why.code is ReasonCode.BEST_PLAN else ""
    where = "one node" if len(start.placement.allocations) == 1 else "the fewest nodes that hold it"
    detail = f"{job.job_name} starts {start.plan.plan_id}{which} on {where}: {_nodes(start.placement)}. {why.detail}"
    return Explanation(
        run_key=job.run_key,
        job_name=job.job_name,
        outcome=Outcome.STARTS,
        reason=replace(why, detail=detail.rstrip()),
        plan=start.plan,
        placement=start.placement,
    )


def _nodes(placement: Placement) -> str:
    return listed([f"{each.node} ({each.num_gpus})" for each in placement.allocations], last="and", more="more nodes")


def _counterfactuals(trials: Trials, entry: Entry) -> tuple[str, ...]:
    """Changes that were tried, one at a time, and would start the job now."""
    found: list[str] = []
    with suppress(Untold):
        found.extend(f"With {change} it would start now." for change in _helpful(trials, entry))
    return tuple(found)


def _helpful(trials: Trials, entry: Entry) -> Iterator[str]:
    job = entry.queued
    for ranked in smallest_of_each_type(entry, trials.facts.cluster)[:_MAX_TYPES_TRIED]:
        num_gpus = trials.fewest(entry, ranked.gpu_type)
        if num_gpus is not None:
            yield f"{num_gpus} more idle {ranked.gpu_type}"
    yield from trials.quotas(job)
    weights = trials.weight(job)
    if weights is not None:
        yield f"weight {weights[1]:g} instead of {weights[0]:g} for queue {job.queue}"
    priority = trials.priority(job)
    if priority is not None:
        yield f"priority {priority}"
