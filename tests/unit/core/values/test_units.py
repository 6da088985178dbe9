"""Sizes, times and differences as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.values.units import GIB, MIB, format_difference, format_shortage, parse_bytes


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


@pytest.mark.parametrize(
    ("needed", "there", "told"),
    [
        (2604 * GIB, 2530 * GIB, ("2.54 TiB", "2.47 TiB", "2.55 TiB")),
        (79.46 * GIB, 79.07 * GIB, ("79.5 GiB", "79.1 GiB", "79.5 GiB")),
        (79.54 * GIB, 24 * GIB, ("79.5 GiB", "24.0 GiB", "79.6 GiB")),
        (140.1 * GIB, 140 * GIB, ("140.1 GiB", "140.0 GiB", "140.1 GiB")),
    ],
)
def test_what_is_needed_is_told_as_finely_as_it_takes_to_differ_from_what_is_there(
    needed: float, there: float, told: tuple[str, str, str]
) -> None:
    assert format_shortage(int(needed), int(there)) == told


@given(st.integers(1, 4096 * GIB), st.integers(1, 64 * GIB))
def test_what_is_said_to_be_enough_is(there: int, lacking: int) -> None:
    told = format_shortage(there + lacking, there)
    assert told.needed != told.there
    assert parse_bytes(told.enough) >= there + lacking
    assert parse_bytes(told.enough) <= max(there + 2 * lacking, 1.02 * (there + lacking), 2 * MIB)
