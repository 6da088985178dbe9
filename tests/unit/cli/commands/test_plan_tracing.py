"""Whoever waits for a trace sees why and how far it is; whoever does not sees nothing."""

from __future__ import annotations

import pytest

from frenzy.cli.commands.plan.tracing import TraceProgress


def test_a_trace_is_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with TraceProgress() as progress:
        progress.told(0, 4)
        progress.told(3, 4)
    shown = capsys.readouterr()
    assert "No closed form covers this model" in shown.err
    assert shown.out == ""


def test_without_a_trace_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with TraceProgress():
        pass
    assert capsys.readouterr() == ("", "")
