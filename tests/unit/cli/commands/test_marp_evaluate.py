"""``frenzy marp evaluate FILE``: a user's own file of runs, with the columns of a published data set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frenzy.cli.main import run
from frenzy.settings import CHECKOUT

FMS = CHECKOUT / "tests/data/memory/fms_a100_80gb.csv"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = FMS.read_text(encoding="utf-8").splitlines()
    mine = tmp_path / "mine.csv"
    mine.write_text("\n".join(lines[:8]) + "\n", encoding="utf-8")
    return mine


def test_a_file_of_ones_own_is_scored_and_held_to_the_goals(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["marp", "evaluate", str(file), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert [each["rows"] for each in found["datasets"]] == [7]
    assert {each["is_met"] for each in found["goals"]} <= {True, None}


def test_the_tables_name_every_goal(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["marp", "evaluate", str(file)]) == 0

    assert "grade A, worst error of the peak" in capsys.readouterr().out


def test_a_file_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["marp", "evaluate"]) == 2
