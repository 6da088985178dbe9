"""Public reports: what is judged, what stays open, what is refused."""

from __future__ import annotations

import pytest

from frenzy.adapters.calibration_file import default_calibration
from frenzy.evaluation.margin import Margin
from tools.accuracy.public_reports import JudgedReport, Verdict, judged, read_reports, without_contradictions
from tools.accuracy.report import DATA

REPORT = {
    "source": "a thread",
    "model": "meta-llama/Llama-2-7b-hf",
    "framework": "deepspeed",
    "gpu": "a100-80",
    "num_gpus": "8",
    "zero_stage": "3",
    "micro_batch": "1",
    "sequence_length": "512",
    "checkpointing": "true",
    "outcome": "out of memory",
}


@pytest.mark.parametrize(
    ("changed", "verdict", "agrees", "is_dangerous"),
    [
        ({}, Verdict.FITS, False, True),
        ({"outcome": "ran"}, Verdict.FITS, True, False),
        ({"num_gpus": "1"}, Verdict.FAILS, True, False),
        ({"num_gpus": "1|8"}, Verdict.UNDECIDED, False, False),
        ({"optimizer": "lamb"}, Verdict.REFUSED, False, False),
    ],
)
def test_report_is_judged_by_its_whole_range(
    changed: dict[str, str], verdict: Verdict, agrees: bool, is_dangerous: bool
) -> None:
    found = judged({**REPORT, **changed}, default_calibration(), Margin())

    assert (found.verdict, found.agrees, found.is_dangerous) == (verdict, agrees, is_dangerous)


def reported(**changed: str) -> JudgedReport:
    return judged({**REPORT, **changed}, default_calibration(), Margin())


@pytest.mark.parametrize(
    ("other", "contradicts"),
    [
        ({"outcome": "ran"}, True),
        ({"outcome": "ran", "gpu": "a100-40"}, True),
        ({"outcome": "ran", "gpu": "h200"}, False),
        ({"outcome": "ran", "sequence_length": "256"}, False),
        ({}, False),
    ],
    ids=["the same card", "a smaller card", "a larger card", "other settings", "the same outcome"],
)
def test_reports_of_the_same_settings_that_contradict_each_other_are_not_judged(
    other: dict[str, str], contradicts: bool
) -> None:
    found = without_contradictions([reported(), reported(**other, note="another thread")])

    assert [each.verdict is Verdict.CONTRADICTED for each in found] == [contradicts, contradicts]
    assert all(each.is_judged is not contradicts for each in found)


SAVING = {
    "framework": "fsdp",
    "gpu": "a100-40",
    "num_gpus": "4",
    "precision": "autocast-bf16",
    "sequence_length": "128",
    "saves_on_card": "true",
}


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ({"phase": "saving"}, Verdict.FAILS),
        ({}, Verdict.FAILS),
        ({"phase": "steps"}, Verdict.FITS),
        ({"outcome": "ran"}, Verdict.FITS),
        ({"phase": "end of epoch"}, Verdict.REFUSED),
    ],
    ids=["it failed while saving", "it does not say when", "it failed in a step", "it ran", "it failed after an epoch"],
)
def test_a_report_is_judged_in_the_phase_it_tells_of(told: dict[str, str], verdict: Verdict) -> None:
    """The steps of this run fit its cards, saving does not."""
    assert reported(**SAVING, **told).verdict is verdict


def test_a_run_that_fails_to_be_saved_does_not_contradict_one_whose_steps_ran() -> None:
    ran, failed = reported(**SAVING, outcome="ran"), reported(**SAVING)
    in_steps = reported(**SAVING, phase="steps")

    assert all(each.agrees for each in without_contradictions([ran, failed]))
    assert not any(each.is_judged for each in without_contradictions([ran, in_steps]))


def test_a_reason_beside_a_report_leaves_it_out() -> None:
    found = reported(left_out="the script trains more than is told")

    assert (found.verdict, found.why) == (Verdict.REFUSED, "the script trains more than is told")


def test_a_release_that_a_thread_tells_is_predicted_with_what_it_keeps() -> None:
    """4.41 to 4.44 keeps more copies of the logits; where nothing is kept for it the product's own stands in."""
    logits = {"model": "Llama-3-8B", "micro_batch": "4", "sequence_length": "4096"}
    own, told = reported(**logits), reported(**logits, transformers="4.41.2")

    assert told.required_bytes[0] > own.required_bytes[0]
    assert reported(**logits, transformers="4.28.1").required_bytes == own.required_bytes
    assert (
        reported(model="Qwen3-14B", transformers="4.44.2").required_bytes == reported(model="Qwen3-14B").required_bytes
    )


def test_reports_of_two_releases_do_not_contradict_each_other() -> None:
    found = without_contradictions([reported(transformers="4.28.1", outcome="ran"), reported(transformers="4.31")])

    assert all(each.verdict is Verdict.FITS for each in found)


def test_every_report_that_does_not_agree_is_explained_beside_its_row() -> None:
    found = read_reports(DATA / "reports/public_reports.csv", default_calibration(), Margin())

    assert [each.source for each in found if each.is_judged and not each.agrees and not each.explanation] == []
    assert [each.source for each in found if each.explanation and each.agrees] == []
