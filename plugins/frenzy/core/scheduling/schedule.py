"""The scheduling function: the decision, and a hold with its reason for each job that goes on waiting."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from frenzy.core.scheduling.engine import elastic, starts
from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.scheduling.engine.room import FreeCapacity
from frenzy.core.scheduling.engine.state import SchedulingState, apply_actions
from frenzy.core.scheduling.policies import paper
from frenzy.core.scheduling.reasons.chosen_plans import why_this_plan
from frenzy.core.scheduling.reasons.holds import Judge, Record
from frenzy.core.scheduling.reasons.remedies import Trials
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
        return why_this_plan(job.plans, plan, self.after.rules.policy, may_move=self.judge.record.moves)

    @property
    def after(self) -> SchedulingState:
        """The state to which the actions lead, in which only those wait that no action serves."""
        return self.judge.record.after


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
    if elastic.is_elastic(state):
        actions, missed = elastic.decide(state, now_s)
        record = Record(elastic.with_what_can_start(state, actions, now_s), now_s, missed, moves=True)
    elif state.rules.counts_gpus_only:
        actions, after = paper.decide(state, now_s)
        record = Record(after, now_s, {})
    else:
        actions, after, last = starts.decide(state, now_s)
        record = Record(after, now_s, last.missed, last.own_promises)
    return Decision(state.facts, actions, Judge(record))


def holds(decision: Decision, now_s: float) -> list[Hold]:
    """One hold for each waiting job, in the order they are served."""
    judge, room = decision.judge, decision.after.room.by_type.__getitem__
    expected = expected_starts(judge.record)
    trials = decision.trials(now_s)
    found = []
    for position, entry in enumerate(_in_service_order(judge.record), start=1):
        key, reason = entry.run_key, judge.reason(entry)
        remedy = trials.remedy(entry, reason, room) or reason.remedy
        if remedy is not None and key in expected:
            remedy = f"{remedy}; {judge.when(key, expected[key])}"
        if remedy != reason.remedy:
            reason = replace(reason, remedy=remedy)
        found.append(Hold(run_key=key, reason=reason, position=position, expected_start_s=expected.get(key)))
    return found


def _in_service_order(record: Record) -> Iterable[Entry]:
    """Where jobs move, and in the published algorithm, the queue's own order. Those whose old workers are still there
    are not served, and come last.
    """
    waiting = record.after.waiting
    if record.moves or record.after.rules.counts_gpus_only:
        return waiting
    place = {key: at for at, key in enumerate(starts.service_order(record.after, record.now_s))}
    return sorted(waiting, key=lambda each: place.get(each.job.run_key, len(place)))


def decide(facts: SchedulingFacts | SchedulingState, now_s: float, policy: Policy) -> tuple[Action, ...]:
    """The starts and moves of ``schedule``, without the holds, which cost more than the decision."""
    state = as_state(facts, policy)
    if elastic.is_elastic(state):
        return elastic.decide(state, now_s)[0]
    return paper.decide(state, now_s)[0] if state.rules.counts_gpus_only else starts.decide(state, now_s)[0]


def as_state(facts: SchedulingFacts | SchedulingState, policy: Policy) -> SchedulingState:
    """``facts`` as a state under ``policy``. Raises ValueError for a state made under another one."""
    if isinstance(facts, SchedulingFacts):
        return SchedulingState.of(facts, policy)
    if facts.rules.policy != policy:
        raise ValueError(f"the state was made under {facts.rules.policy}, not under {policy}")
    return facts


def expected_starts(record: Record) -> dict[str, float]:
    """When waiting jobs are expected to start, by run key.

    The front of the queue (``num_forecasts`` jobs) is played forward from one expected end to the
    next with the same sweeps; what is promised already keeps its promise.
    """
    if record.moves or record.after.rules.counts_gpus_only:
        return {}
    promised = {key: each.start_s for key, each in record.promises.items() if each.is_kept and each.start_s < math.inf}
    return {**_played_forward(record), **promised}


def _played_forward(record: Record) -> dict[str, float]:
    front = starts.service_order(record.after, record.now_s)[: record.after.rules.policy.num_forecasts]
    state = record.after.with_only(frozenset(front))
    found: dict[str, float] = {}
    now_s = record.now_s
    for _ in range(_MAX_FORECAST_ENDS):
        next_s = max(now_s, min((ends[0][0] for ends in state.ends.values()), default=math.inf))
        if not state.waiting or next_s == math.inf:
            break
        now_s = next_s
        for run_key in sorted(_ended_by(state, now_s)):
            state = state.finish(run_key)
        if any(_may_fit(entry, state.room) for entry in state.waiting):
            begun, state, _ = starts.decide(state, now_s)
            found |= {each.run_key: now_s for each in begun}
    return found


def _may_fit(entry: Entry, room: FreeCapacity) -> bool:
    """Whether any of its plans finds as many idle GPUs of its type as it needs, wherever they are."""
    return any(room.idle_gpus(gpu_type) >= num_gpus for gpu_type, num_gpus in entry.others.ask.fewest_gpus)


def _ended_by(state: SchedulingState, now_s: float) -> set[str]:
    return {run_key for ends in state.ends.values() for _, run_key in takewhile(lambda end: end[0] <= now_s, ends)}
