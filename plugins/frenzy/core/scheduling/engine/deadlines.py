"""Deadlines: whose is at risk, and is served before its equals; whose cannot be met, and changes nothing.

A deadline is at risk when the time until it is less than ``deadline_slack`` times what the job would take with the
plan that uses GPUs best, or has; the earliest deadline comes first. It cannot be met when the job's fastest plan
would take longer than there is time. Then the job is served as one without. Plans that it could never have, for
want of room on any node or by a quota, are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from frenzy.core.scheduling.engine.choices import Choice
from frenzy.core.scheduling.engine.claims import Claim
from frenzy.core.scheduling.engine.options import Contender
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy, Policy
from frenzy.core.scheduling.engine.queue_index import NONE_CAN, Limits
from frenzy.core.scheduling.engine.wording import about
from frenzy.core.values.scheduling_facts import RunningJob

# Before any time of submission; what is added to it keeps its order.
_FIRST_S: Final = -1e10


class _Turns(Protocol):
    def __iter__(self) -> Iterator[Contender]: ...
    def keep_to(self, limits: Limits) -> None: ...


def with_deadline(claim: Claim, now_s: float, slack: float, possible: Sequence[Choice]) -> Claim:
    """``claim`` as its deadline makes it at ``now_s``: what it must be done by, and served first if that is at risk.

    possible: what it could ever have instead of what it has.
    """
    deadline_s = claim.job.deadline_s
    if deadline_s is None:
        return claim
    left_s, fastest_s = deadline_s - now_s, fastest_of(claim, possible)
    if fastest_s > left_s:
        return claim
    # A ladder of plans is climbed in its own order, however late it is.
    by_s = math.inf if claim.in_order else left_s
    typical = claim.current or min(possible, key=lambda each: each.unit_s * each.gpus, default=None)
    if typical is None or slack * claim.run_s(typical) <= left_s:
        return claim._replace(by_s=by_s)
    return claim._replace(by_s=by_s, due_s=min(claim.due_s, _FIRST_S + deadline_s))


def fastest_of(claim: Claim, possible: Iterable[Choice]) -> float:
    """Seconds to the end with the fastest of what is ``possible``, restart included, or what it has; else infinite."""
    moved_s = min((claim.run_s(each) + claim.restart_s for each in possible), default=math.inf)
    return min(moved_s, math.inf if claim.current is None else claim.run_s(claim.current))


def is_lost(contender: Contender, now_s: float) -> bool:
    """Whether no plan of a waiting job could meet its deadline any more, if it had one and it started now."""
    deadline_s = contender.job.deadline_s
    return deadline_s is not None and now_s + min(_run_times(contender), default=math.inf) > deadline_s


def in_time(contender: Contender, now_s: float) -> Contender:
    """``contender`` with the options first that meet its deadline, in their order; then the faster ones first."""
    deadline_s = contender.job.deadline_s
    if deadline_s is None or contender.job.ordered or is_lost(contender, now_s):
        return contender
    meeting = [each for each in contender.options if now_s + each.run_s <= deadline_s]
    late = sorted((each for each in contender.options if now_s + each.run_s > deadline_s), key=lambda each: each.run_s)
    return contender.with_options((*meeting, *late))


def at_risk(waiting: Iterable[Contender], now_s: float, slack: float) -> list[Contender]:
    """Of ``waiting`` those whose deadline is at risk and can be met, by priority and deadline."""
    found = [
        each
        for each in waiting
        if each.job.deadline_s is not None
        and not is_lost(each, now_s)
        and now_s + slack * _typical_s(each) > each.job.deadline_s
    ]
    return sorted(found, key=lambda each: (-each.job.priority, each.job.deadline_s, each.job.run_key))


class RiskFirst:
    """Turns in which jobs whose deadline is at risk come before all others of their priority."""

    def __init__(self, turns: _Turns, first: list[Contender]) -> None:
        self._turns, self._first = turns, first
        self._is_first = False

    def __iter__(self) -> Iterator[Contender]:
        pending, early = list(reversed(self._first)), {each.job.run_key for each in self._first}
        for contender in self._turns:
            self._is_first = True
            while pending and pending[-1].job.priority >= contender.job.priority:
                yield pending.pop()
            self._is_first = False
            if contender.job.run_key not in early:
                yield contender
        self._is_first = True
        yield from reversed(pending)

    def keep_to(self, limits: Limits) -> None:
        """As ``Turns.keep_to``; a job at risk speaks for itself only."""
        if not self._is_first:
            self._turns.keep_to(limits)

    def close(self) -> None:
        """As ``Turns.close``, likewise."""
        self.keep_to(NONE_CAN)


def lost_sentence(contender: Contender, now_s: float) -> str | None:
    """That the deadline of a waiting job cannot be met any more; None if it can, or there is none."""
    deadline_s = contender.job.deadline_s
    if deadline_s is None or not is_lost(contender, now_s):
        return None
    fastest_s = min(_run_times(contender), default=math.inf)
    when = f"is in {about(deadline_s - now_s)}" if deadline_s > now_s else f"was {about(now_s - deadline_s)} ago"
    takes = f"its fastest plan takes {about(fastest_s)}" if fastest_s < math.inf else "it has no plan that could run"
    return f"Its deadline {when} and cannot be met: {takes}; it is served as a job without one."


def deadline_sentence(contender: Contender, now_s: float, policy: Policy) -> str | None:
    """What the deadline of a waiting job does for it; None where that is nothing, or its reason says it."""
    deadline_s = contender.job.deadline_s
    if deadline_s is None or not isinstance(policy, BackfillPolicy) or is_lost(contender, now_s):
        return None
    when = about(deadline_s - now_s)
    if at_risk([contender], now_s, policy.deadline_slack):
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


def _run_times(contender: Contender) -> list[float]:
    return [each.run_s for each in contender.options]


def _typical_s(contender: Contender) -> float:
    """With the option that takes least GPU time."""
    least = min(contender.options, key=lambda each: each.run_s * each.need.num_gpus, default=None)
    return math.inf if least is None else least.run_s
