"""What MARP predicts is what the trainer's ranks measure, and what it requires is enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from frenzy.core.memory.calibration import Calibration
from frenzy.core.values import codec
from frenzy.trainer.measure.case import MeasureCase
from frenzy.trainer.measure.random_cases import RandomCases
from frenzy.trainer.measure.record import Measurement, read_measurements, replayed

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
CALIBRATION = ROOT / "plugins/frenzy/adapters/calibration.json"
TEXT = ROOT / "include/data/tinyshakespeare.txt"
STORED = ROOT / "tests/data/memory/virtual_score.jsonl"
TOLERANCE = 0.08


def test_stored_measurements_that_no_constant_was_fitted_to_are_predicted_within_the_tolerance() -> None:
    check(list(replayed(STORED, codec.loads(Calibration, CALIBRATION.read_text()))))


CASE = {
    "config": {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "vocab_size": 300,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "sequence_length": 512,
    "micro_batch": 4,
    "accumulation": 1,
    "dp": 1,
    "document_masks": True,
}
# Of the second's peak the masks are a third.
MASKED = [
    {"precision": "bf16", "zero_stage": 2, "checkpointing": True},
    {"precision": "fp32", "zero_stage": 1, "checkpointing": False},
]


@pytest.mark.parametrize(("family", "seed"), [("gpt2", 11), ("llama", 12)])
def test_random_small_jobs_peak_within_the_tolerance_and_survive_in_what_is_required(
    tmp_path: Path, family: str, seed: int
) -> None:
    drawn = RandomCases(families=[family], seed=seed, max_parameters=3e6, options=False).draw()
    check(measured(tmp_path, TEXT, list(islice(drawn, 2))))


def test_the_masks_of_packed_documents_are_predicted_and_what_is_required_is_enough(tmp_path: Path) -> None:
    documents = (json.dumps({"text": each}) for each in TEXT.read_text().split("\n\n"))
    (tmp_path / "documents.jsonl").write_text("\n".join(documents))
    found = measured(
        tmp_path, tmp_path / "documents.jsonl", [codec.decode(MeasureCase, CASE | each) for each in MASKED]
    )
    assert len(found) == 2
    check(found)


def check(found: list[Measurement], tolerance: float = TOLERANCE) -> None:
    assert found
    for each in found:
        assert each.error is not None, (each.case.label, each.outcome, each.detail)
        assert abs(each.error) <= tolerance, (each.case.label, each.error)


def measured(folder: Path, text: Path, cases: list[MeasureCase]) -> list[Measurement]:
    """Each case on GPUs with no more memory than is predicted as required."""
    listed, stored = folder / "cases.jsonl", folder / "measured.jsonl"
    listed.write_text("\n".join(codec.dumps(each) for each in cases))
    files = ["--calibration", CALIBRATION, "--text", text, "--case-file", listed, "--output", stored]
    ended = subprocess.run(
        [sys.executable, "-m", "frenzy.trainer.measure", "--tight", *map(str, files)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    return read_measurements(stored)
