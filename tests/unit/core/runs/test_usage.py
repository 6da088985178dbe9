"""GPU time is counted once to whom it belongs, within the time that is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract import values

from frenzy.core.runs.usage import OTHERS, LeaseSpan, UsageBy, gpu_usage, usage_history

DAY_S = 86400.0
HOUR_S = 3600.0
RUNS = {name: values.run(name) for name in ("a", "b")}
RUNS["b"] = replace(RUNS["b"], owner="ben", job=replace(RUNS["b"].job, team="vision", name="other"))
PRICES = {"small": 2.0, "large": 10.0}


def span(run: str, start_s: float, end_s: float | None, *, gpus: int = 1, gpu_type: str = "small") -> LeaseSpan:
    return LeaseSpan(run_key=run, gpu_type=gpu_type, num_gpus=gpus, granted_s=start_s, ended_s=end_s)


def test_hours_and_cost_are_added_up_by_what_is_asked_for() -> None:
    spans = [span("a", 0, HOUR_S, gpus=4), span("b", 0, 2 * HOUR_S, gpu_type="large"), span("a", HOUR_S, 2 * HOUR_S)]
    found = gpu_usage(spans, RUNS, PRICES, by=UsageBy.TEAM, since_s=0, until_s=DAY_S)
    assert [(row.name, row.gpu_hours, row.cost, row.num_runs) for row in found.rows] == [
        ("default", 5.0, 10.0, 1),
        ("vision", 2.0, 20.0, 1),
    ]
    assert (found.total.gpu_hours, found.total.cost, found.total.num_runs) == (7.0, 30.0, 2)
    by_owner = gpu_usage(spans, RUNS, PRICES, by=UsageBy.OWNER, since_s=0, until_s=DAY_S)
    assert {row.name for row in by_owner.rows} == {"-", "ben"}


def test_what_lies_outside_the_time_and_what_may_not_be_seen_does_not_count() -> None:
    spans = [span("a", 0, 2 * HOUR_S), span("hidden", 0, HOUR_S), span("a", 5 * HOUR_S, None)]
    found = gpu_usage(spans, RUNS, PRICES, by=UsageBy.JOB, since_s=HOUR_S, until_s=6 * HOUR_S)
    assert found.total.gpu_hours == pytest.approx(2.0)


def test_a_type_without_a_price_leaves_the_cost_open() -> None:
    found = gpu_usage(
        [span("a", 0, HOUR_S, gpu_type="gone")], RUNS, PRICES, by=UsageBy.GPU_TYPE, since_s=0, until_s=9e9
    )
    assert [(row.name, row.gpu_hours, row.cost) for row in found.rows] == [("gone", 1.0, None)]
    assert found.total.cost is None
    unpriced = gpu_usage([span("a", 0, HOUR_S)], RUNS, {"small": None}, by=UsageBy.JOB, since_s=0, until_s=9e9)
    assert unpriced.total.cost is None


def test_a_lease_over_midnight_counts_to_each_day() -> None:
    found = gpu_usage(
        [span("a", DAY_S - HOUR_S, DAY_S + 2 * HOUR_S)], RUNS, PRICES, by=UsageBy.DAY, since_s=0, until_s=9e9
    )
    assert [(row.name, row.gpu_hours) for row in found.rows] == [("1970-01-01", 1.0), ("1970-01-02", 2.0)]


SPANS = st.builds(
    span, st.sampled_from(["a", "b"]), st.floats(0, 5 * DAY_S), st.none(), gpus=st.integers(1, 8)
).flatmap(lambda each: st.floats(0, 3 * DAY_S).map(lambda more: replace(each, ended_s=each.granted_s + more)))


@given(spans=st.lists(SPANS, max_size=8), by=st.sampled_from(UsageBy))
def test_the_rows_are_the_whole_whatever_it_is_added_up_by(spans: list[LeaseSpan], by: UsageBy) -> None:
    found = gpu_usage(spans, RUNS, PRICES, by=by, since_s=DAY_S, until_s=4 * DAY_S)
    assert sum(row.gpu_hours for row in found.rows) == pytest.approx(found.total.gpu_hours)
    assert found.total.gpu_hours <= sum(each.num_gpus for each in spans) * 72 + 1e-6


def test_a_history_has_what_each_name_had_in_each_part() -> None:
    spans = [span("a", 0, 3 * HOUR_S, gpus=2), span("b", HOUR_S, None, gpu_type="large")]
    found = usage_history(spans, RUNS, PRICES, by=UsageBy.GPU_TYPE, since_s=0, until_s=4 * HOUR_S, num_parts=4)
    assert found.edges_s == (0.0, HOUR_S, 2 * HOUR_S, 3 * HOUR_S, 4 * HOUR_S)
    assert [(each.name, each.gpu_hours, each.cost) for each in found.series] == [
        ("small", (2.0, 2.0, 2.0, 0.0), (4.0, 4.0, 4.0, 0.0)),
        ("large", (0.0, 1.0, 1.0, 1.0), (0.0, 10.0, 10.0, 10.0)),
    ]
    assert found.whole.rows == gpu_usage(spans, RUNS, PRICES, by=UsageBy.GPU_TYPE, since_s=0, until_s=4 * HOUR_S).rows


def test_names_that_had_less_are_one_line() -> None:
    runs = {f"r{each}": replace(RUNS["b"], owner=f"user-{each:02}") for each in range(12)}
    spans = [span(key, 0, HOUR_S, gpus=12 - index) for index, key in enumerate(runs)]
    spans.append(span("r11", 0, HOUR_S, gpu_type="gone"))
    found = usage_history(spans, runs, PRICES, by=UsageBy.OWNER, since_s=0, until_s=HOUR_S, num_parts=1)
    assert [each.name for each in found.series] == [*(f"user-{each:02}" for each in range(8)), OTHERS]
    others = found.whole.rows[-1]
    assert (others.gpu_hours, others.cost, others.num_runs) == (4.0 + 3.0 + 2.0 + 2.0, None, 4)


def test_a_name_like_that_of_the_rest_is_part_of_it_and_no_day_is_left_out() -> None:
    runs = {f"r{each}": replace(RUNS["b"], owner=OTHERS if each == 0 else f"user-{each:02}") for each in range(10)}
    spans = [span(key, 0, HOUR_S, gpus=10 - index) for index, key in enumerate(runs)]
    found = usage_history(spans, runs, PRICES, by=UsageBy.OWNER, since_s=0, until_s=HOUR_S, num_parts=1)
    assert [each.name for each in found.series] == [*(f"user-{each:02}" for each in range(1, 9)), OTHERS]
    assert found.whole.rows[-1].gpu_hours == 10.0 + 1.0
    days = [span("a", each * DAY_S, each * DAY_S + HOUR_S) for each in range(12)]
    by_day = usage_history(days, RUNS, PRICES, by=UsageBy.DAY, since_s=0, until_s=12 * DAY_S, num_parts=1)
    assert len(by_day.series) == 12


@given(st.lists(SPANS, max_size=6), st.integers(1, 30), st.sampled_from(list(UsageBy)))
def test_the_parts_of_a_history_are_the_whole(spans: list[LeaseSpan], num_parts: int, by: UsageBy) -> None:
    found = usage_history(spans, RUNS, PRICES, by=by, since_s=DAY_S, until_s=6 * DAY_S, num_parts=num_parts)
    whole = gpu_usage(spans, RUNS, PRICES, by=by, since_s=DAY_S, until_s=6 * DAY_S)
    assert found.whole.total == whole.total
    assert sum(sum(each.gpu_hours) for each in found.series) == pytest.approx(whole.total.gpu_hours, abs=1e-6)
    assert [each.name for each in found.series] == [row.name for row in found.whole.rows]
    assert all(len(each.gpu_hours) == len(each.cost) == num_parts for each in found.series)
