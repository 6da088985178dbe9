"""The least memory a case runs in, against devices whose need is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.values.units import MIB
from frenzy.trainer.measure.least_budget import smallest_budget

BYTES = st.integers(1, 2**38)


@given(needs=BYTES, start=BYTES, spare=st.integers(0, 2**38), tolerance=st.integers(1, 2**30))
def test_found_budget_suffices_and_is_no_more_than_the_tolerance_too_high(
    needs: int, start: int, spare: int, tolerance: int
) -> None:
    asked: list[int] = []

    def runs(budget_bytes: int) -> bool:
        asked.append(budget_bytes)
        return budget_bytes >= needs

    most = needs + spare
    found = smallest_budget(runs, start_bytes=start, most_bytes=most, tolerance_bytes=tolerance)
    assert found is not None
    assert needs <= found < needs + tolerance + 1
    assert max(asked) <= most
    assert len(asked) < 100


@given(needs=BYTES, start=BYTES, short=BYTES)
def test_no_budget_is_found_where_the_whole_device_is_too_small(needs: int, start: int, short: int) -> None:
    most = max(1, needs - short)
    found = smallest_budget(lambda budget: budget >= needs + 1, start_bytes=start, most_bytes=most, tolerance_bytes=1)
    assert found is None


def test_few_runs_are_enough_when_the_start_is_close() -> None:
    asked: list[int] = []

    def runs(budget_bytes: int) -> bool:
        asked.append(budget_bytes)
        return budget_bytes >= 20_300 * MIB

    most = 80 * 1024 * MIB
    found = smallest_budget(runs, start_bytes=20_000 * MIB, most_bytes=most, tolerance_bytes=100 * MIB)
    assert found is not None
    assert 20_300 * MIB <= found <= 20_400 * MIB
    assert len(asked) <= 6
