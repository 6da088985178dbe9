"""What MARP predicts is what the trainer's ranks measure, and what it requires is enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALIBRATION = ROOT / "plugins/frenzy/adapters/calibration.json"
TEXT = ROOT / "include/data/tinyshakespeare.txt"


@pytest.mark.parametrize(("family", "seed"), [("gpt2", 11), ("llama", 12)])
def test_random_small_jobs_peak_within_the_tolerance_and_survive_in_what_is_required(family: str, seed: int) -> None:
    command = [sys.executable, "-m", "frenzy.trainer.measure", "--tight", "--tolerance", "0.08"]
    cases = ["--cases", "2", "--seed", str(seed), "--family", family, "--max-parameters", "3e6"]
    files = ["--calibration", str(CALIBRATION), "--text", str(TEXT)]
    ended = subprocess.run(
        [*command, *cases, *files],
        env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
