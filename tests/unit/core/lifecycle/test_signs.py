"""Signs of progress are news when they change, whatever the clocks of their nodes say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.lifecycle.evidence import Bounds
from frenzy.core.lifecycle.signs import Signs, heard
from frenzy.core.values.telemetry import Heartbeat

NOW_S = 1_000_000.0


def look(before: Signs, *times_s: float, now_s: float, done: int | None = None, num_steps: int = 0) -> Signs:
    bounds = Bounds(num_ranks=2, most_steps=100, total_steps=100, until_s=now_s + 600.0)
    found = [Heartbeat(phase="saving", time_s=each, done=done) for each in times_s]
    return heard(before, found, bounds, num_steps=num_steps, now_s=now_s)


def newest_s(signs: Signs) -> float | None:
    return None if signs.newest is None else signs.newest.time_s


@given(ahead_s=st.floats(-86_400, 500), waits_s=st.floats(10, 86_400))
def test_a_sign_that_stays_the_same_grows_old_whatever_its_clock(ahead_s: float, waits_s: float) -> None:
    once = look(Signs(), NOW_S + ahead_s, now_s=NOW_S)
    assert newest_s(once) == min(NOW_S, NOW_S + ahead_s)
    assert newest_s(look(once, NOW_S + ahead_s, now_s=NOW_S + waits_s)) == newest_s(once)


@given(behind_s=st.floats(0, 86_400))
def test_a_sign_that_changes_is_new_though_its_clock_is_behind(behind_s: float) -> None:
    once = look(Signs(), NOW_S - behind_s, now_s=NOW_S)
    assert newest_s(look(once, NOW_S - behind_s + 1, now_s=NOW_S + 10)) == NOW_S + 10
    assert newest_s(look(once, NOW_S - behind_s, done=5, now_s=NOW_S + 10)) == NOW_S + 10


def test_a_node_that_is_ahead_does_not_hide_the_news_of_others() -> None:
    once = look(Signs(), NOW_S + 500, NOW_S - 20, now_s=NOW_S)
    assert newest_s(look(once, NOW_S + 500, NOW_S + 5, now_s=NOW_S + 10)) == NOW_S + 10


def test_a_sign_from_before_the_last_step_is_not_news_after_it() -> None:
    once = look(Signs(), NOW_S, now_s=NOW_S, num_steps=5)
    later = look(once, NOW_S + 30, now_s=NOW_S + 400, num_steps=9)
    assert newest_s(later) == NOW_S + 30


@pytest.mark.parametrize("time_s", [1e300, math.inf, math.nan, -1.0])
def test_a_sign_that_cannot_be_true_is_not_heard(time_s: float) -> None:
    assert newest_s(look(Signs(), time_s, now_s=NOW_S)) is None
    assert newest_s(look(Signs(), NOW_S, done=-1, now_s=NOW_S)) is None
    assert newest_s(look(Signs(), NOW_S, time_s, now_s=NOW_S)) == NOW_S
