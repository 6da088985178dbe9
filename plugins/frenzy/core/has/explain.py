"""Why a job runs where it runs, would start, or waits; and what would have to differ.

Counterfactuals are not argued but tried: the facts are changed and scheduled again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import islice

from frenzy.core.has.better_plans import better_plans
from frenzy.core.has.board import Board
from frenzy.core.has.deadlines import deadline_sentence, running_sentence
from frenzy.core.has.forecast import earliest
from frenzy.core.has.options import Contender, Option
from frenzy.core.has.placement import shortfall
from frenzy.core.has.policy import FifoPolicy, HasPolicy, PaperPolicy, Policy
from frenzy.core.has.rule_changes import rule_counterfactuals
from frenzy.core.has.schedule import as_state, decide, run_pass, schedule
from frenzy.core.has.state import SchedulingState
from frenzy.core.has.swap import refusals
from frenzy.core.has.what_if import gpus_wanted, least, one_for_each_type, with_idle_gpus
from frenzy.core.has.wording import about, listed, more_gpus
from frenzy.core.values.cluster import Placement
from frenzy.core.values.errors import Reason, ReasonCode, SpecError, Violation
from frenzy.core.values.plan import ResourcePlan
from frenzy.core.values.queue import Hold, QueuedJob, SchedulingFacts, Start

_MAX_OPTIONS_SHOWN = 5
_MAX_HOLDERS_SHOWN = 5
# Each try is a whole decision: seconds in all for a queue of thousands.
_MAX_TYPES_TRIED = 4


class Outcome(StrEnum):
    RUNS = "runs"
    STARTS = "starts"
    WAITS = "waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionView:
    """One plan of a waiting job, seen by itself.

    missing_gpus: GPUs that would have to become idle. earliest_start_s: when it could start if
    the job came first in the queue; None if that cannot be foreseen or never.
    """

    plan: ResourcePlan
    missing_gpus: int
    earliest_start_s: float | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the scheduler does with one job, and why.

    plan, placement: of a job that runs or would start. position, expected_start_s: of one that
    waits. deadline: what comes of it. counterfactuals: changes that were tried and would start it now, or move it
    to a better plan, one sentence each. holders: who does not move for it, though its memory outgrew its GPUs,
    likewise.
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
    counterfactuals: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences beyond the reason's own, in reading order, each true by itself."""
        position = (f"It is number {self.position} in the queue.",) if self.position is not None else ()
        deadline = (self.deadline,) if self.deadline is not None else ()
        shown = tuple(option.sentence for option in self.options[:_MAX_OPTIONS_SHOWN])
        left = len(self.options) - len(shown)
        rest = (f"{left} more {'plan needs' if left == 1 else 'plans need'} other GPUs.",) if left > 0 else ()
        return (*position, *deadline, *shown, *rest, *self.holders, *self.counterfactuals)


def explain(facts: SchedulingFacts, run_key: str, now_s: float, policy: Policy) -> Explanation:
    """Why ``run_key`` is where it is. Raises SpecError when it neither waits nor runs."""
    waiting = next((job for job in facts.queued if job.run_key == run_key), None)
    if waiting is None:
        return _running(facts, run_key, now_s, policy)
    action = _action(facts, run_key, now_s, policy)
    if isinstance(action, Start):
        return _starting(facts, waiting, action, policy)
    board = run_pass(_settled(facts, now_s, policy), now_s)
    contender = board.state.rules.contender(waiting, facts.cluster)
    return Explanation(
        run_key=run_key,
        job_name=waiting.job_name,
        outcome=Outcome.WAITS,
        reason=action.reason,
        position=action.position,
        expected_start_s=action.expected_start_s,
        deadline=deadline_sentence(board.with_deadline_in_reach(contender), now_s, policy),
        options=tuple(_option_view(board, waiting, option) for option in contender.options),
        counterfactuals=tuple(_counterfactuals(facts, contender, now_s, policy)),
        holders=tuple(islice(_who_stays(facts, contender, now_s, policy), _MAX_HOLDERS_SHOWN)),
    )


def _who_stays(facts: SchedulingFacts, contender: Contender, now_s: float, policy: Policy) -> Iterator[str]:
    """Of a job under memory pressure: why those that hold larger GPUs do not move for it."""
    if not contender.job.pressed or not isinstance(policy, HasPolicy):
        return
    for job, refusal in refusals(as_state(facts, policy), contender, now_s, policy):
        yield f"{job.job_name} keeps {_nodes(job.placement)}: {refusal}."


def _action(facts: SchedulingFacts, run_key: str, now_s: float, policy: Policy) -> Start | Hold:
    for action in schedule(facts, now_s, policy):
        if action.run_key == run_key and isinstance(action, Start | Hold):
            return action
    raise AssertionError("every waiting job has a start or a hold")


def _settled(facts: SchedulingFacts, now_s: float, policy: Policy) -> SchedulingState:
    """The state once everything that can start now has started."""
    state = as_state(facts, policy)
    while started := run_pass(state, now_s).started:
        state = state.start(started)
    return state


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
        reason=Reason(code=ReasonCode.BEST_PLAN, detail=detail),
        plan=job.plan,
        placement=job.placement,
        deadline=running_sentence(job, now_s),
        counterfactuals=tuple(better_plans(facts, job, now_s, policy)),
    )


def _starting(facts: SchedulingFacts, job: QueuedJob, start: Start, policy: Policy) -> Explanation:
    rank = job.plans.index(start.plan) + 1
    which = "its best plan" if rank == 1 else f"the best of its plans that can start now (number {rank})"
    if isinstance(policy, PaperPolicy):
        which = "its first plan by GPUs and memory that fits"
    elif isinstance(policy, FifoPolicy):
        which = "the fastest that can start now with as many GPUs as were asked for"
    where = "one node" if len(start.placement.allocations) == 1 else "the fewest nodes that hold it"
    detail = f"{job.job_name} starts {start.plan.plan_id}, {which}, on {where}: {_nodes(start.placement)}."
    return Explanation(
        run_key=job.run_key,
        job_name=job.job_name,
        outcome=Outcome.STARTS,
        reason=Reason(code=ReasonCode.BEST_PLAN, detail=detail),
        plan=start.plan,
        placement=start.placement,
    )


def _nodes(placement: Placement) -> str:
    return listed([f"{each.node} ({each.num_gpus})" for each in placement.allocations], last="and", more="more nodes")


def _option_view(board: Board, job: QueuedJob, option: Option) -> OptionView:
    need = option.need
    empty = board.state.empty.by_type.get(need.gpu_type)
    if empty is None or not board.fits_empty(need):
        sentence = f"{option.plan.plan_id} does not fit the nodes in service, even when they are empty."
        return OptionView(plan=option.plan, missing_gpus=need.num_gpus, earliest_start_s=None, sentence=sentence)
    missing = shortfall(board.room.by_type[need.gpu_type], need, empty)
    promise = earliest(board, option, 0)
    start_s = promise.start_s if promise else None
    when = f"{about(start_s - board.now_s)} from now" if start_s is not None else "at a time that cannot be foreseen"
    lack = f"lacks {more_gpus(missing, need)}" if missing else "finds enough idle GPUs"
    sentence = f"{option.plan.plan_id} {lack}; as first in the queue it could start {when}."
    limit = board.quotas.exceeded(job, need.gpu_type, need.num_gpus)
    if limit is not None:
        sentence = f"{option.plan.plan_id} is over the quota of {limit.title}."
    elif board.fits_now(need) is not None:
        sentence = f"{option.plan.plan_id} would fit what is idle, were it not kept for the job in front."
    return OptionView(plan=option.plan, missing_gpus=missing, earliest_start_s=start_s, sentence=sentence)


def _counterfactuals(facts: SchedulingFacts, contender: Contender, now_s: float, policy: Policy) -> Iterator[str]:
    job = contender.job

    def starts(changed: SchedulingFacts, other: Policy = policy) -> bool:
        actions = decide(changed, now_s, replace(other, num_forecasts=0))
        return any(isinstance(each, Start) and each.run_key == job.run_key for each in actions)

    def starts_with(option: Option, num_gpus: int) -> bool:
        return starts(with_idle_gpus(facts, option, num_gpus))

    smallest = sorted(contender.options, key=lambda each: each.need.num_gpus)
    for option in one_for_each_type(smallest, facts.cluster)[:_MAX_TYPES_TRIED]:
        num_gpus = least(partial(starts_with, option), limit=gpus_wanted(facts, option.need.gpu_type))
        if num_gpus is not None:
            yield f"With {num_gpus} more idle {option.need.gpu_type} it would start now."
    yield from rule_counterfactuals(facts, job, policy, partial(starts, facts))
    highest = max((each.priority for each in facts.queued), default=job.priority)
    raised = tuple(replace(each, priority=highest + 1) if each is job else each for each in facts.queued)
    if starts(replace(facts, queued=raised)):
        yield f"With priority {highest + 1} it would start now."
