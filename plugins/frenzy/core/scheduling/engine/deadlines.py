"""Deadlines: whose is at risk, and is served before its equals; whose cannot be met, and changes nothing.

A deadline is at risk when the time until it is less than ``deadline_slack`` times what the job would take with the
plan that uses GPUs best, or has; the earliest deadline comes first. It cannot be met when the job's fastest plan
would take longer than there is time. Then the job is served as one without. Plans that it could never have, for
want of room on any node or by a quota, are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from frenzy.core.scheduling.engine.entries import Entry
from frenzy.core.scheduling.engine.plan_tables import RankedPlan
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.state import SchedulingState
from frenzy.core.scheduling.engine.wording import about
from frenzy.core.values.scheduling_facts import RunningJob

# Before any time of submission; what is added to it keeps its order.
_FIRST_S: Final = -1e10


def with_deadline(state: SchedulingState, entry: Entry, now_s: float) -> Entry:
    """``entry`` as its deadline makes it at ``now_s``: what it must be done by, and served first if that is at risk."""
    deadline_s = entry.job.deadline_s
    possible = _possible(state, entry)
    if deadline_s is None or _fastest_s(entry, possible) > deadline_s - now_s:
        return entry
    # A ladder of plans is climbed in its own order, however late it is.
    by_s = math.inf if entry.in_order else deadline_s - now_s
    is_first = _is_at_risk(entry, deadline_s - now_s, state.policy.numbers.deadline_slack, possible)
    return entry._replace(by_s=by_s, first_s=min(entry.first_s, _FIRST_S + deadline_s) if is_first else entry.first_s)


def _is_at_risk(entry: Entry, left_s: float, slack: float, possible: Iterable[RankedPlan]) -> bool:
    """Whether a deadline that can be met leaves less than ``slack`` times what the job would take as is usual."""
    typical = entry.current or min(possible, key=lambda each: each.unit_s * each.gpus, default=None)
    return typical is not None and slack * entry.run_s(typical) > left_s


def _possible(state: SchedulingState, entry: Entry) -> list[RankedPlan]:
    """What ``entry`` could ever have instead of what it has: a node has room for it, and no quota is too small."""
    return state.possible(entry, QuotaUse(state.policy.numbers.queues))


def _fastest_s(entry: Entry, possible: Iterable[RankedPlan]) -> float:
    """Seconds to the end with the fastest of what is ``possible``, restart included, or what it has; else infinite."""
    moved_s = min((entry.run_s(each) + entry.restart_s for each in possible), default=math.inf)
    return min(moved_s, math.inf if entry.current is None else entry.run_s(entry.current))


def lost_sentence(state: SchedulingState, entry: Entry, now_s: float) -> str | None:
    """That the deadline of a waiting job cannot be met any more; None if it can, or there is none."""
    deadline_s = entry.job.deadline_s
    if deadline_s is None:
        return None
    fastest_s = _fastest_s(entry, _possible(state, entry))
    if fastest_s <= deadline_s - now_s:
        return None
    when = f"is in {about(deadline_s - now_s)}" if deadline_s > now_s else f"was {about(now_s - deadline_s)} ago"
    takes = f"its fastest plan takes {about(fastest_s)}" if fastest_s < math.inf else "it has no plan that could run"
    return f"Its deadline {when} and cannot be met: {takes}; it is served as a job without one."


def deadline_sentence(state: SchedulingState, entry: Entry, now_s: float) -> str | None:
    """What the deadline of a waiting job does for it; None where that is nothing, or its reason says it."""
    deadline_s, policy = entry.job.deadline_s, state.policy
    if deadline_s is None or not isinstance(policy, BackfillPolicy) or lost_sentence(state, entry, now_s):
        return None
    when = about(deadline_s - now_s)
    if _is_at_risk(entry, deadline_s - now_s, policy.deadline_slack, _possible(state, entry)):
        return f"Its deadline in {when} is at risk: it is served before others of its priority."
    return f"Its deadline in {when} is not at risk yet: it waits in its usual place."


def running_sentence(job: RunningJob, now_s: float) -> str | None:
    """Whether a running job is expected to meet its deadline, if it has one and its end can be foreseen."""
    if job.deadline_s is None or job.expected_end_s is None:
        return None
    spare_s = job.deadline_s - max(now_s, job.expected_end_s)
    if spare_s >= 0:
        return f"It is expected to meet its deadline, {about(spare_s)} before it."
    return f"It is expected to miss its deadline by {about(-spare_s)}."
