"""Public reports: what is judged, what stays open, what is refused."""

from __future__ import annotations

import pytest

from frenzy.adapters.calibration_file import default_calibration
from frenzy.evaluation.margin import Margin
from frenzy.evaluation.public_reports import Verdict, judged

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
