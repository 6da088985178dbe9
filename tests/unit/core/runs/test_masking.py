"""Masked texts are hidden wherever they stand; everything else stays as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.adapters.job_strategies import jobs
from tests.unit.web.conftest import registration

from frenzy.core.runs.access import HIDDEN
from frenzy.core.runs.ledger import JobState, RunRecord
from frenzy.core.runs.masking import ALWAYS_SHOWN, hidden_bytes, hidden_texts, masked_at, texts, without_masked
from frenzy.core.values.codec import decode, encode
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.launch import AttemptResult

SECRET = "s3cr3t-value"


def run_of(job: TrainingJob, *masked: str) -> RunRecord:
    identity = registration("words").identity
    return RunRecord(
        run_key="k", identity=identity, job=job, state=JobState.PLANNED, created_s=0, updated_s=0, masked=masked
    )


def job_with(**fields: Any) -> TrainingJob:
    return replace(registration("words").job, **fields)


@given(job=jobs, data=st.data())
def test_a_masked_job_is_a_job_and_differs_in_the_masked_texts_only(job: TrainingJob, data: st.DataObject) -> None:
    paths = [path for path, _ in texts(job)]
    chosen = data.draw(st.sets(st.sampled_from(paths)))
    masked = masked_at(job, chosen)
    assert decode(TrainingJob, encode(masked)) == masked
    for (path, before), (_, after) in zip(texts(job), texts(masked), strict=True):
        if path in chosen and path.partition("[")[0].partition(".")[0] not in ALWAYS_SHOWN:
            assert after == HIDDEN
        elif not any(path.startswith(each) for each in chosen):
            assert after == before


def test_a_path_masks_all_below_it_except_what_everybody_sees_numbers_and_choices() -> None:
    job = job_with(env={"A": SECRET}, description=SECRET)
    masked = masked_at(job, [""])
    assert (masked.env, masked.description, masked.data.path) == ({"A": HIDDEN}, HIDDEN, HIDDEN)
    assert masked.training == job.training
    assert all(encode(masked)[name] == encode(job)[name] for name in ALWAYS_SHOWN)
    assert masked_at({"env": {"A": SECRET, "B": 1}}, ["env"]) == {"env": {"A": HIDDEN, "B": 1}}


def test_a_run_without_masked_texts_is_shown_as_it_is() -> None:
    run = run_of(job_with(env={"A": SECRET}))
    assert without_masked(run, run) is run


def test_sentences_that_repeat_a_masked_text_lose_it_and_names_stay() -> None:
    run = run_of(job_with(env={"A": SECRET, "B": "words"}), "env.A", "env.B")
    run = replace(run, reason=Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"no {SECRET}", remedy=SECRET))
    shown = without_masked(run, run)
    assert shown.job.env == {"A": HIDDEN, "B": HIDDEN}
    assert shown.reason == Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"no {HIDDEN}", remedy=HIDDEN)
    assert (shown.identity, shown.job.name) == (run.identity, "words")
    result = AttemptResult(exit_code=1, last_step=0, total_steps=1, detail=f"{SECRET}!")
    assert without_masked(result, run).detail == f"{HIDDEN}!"
    assert without_masked(f"log {SECRET}", run) == f"log {HIDDEN}"
    assert without_masked({"note": [SECRET]}, run) == {"note": [HIDDEN]}


@pytest.mark.parametrize(("text", "shown"), [("abcd", "abcdef"), ("abcde", f"{HIDDEN}f")])
def test_a_masked_text_of_few_characters_is_hidden_in_the_job_and_not_cut_out_of_sentences(
    text: str, shown: str
) -> None:
    run = run_of(job_with(env={"A": text}), "env.A")
    assert without_masked(run.job, run).env == {"A": HIDDEN}
    assert without_masked("abcdef", run) == shown
    assert without_masked({"note": text}, run) == {"note": HIDDEN}


def test_a_log_hides_each_line_of_a_masked_text_the_longest_first() -> None:
    run = run_of(job_with(env={"KEY": "first line\nlast\nanother line"}), "env.KEY")
    assert hidden_bytes(run) == (b"first line\nlast\nanother line", b"another line", b"first line")


def test_hidden_texts_are_those_at_the_paths() -> None:
    assert hidden_texts({"env": {"A": "1", "B": "2", "C": ""}, "name": "3"}, ["env.A", "env.C", "name"]) == {"1"}
