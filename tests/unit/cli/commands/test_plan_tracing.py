"""Whoever waits for a trace sees why and how far it is; whoever does not sees nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.app.playing import make_job

from frenzy.cli.commands.plan.tracing import TraceProgress
from frenzy.core.values.job import LoraSpec


def test_a_trace_is_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with TraceProgress(make_job()) as progress:
        progress.told(0, 4)
        progress.told(3, 4)
    shown = capsys.readouterr()
    assert "No closed form covers this model" in shown.err
    assert "not quantised" not in shown.err
    assert shown.out == ""


def test_a_trace_of_a_model_that_is_to_be_quantised_says_at_once_that_it_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = make_job()
    with TraceProgress(replace(job, training=replace(job.training, lora=LoraSpec(quantization="nf4")))) as progress:
        progress.told(0, 4)
    assert "are not quantised. Set training.lora.quantization to none. The trace shows" in capsys.readouterr().err


def test_without_a_trace_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with TraceProgress(make_job()):
        pass
    assert capsys.readouterr() == ("", "")
