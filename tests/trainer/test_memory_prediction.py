"""What MARP predicts is what the trainer's ranks measure, and what it requires is enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
CALIBRATION = ROOT / "plugins/frenzy/adapters/calibration.json"
TEXT = ROOT / "include/data/tinyshakespeare.txt"


STORED = ROOT / "tests/data/memory/virtual_score.jsonl"


def test_stored_measurements_that_no_constant_was_fitted_to_are_predicted_within_the_tolerance() -> None:
    ended = measured("--replay", str(STORED), "--tolerance", "0.08")
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]


@pytest.mark.parametrize(("family", "seed"), [("gpt2", 11), ("llama", 12)])
def test_random_small_jobs_peak_within_the_tolerance_and_survive_in_what_is_required(family: str, seed: int) -> None:
    cases = ["--cases", "2", "--seed", str(seed), "--family", family, "--max-parameters", "3e6"]
    ended = measured("--tight", "--tolerance", "0.08", "--text", str(TEXT), *cases)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "frenzy.trainer.measure", "--calibration", str(CALIBRATION), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
