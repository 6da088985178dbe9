"""How long the ranks of a node may take that are told to end from outside."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.adapters.k8s.pod_examples import A100, node, spec

from frenzy.core.lifecycle.stop_grace import stop_grace_s
from frenzy.core.values.resource_plan import CHECKPOINT_STAGING, HostTerm, ResourcePlan


def plan(staged_bytes: int | None, step_time_s: float = 1.0) -> ResourcePlan:
    given_plan = spec(A100, node("a", A100, 4)).plan
    terms = () if staged_bytes is None else (HostTerm(CHECKPOINT_STAGING, staged_bytes),)
    return replace(given_plan, step_time_s=step_time_s, memory=replace(given_plan.memory, host_terms=terms))


def grace_s(of: ResourcePlan, *, num_ranks: int = 1, rate: float | None = None) -> float:
    return stop_grace_s(of, num_ranks=num_ranks, bytes_per_s=rate, least_s=30.0, most_s=900.0)


def test_a_plan_that_does_not_say_what_it_saves_has_the_least() -> None:
    assert grace_s(plan(None, step_time_s=600.0)) == 30.0


def test_two_steps_and_two_writes_at_the_measured_rate_are_added() -> None:
    assert grace_s(plan(10**9, step_time_s=3.0), rate=1e8) == 30.0 + 2 * 3.0 + 2 * 10.0


def test_what_is_saved_without_a_copy_takes_as_long() -> None:
    uncopied = replace(plan(None), memory=replace(plan(None).memory, uncopied_bytes=10**9))
    assert grace_s(uncopied, rate=1e8) == grace_s(plan(10**9), rate=1e8)


def test_unmeasured_ranks_of_a_node_share_a_volume() -> None:
    assert grace_s(plan(10**9), num_ranks=4) == 30.0 + 2.0 + 2 * 40.0


@given(
    staged=st.integers(0, 10**13),
    rate=st.floats(allow_nan=True, allow_infinity=True) | st.none(),
    step_s=st.floats(0.0, 1e4),
    num_ranks=st.integers(1, 16),
)
def test_whatever_a_run_says_of_itself_grace_stays_within_its_bounds(
    staged: int, rate: float | None, step_s: float, num_ranks: int
) -> None:
    found = grace_s(plan(staged, step_s), num_ranks=num_ranks, rate=rate)
    assert math.isfinite(found) and 30.0 <= found <= 930.0
