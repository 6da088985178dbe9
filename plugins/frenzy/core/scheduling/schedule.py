"""The scheduling function: the decision, and a hold with its reason for each job that goes on waiting."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import takewhile

from frenzy.core.capacity.free_capacity import FreeCapacity
from frenzy.core.scheduling.engine import elastic, starts
from frenzy.core.scheduling.engine.policy_settings import Policy
from frenzy.core.scheduling.engine.service_order import ServiceOrder
from frenzy.core.scheduling.engine.state import Entry, SchedulingState
from frenzy.core.scheduling.reasons.holds import Decision, Judge, why_this_plan
from frenzy.core.scheduling.reasons.remedies import Trials
from frenzy.core.values.scheduling_facts import Action, Hold, SchedulingFacts, Start, apply_actions

# Of the queue: whose starts are foreseen, and over how many ends of jobs.
_MAX_FORECASTS = 16
_MAX_FORECAST_ENDS = 64


def schedule(facts: SchedulingFacts | SchedulingState, now_s: float, policy: Policy) -> tuple[Action, ...]:
    """What to do now: starts and moves, then a Hold with its reason for every other job that waits, as they are served.

    A start or a resize may need GPUs that a job of the same answer gives back. Raises ValueError for a state made under
    another policy.
    """
    decision = decision_of(facts, now_s, policy)
    jobs = {job.run_key: job for job in decision.facts.queued}
    told = (
        replace(each, reason=why_this_plan(decision, jobs[each.run_key], each.plan))
        if isinstance(each, Start)
        else each
        for each in decision.actions
    )
    return (*told, *holds(decision))


def decision_of(facts: SchedulingFacts | SchedulingState, now_s: float, policy: Policy) -> Decision:
    """Actions with their record."""
    state = as_state(facts, policy)
    actions, sweep = elastic.decide(state, now_s)
    after = state.after(actions, now_s)
    return Decision(state.facts, actions, after, now_s, _in_service_order(after, sweep.line), sweep)


def decide(facts: SchedulingFacts | SchedulingState, now_s: float, policy: Policy) -> tuple[Action, ...]:
    """The starts and moves of ``schedule``, without the holds, which cost more than the decision."""
    return elastic.decide(as_state(facts, policy), now_s)[0]


def as_state(facts: SchedulingFacts | SchedulingState, policy: Policy) -> SchedulingState:
    """``facts`` as a state under ``policy``. Raises ValueError for a state made under another one."""
    if isinstance(facts, SchedulingFacts):
        return SchedulingState.of(facts, policy)
    if facts.policy != policy:
        raise ValueError(f"the state was made under {facts.policy}, not under {policy}")
    return facts


def holds(decision: Decision) -> list[Hold]:
    """One hold for each waiting job, in the order they are served."""
    judge, facts, now_s = Judge(decision), decision.facts, decision.now_s
    then = apply_actions(facts, decision.actions, now_s=now_s) if decision.actions else facts
    trials = Trials(facts, then, now_s, decision.policy)
    expected = expected_starts(decision)
    found = []
    for position, entry in enumerate(decision.served, start=1):
        key, reason = entry.run_key, judge.reason(entry)
        remedy = trials.remedy(entry, reason, decision.after.room) or reason.remedy
        if remedy is not None and key in expected:
            remedy = f"{remedy}; {judge.when(key, expected[key])}"
        if remedy != reason.remedy:
            reason = replace(reason, remedy=remedy)
        found.append(Hold(run_key=key, reason=reason, position=position, expected_start_s=expected.get(key)))
    return found


def _in_service_order(after: SchedulingState, line: ServiceOrder) -> list[Entry]:
    """All that wait. Those whose old workers are still there are not served, and come last."""
    waiting = {each.run_key: each for each in after.waiting}
    served = [each for each in line.entries if each.current is None and waiting.pop(each.run_key, None) is not None]
    return [*served, *waiting.values()]


def expected_starts(decision: Decision) -> dict[str, float]:
    """When waiting jobs are expected to start, by run key: as promised, else as ends that are expected allow."""
    if decision.sweep.moves:
        return {}
    promises = decision.sweep.own_promises.values()
    kept = {each.entry.run_key: each.start_s for each in promises if each.is_kept and each.start_s < math.inf}
    return _played_forward(decision) | kept


def _played_forward(decision: Decision) -> dict[str, float]:
    """When the front of the queue starts, by the same sweeps at one expected end after the other."""
    state, now_s, found = decision.after, decision.now_s, dict[str, float]()
    front = {each.run_key for each in decision.served[:_MAX_FORECASTS]}
    state = replace(state, waiting=tuple([each for each in state.waiting if each.run_key in front]))
    for _ in range(_MAX_FORECAST_ENDS):
        next_s = max(now_s, min((ends[0][0] for ends in state.ends.values()), default=math.inf))
        if not state.waiting or next_s == math.inf:
            break
        now_s = next_s
        state = state.without(_ended_by(state, now_s))
        if any(_may_fit(entry, state.room) for entry in state.waiting):
            begun, state, _ = starts.decide(state, now_s)
            found |= {each.run_key: now_s for each in begun}
    return found


def _may_fit(entry: Entry, room: FreeCapacity) -> bool:
    """Whether any of its plans finds as many idle GPUs of its type as it needs, wherever they are."""
    return any(room.idle_gpus(gpu_type) >= num_gpus for gpu_type, num_gpus in entry.others.ask.fewest_gpus)


def _ended_by(state: SchedulingState, now_s: float) -> set[str]:
    return {run_key for ends in state.ends.values() for _, run_key in takewhile(lambda end: end[0] <= now_s, ends)}
