"""Tables fit the terminal they are shown on, and what one looks for in them is never cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from tests.unit.core.attempts import attempt

from frenzy.cli.render.plan_tables import candidates_table
from frenzy.cli.render.tables import Grid, grid, off_by, step_text
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.units import format_duration

REASON = "WAITING_FOR_QUOTA Team vision may hold 1 GPU and holds 1; a quota of 2 GPUs would let it start."
HEADINGS = ("place", "run", "job", "state", "plan", "expected_start", "queue", "reason")
ROWS = [
    ("1", "e2b024576160", "nightly-retrain", "QUEUED", "8xa100-80-z3-mb4-ckpt", "18:01:02", "research", REASON),
    ("12", "45a4cf48f1fc", "mine", "QUEUED", "1xl40s-z1-mb8", "-", "default", "-"),
]
WIDTHS = (40, 80, 120, 180, 400)


def shown(table: Grid, width: int) -> str:
    console = Console(width=width, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_name_is_cut_or_folded_at_any_width(width: int) -> None:
    text = shown(grid("Waiting", HEADINGS, ROWS, right="place"), width)
    assert [cell for row in ROWS for cell in row if cell != REASON and cell not in text] == []
    assert "".join(REASON.split()) in "".join(text.split()) or width >= 120


@pytest.mark.parametrize("width", range(130, 320, 3))
def test_beside_a_long_word_no_word_of_another_column_is_cut(width: int) -> None:
    path, value, allowed = (
        f"/tmp/{'x' * 100}/jobs.csv",
        "no plan fits " * 5,
        "24 rtx-2080-ti, 16 a100-40, 4 rtx-6000 " * 3,
    )
    lines = shown(grid("", ("field", "value", "allowed"), [(path, value, allowed)]), width).splitlines()
    assert sorted(" ".join(lines).split()) == sorted(f"field value allowed {path} {value} {allowed}".split())
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    assert max(map(len, shown(grid("Waiting", HEADINGS, ROWS), width).splitlines())) <= width


def test_a_table_that_fits_has_one_line_of_headings() -> None:
    lines = shown(grid("Waiting", HEADINGS, ROWS, right="place"), 180).splitlines()
    assert lines[1].split()[:3] == ["place", "run", "job"]
    assert lines[2].startswith("    1  e2b024576160")


def test_where_it_does_not_fit_each_cell_stands_behind_its_heading() -> None:
    lines = shown(grid("Waiting", HEADINGS, ROWS), 80).splitlines()
    assert lines[1].startswith("place 1  run e2b024576160  job nightly-retrain")
    assert any(line.startswith("  reason WAITING_FOR_QUOTA") for line in lines)


def test_where_only_its_sentences_do_not_fit_they_stand_below_aligned_columns() -> None:
    rows = [("1", "4xa100-80-z3-mb4", REASON), ("12", "1xl40s-z1-mb8", f"{REASON} {REASON}")]
    lines = shown(grid("Plans", ("rank", "plan", "reason"), rows, right="rank"), 60).splitlines()
    assert [line.rstrip() for line in lines[:4]] == [
        "Plans",
        "rank  plan",
        "   1  4xa100-80-z3-mb4",
        "  reason WAITING_FOR_QUOTA Team vision may hold 1 GPU and",
    ]
    assert any(line.startswith("  12  1xl40s-z1-mb8") for line in lines)
    assert max(map(len, lines)) <= 60


def test_what_is_not_known_of_a_plan_is_no_number() -> None:
    plan = attempt(1, ReasonCode.COMPLETED).plan
    assumed = replace(plan, memory=replace(plan.memory, is_declared=True), predicted_cost=1.0)
    unpriced = replace(plan, predicted_cost=None)
    for known, cells in ((assumed, ["-", "-"]), (unpriced, [format_duration(unpriced.predicted_run_s), "-"])):
        candidate = Candidate(plan=known, rank=1, reason=Reason(code=ReasonCode.BEST_PLAN))
        assert [each.plain for each in candidates_table("", [candidate]).rows[0]][7:9] == cells


def test_a_table_without_rows_has_its_title_and_headings() -> None:
    assert shown(grid("Waiting", ("place", "run"), []), 80).split() == ["Waiting", "place", "run"]


def test_an_attempt_that_goes_on_from_a_checkpoint_stands_at_its_step_before_its_first_own() -> None:
    begun = attempt(2, ReasonCode.COMPLETED, last_step=0)
    resumed = replace(begun, next_attempt=replace(begun.next_attempt, checkpoint_step=6))
    assert step_text(begun, 40) == "0/40"
    assert step_text(begun, 40, is_estimate=True) == "0/about 40"
    assert step_text(resumed, 40) == "6/40"
    assert step_text(replace(resumed, last_step=9), 40) == "9/40"


def test_a_rehearsal_is_off_by_nothing_since_it_predicts_nothing() -> None:
    known = replace(attempt(1, ReasonCode.COMPLETED), explained_peak_bytes=2**20)
    plan = known.plan
    rehearsal = replace(known, plan=replace(plan, memory=replace(plan.memory, is_rehearsal=True)))
    assert off_by(known) != "-"
    assert off_by(rehearsal) == "-"
