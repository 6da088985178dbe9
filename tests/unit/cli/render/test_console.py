"""Commands are printed as they can be typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.text import Text

from frenzy.cli.render.console import as_typed, out
from frenzy.cli.render.tables import grid

NEXT = "FRENZY_HOME=/h frenzy down, then: frenzy up"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """How the command was typed, where no PATH leads to it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [".venv/bin/frenzy", "up"])
    return ".venv/bin/frenzy"


def test_a_command_is_named_by_its_path_where_it_is_not_on_the_path(typed: str) -> None:
    assert as_typed(NEXT) == f"FRENZY_HOME=/h {typed} down, then: {typed} up"
    styled = as_typed(Text.assemble("Remedy: ", ("frenzy up", "bold"), "."))
    assert styled.plain == f"Remedy: {typed} up."
    assert any(each.style == "bold" for each in styled.spans)


def test_what_is_printed_is_so_named(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    out().print(NEXT)
    assert f"then: {typed} up" in capsys.readouterr().out


def test_a_command_in_a_cell_of_a_table_is_so_named(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    out().print(grid("", ("reason",), [("See: frenzy queue",)]))
    assert f"See: {typed} queue" in capsys.readouterr().out


def test_a_path_with_a_space_is_quoted(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/my work/.venv/bin/frenzy", "up"])
    assert as_typed("frenzy down") == "'/my work/.venv/bin/frenzy' down"
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    monkeypatch.setattr(sys, "executable", "/my work/.venv/bin/python")
    assert as_typed("frenzy down") == "'/my work/.venv/bin/frenzy' down"


def test_a_demo_names_the_command_beside_its_interpreter(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/checkout/tests/scenarios/demo.py"])
    monkeypatch.setattr(sys, "executable", "/elsewhere/.venv/bin/python")
    assert as_typed("frenzy down") == "/elsewhere/.venv/bin/frenzy down"
    monkeypatch.setattr(sys, "executable", str(Path.cwd() / ".venv/bin/python"))
    assert as_typed("frenzy down") == f"{typed} down"


def test_a_command_on_the_path_and_other_words_stay(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("Started with the frenzy command by ada.", "/home/ada/frenzy plans", "my-frenzy down", "frenzy"):
        assert as_typed(other) == other
    for other in ("in a frenzy of love", "pip install frenzy then", "frenzy planned it"):
        assert as_typed(other) == other
    there = Path(sys.prefix) / "bin"
    monkeypatch.setenv("PATH", str(there))
    if (there / "frenzy").exists():
        assert as_typed(NEXT) == NEXT
