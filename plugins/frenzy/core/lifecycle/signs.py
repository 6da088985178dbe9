"""Signs of progress beside the steps: which is news, and since when, by this machine's clock. Pure.

A sign's own time is of its node's clock, which may be ahead or behind. What changed between two looks is new whatever
its time; only what the first look finds is dated by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from frenzy.core.lifecycle.evidence import Bounds, can_be_true
from frenzy.core.values.telemetry import Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What was heard of an attempt's nodes. newest: the last news, its time by this machine's clock.

    found: at the last look. num_steps: of the attempt, at that look; -1 before the first.
    """

    newest: Heartbeat | None = None
    found: tuple[Heartbeat, ...] = ()
    num_steps: int = -1


def heard(before: Signs, found: Iterable[Heartbeat], bounds: Bounds, *, num_steps: int, now_s: float) -> Signs:
    """``before`` and one look more. Those that cannot be true are not heard.

    Nobody looks while steps come: the first look after some is a first one.
    """
    credible = tuple(each for each in found if can_be_true(each, bounds))
    newest = max((each for each in credible if each not in before.found), key=lambda each: each.time_s, default=None)
    if newest is not None:
        is_first = num_steps != before.num_steps
        newest = replace(newest, time_s=min(newest.time_s, now_s) if is_first else now_s)
    return Signs(newest=newest or before.newest, found=credible, num_steps=num_steps)
