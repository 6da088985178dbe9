"""The learning curve: errors on the runs that were not learned from."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.accuracy.learning import learning_curve

DATA = Path(__file__).parents[2] / "data" / "memory"


def triples(group: str, bias: float, count: int = 12) -> list[tuple[str, int, int]]:
    predicted = [10_000_000 * (index + 3) for index in range(count)]
    noise = [1 + ((index * 37) % 11 - 5) / 1000 for index in range(count)]
    return [(group, each, round(each * bias * by)) for each, by in zip(predicted, noise, strict=True)]


def test_five_runs_of_a_biased_group_shrink_the_error_on_the_rest() -> None:
    curve = learning_curve([*triples("a", 1.08), *triples("b", 0.93)])
    assert curve is not None
    assert [each.num_learned for each in curve.points] == [0, 1, 2, 3, 4, 5]
    assert curve.points[5].median_error < 0.3 * curve.points[0].median_error
    assert curve.points[5].share_above_bound < curve.points[0].share_above_bound


def test_runs_that_were_predicted_well_stay_so() -> None:
    curve = learning_curve(triples("a", 1.0))
    assert curve is not None
    assert curve.points[5].median_error == pytest.approx(curve.points[0].median_error, abs=0.003)


def test_groups_with_too_few_runs_are_left_out_and_counted() -> None:
    curve = learning_curve([*triples("a", 1.1), *triples("b", 1.1, count=6)])
    assert curve is not None
    assert (curve.num_groups, curve.num_left_out, curve.num_others) == (1, 1, 7)
    assert learning_curve(triples("b", 1.1, count=6)) is None


@given(st.permutations([*triples("a", 1.08), *triples("b", 0.95)]))
def test_the_order_of_rows_does_not_matter(rows: list[tuple[str, int, int]]) -> None:
    assert learning_curve(rows) == learning_curve([*triples("a", 1.08), *triples("b", 0.95)])


WIDTHS = {"1B": (16, 2048, 8192), "3B": (28, 3072, 8192), "8B": (32, 4096, 14336)}


def by_textbook(row: Mapping[str, str]) -> float:
    """Bytes by two textbook formulas: 18 bytes a parameter, and 34 s b h for a layer's activations."""
    layers, hidden, width = WIDTHS[row["model"]]
    dp, tp, tokens = int(row["dp"]), int(row["tp"]), 4096 * int(row["mbs"])
    parameters = layers * (4 * hidden**2 + 3 * hidden * width) + 131072 * hidden
    sharded = dp if row["zero"] == "1" else 1
    return ((6 + 12 / sharded) * parameters + 34 * tokens * hidden * layers) / tp


def test_on_published_runs_five_of_a_group_shrink_the_error_of_a_poor_formula_on_the_rest() -> None:
    with (DATA / "nanotron_ultrascale_5d_bench.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["pp"] == "1" and row["gpu_memory_gb"]]
    curve = learning_curve(
        (f"{row['model']} tp {row['tp']} zero {row['zero']}", round(by_textbook(row)), _measured(row)) for row in rows
    )
    assert curve is not None
    assert curve.num_others >= 100
    before, after = curve.points[0], curve.points[5]
    assert after.median_error < 0.8 * before.median_error


def _measured(row: Mapping[str, str]) -> int:
    return round(float(row["gpu_memory_gb"]) * 2**30)
