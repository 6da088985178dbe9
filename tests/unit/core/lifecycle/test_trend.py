"""The Theil-Sen line is that of its definition, by another way of computing it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.lifecycle.trend import theil_sen

points = st.dictionaries(st.integers(1, 10**7), st.integers(0, 2**40), min_size=2, max_size=48).map(
    lambda found: sorted(found.items())
)


@given(points)
def test_the_line_is_that_of_the_median_of_all_slopes(known: list[tuple[int, int]]) -> None:
    steps, values = np.array(known, dtype=np.float64).T
    rows, columns = np.triu_indices(len(steps), k=1)
    slope = np.median((values[columns] - values[rows]) / (steps[columns] - steps[rows]))
    rest = values - slope * steps
    found = theil_sen(known)
    assert (found.slope, found.span) == (slope, steps[-1] - steps[0])
    assert found.level == pytest.approx(slope * steps[-1] + np.median(rest))
    assert found.noise == pytest.approx(np.median(np.abs(values - (slope * steps + np.median(rest)))))
