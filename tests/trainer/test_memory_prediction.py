"""What MARP predicts is what the trainer's ranks measure, and what it requires is enough."""

from __future__ import annotations

import json
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
def test_random_small_jobs_peak_within_the_tolerance_and_survive_in_what_is_required(family: str, seed: int) -> None:
    cases = ["--cases", "2", "--seed", str(seed), "--family", family, "--max-parameters", "3e6"]
    ended = measured("--tight", "--tolerance", "0.08", "--text", str(TEXT), *cases)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]


def test_the_masks_of_packed_documents_are_predicted_and_what_is_required_is_enough(tmp_path: Path) -> None:
    documents = (json.dumps({"text": each}) for each in TEXT.read_text().split("\n\n"))
    (tmp_path / "documents.jsonl").write_text("\n".join(documents))
    (tmp_path / "cases.jsonl").write_text("\n".join(json.dumps(CASE | each) for each in MASKED))
    files = ["--text", str(tmp_path / "documents.jsonl"), "--case-file", str(tmp_path / "cases.jsonl")]
    ended = measured("--tight", "--tolerance", "0.08", *files)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert "2 cases" in ended.stdout


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "frenzy.trainer.measure", "--calibration", str(CALIBRATION), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
