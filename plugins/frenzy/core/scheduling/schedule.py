"""The scheduling function: passes over the queue until one changes nothing, then the holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import takewhile

from frenzy.core.scheduling.engine import elastic
from frenzy.core.scheduling.engine.board import Board
from frenzy.core.scheduling.engine.policy_settings import FifoPolicy, HasPolicy, PaperPolicy, Policy
from frenzy.core.scheduling.engine.state import SchedulingState, apply_actions
from frenzy.core.scheduling.policies import backfill, fifo, paper
from frenzy.core.scheduling.reasons.holds import Judge, SweepJudge
from frenzy.core.scheduling.reasons.remedies import Trials
from frenzy.core.scheduling.reasons.starts import why_this_plan
from frenzy.core.values.errors import Reason
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import Action, Hold, QueuedJob, SchedulingFacts, Start

_MAX_FORECAST_ENDS = 64


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done, and the record from which every reason is read. facts: what was decided on."""

    facts: SchedulingFacts
    actions: tuple[Action, ...]
    judge: Judge

    def trials(self, now_s: float) -> Trials:
        """What would start its waiting jobs."""
        then = apply_actions(self.facts, self.actions, now_s=now_s) if self.actions else self.facts
        return Trials(self.facts, then, now_s, self.after.rules.policy, decide)

    @property
    def told(self) -> tuple[Action, ...]:
        """The actions, each start with the reason for its plan."""
        jobs = {job.run_key: job for job in self.facts.queued}
        return tuple(
            replace(each, reason=self.why_this_plan(jobs[each.run_key], each.plan)) if isinstance(each, Start) else each
            for each in self.actions
        )

    def why_this_plan(self, job: QueuedJob, plan: ResourcePlan) -> Reason:
        """Why ``job`` starts with ``plan``."""
        may_move = isinstance(self.judge, SweepJudge)
        return why_this_plan(job.plans, plan, self.after.rules.policy, may_move=may_move)

    @property
    def after(self) -> SchedulingState:
        """The state to which the actions lead, in which only those wait that no action serves."""
        return self.judge.board.state


def schedule(facts: SchedulingFacts | SchedulingState, now_s: float, policy: Policy) -> tuple[Action, ...]:
    """What to do now: starts and moves in the order they were decided, and a Hold with its reason for every other
    job that waits, in queue order.

    A start or a resize may need GPUs that a job of the same answer gives back. Pure: the same arguments
    give the same actions, in whatever order the facts are listed, and none for a second call with the
    actions applied. Raises ValueError for a state made under another policy.
    """
    decision = decision_of(facts, now_s, policy)
    return (*decision.told, *holds(decision, now_s))


def decision_of(facts: SchedulingFacts | SchedulingState, now_s: float, policy: Policy) -> Decision:
    """Actions with their record."""
    state = as_state(facts, policy)
    if isinstance(policy, HasPolicy) and elastic.is_elastic(state):
        actions, missed = elastic.decide(state, now_s, policy)
        after = elastic.with_what_can_start(state, actions, now_s)
        board = Board(state=after, now_s=now_s, room=after.room)
        return Decision(state.facts, actions, SweepJudge(board, missed))
    actions, after = _decided(state, now_s)
    return Decision(state.facts, actions, Judge(run_pass(after, now_s)))


def holds(decision: Decision, now_s: float) -> list[Hold]:
    """One hold for each waiting job, in queue order. Where jobs may be moved nobody knows who starts when."""
    judge, after = decision.judge, decision.after
    starts = {} if isinstance(judge, SweepJudge) else expected_starts(judge.board)
    trials = decision.trials(now_s)
    found = []
    for position, contender in enumerate(after.waiting, start=1):
        key, reason = contender.job.run_key, judge.reason(contender)
        remedy = trials.remedy(contender, reason, after.room.by_type.__getitem__) or reason.remedy
        if remedy is not None and key in starts:
            remedy = f"{remedy}; {judge.when(key, starts[key])}"
        if remedy != reason.remedy:
            reason = replace(reason, remedy=remedy)
        found.append(Hold(run_key=key, reason=reason, position=position, expected_start_s=starts.get(key)))
    return found


def decide(facts: SchedulingFacts | SchedulingState, now_s: float, policy: Policy) -> tuple[Action, ...]:
    """The starts and moves of ``schedule``, without the holds, which cost more than the decision."""
    state = as_state(facts, policy)
    if isinstance(policy, HasPolicy) and elastic.is_elastic(state):
        return elastic.decide(state, now_s, policy)[0]
    return _decided(state, now_s)[0]


def _decided(state: SchedulingState, now_s: float) -> tuple[tuple[Action, ...], SchedulingState]:
    """Actions, and the state in which only those wait that no action serves."""
    starts: list[Action] = []
    while state.may_start and (started := run_pass(state, now_s).started):
        starts += [Start(run_key=job.run_key, plan=job.plan, placement=job.placement) for job in started]
        state = state.start(started)
    return tuple(starts), state


def as_state(facts: SchedulingFacts | SchedulingState, policy: Policy) -> SchedulingState:
    """``facts`` as a state under ``policy``. Raises ValueError for a state made under another one."""
    if isinstance(facts, SchedulingFacts):
        return SchedulingState.of(facts, policy)
    if facts.rules.policy != policy:
        raise ValueError(f"the state was made under {facts.rules.policy}, not under {policy}")
    return facts


def run_pass(state: SchedulingState, now_s: float) -> Board:
    """One pass over the queue under the state's policy."""
    board = Board(state=state, now_s=now_s, room=state.room)
    policy = state.rules.policy
    if isinstance(policy, PaperPolicy):
        paper.run_pass(board, policy)
    elif isinstance(policy, FifoPolicy):
        fifo.run_pass(board, policy)
    else:
        backfill.run_pass(board, policy)
    return board


def expected_starts(board: Board) -> dict[str, float]:
    """When waiting jobs are expected to start, by run key.

    The front of the queue (``num_forecasts`` jobs) is played forward from one expected end to the
    next with the same passes; what is promised already keeps its promise.
    """
    promised = {
        each.job.run_key: each.promise.start_s
        for each in board.reservations.values()
        if each.promise.start_s is not None
    }
    return {**_played_forward(board), **promised}


def _played_forward(board: Board) -> dict[str, float]:
    state = board.state.with_front(board.state.rules.policy.num_forecasts)
    starts: dict[str, float] = {}
    now_s = board.now_s
    for _ in range(_MAX_FORECAST_ENDS):
        next_s = max(now_s, min((ends[0][0] for ends in state.ends.values()), default=math.inf))
        if not state.waiting or next_s == math.inf:
            break
        now_s = next_s
        for run_key in sorted(_ended_by(state, now_s)):
            state = state.finish(run_key)
        mixes = state.rules.counts_gpus_only
        if not mixes and not any(contender.may_fit(state.room) for contender in state.waiting):
            continue
        started = run_pass(state, now_s).started
        starts |= {job.run_key: now_s for job in started}
        state = state.start(started)
    return starts


def _ended_by(state: SchedulingState, now_s: float) -> set[str]:
    return {run_key for ends in state.ends.values() for _, run_key in takewhile(lambda end: end[0] <= now_s, ends)}
