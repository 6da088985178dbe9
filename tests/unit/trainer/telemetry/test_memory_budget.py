"""The least memory a case runs in, against devices whose need is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.values.units import MIB
from frenzy.trainer.telemetry.memory_budget import capped, smallest_budget

BYTES = st.integers(1, 2**38)


@dataclass
class Card:
    """A device with an allocator that fails above its fraction, and a job that needs so much."""

    total_bytes: int
    needs_bytes: int = 0
    fraction: float = 1.0
    asked: list[int] = field(default_factory=list)

    def set_fraction(self, fraction: float) -> None:
        assert 0.0 < fraction <= 1.0
        self.fraction = fraction

    def train(self) -> None:
        if self.needs_bytes > self.fraction * self.total_bytes:
            raise MemoryError

    def runs(self, budget_bytes: int) -> bool:
        self.asked.append(budget_bytes)
        try:
            with capped(self, budget_bytes):
                self.train()
        except MemoryError:
            return False
        return True


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
    card = Card(total_bytes=80 * 1024 * MIB, needs_bytes=20_300 * MIB)
    found = smallest_budget(card.runs, start_bytes=20_000 * MIB, most_bytes=card.total_bytes, tolerance_bytes=100 * MIB)
    assert found is not None
    assert 20_300 * MIB <= found <= 20_400 * MIB
    assert len(card.asked) <= 6


@pytest.mark.parametrize("needs", [10, 90])
def test_whole_device_is_given_back_whether_the_case_ran_or_failed(needs: int) -> None:
    card = Card(total_bytes=100, needs_bytes=needs)
    assert card.runs(50) is (needs <= 50)
    assert card.fraction == 1.0


def test_budget_beyond_the_device_is_the_whole_device() -> None:
    card = Card(total_bytes=100, needs_bytes=100)
    assert card.runs(1000)
