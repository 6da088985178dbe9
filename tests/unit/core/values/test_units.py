"""Sizes, times and differences as people read them."""

from __future__ import annotations

import pytest

from frenzy.core.values.units import format_difference


@pytest.mark.parametrize(
    ("measured", "predicted", "words"),
    [
        (41.1, 37.3, "+10.2 %"),
        (297, 310, "-4.2 %"),
        (10_000, 10_001, "0.0 %"),
        (35, 10, "3.5 times"),
        (190, 10, "19 times"),
    ],
)
def test_more_than_was_predicted_is_a_plus_and_far_more_a_number_of_times(
    measured: float, predicted: float, words: str
) -> None:
    assert format_difference(measured, predicted) == words
