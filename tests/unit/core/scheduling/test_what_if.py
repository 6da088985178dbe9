"""The search for the least number of GPUs that would change what becomes of a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.has_world import facts, node, plan, waiting

from frenzy.core.scheduling.reasons.what_if import gpus_wanted, least


@given(st.integers(1, 600), st.integers(0, 600))
def test_the_least_count_is_found_and_none_beyond_the_limit_is_tried(needed: int, limit: int) -> None:
    tried: list[int] = []

    def holds(count: int) -> bool:
        tried.append(count)
        return count >= needed

    assert least(holds, limit=limit) == (needed if needed <= limit else None)
    assert all(1 <= count <= min(limit, 2 * needed) for count in tried)
    assert len(tried) <= 36


@pytest.mark.parametrize(("num_jobs", "tried"), [(3, 24), (1000, 64)])
def test_no_more_gpus_are_tried_than_all_jobs_take_or_an_answer_may_ask_for(num_jobs: int, tried: int) -> None:
    jobs = [waiting(f"j{at}", plan("g", 8), plan("g", 2), plan("other", 16)) for at in range(num_jobs)]
    assert gpus_wanted(facts([node("n", "g", 1)], jobs), "g") == tried
