"""``frenzy marp measure`` on virtual GPUs: real runs, recorded once, in pieces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.trainer.launching import until

from frenzy.trainer.measure.record import Outcome, read_measurements

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
GPT2 = {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 2, "vocab_size": 4096, "n_positions": 128}
# Large enough that what lies outside tensors does not decide.
GRID = {"models": [GPT2], "sequence_length": [128], "precision": ["fp32"], "micro_batch": [8], "dp": [2]}


def command(folder: Path, grid: dict[str, Any], *options: str) -> list[str]:
    file = folder / "grid.yaml"
    file.write_text(yaml.safe_dump(grid))
    return [
        *(sys.executable, "-m", "frenzy.cli.main", "marp", "measure", "--device", "virtual", "--grid", str(file))
    ] + [*options]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}


def measured(folder: Path, grid: dict[str, Any], *options: str) -> dict[str, Any]:
    """The JSON of the command, which must succeed."""
    ended = subprocess.run(
        command(folder, grid, "--json", *options),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def test_rank_0_among_imagined_ranks_holds_what_it_holds_among_real_ones(tmp_path: Path) -> None:
    grid = {**GRID, "zero_stage": [1, 3]}
    real = measured(tmp_path, grid, "--gpus", "2")["measurements"]
    imagined = measured(tmp_path, grid, "--gpus", "1")["measurements"]
    assert [each["imagined_ranks"] for each in real + imagined] == [False, False, True, True]
    for alone, together in zip(imagined, real, strict=True):
        assert alone["case"] == together["case"]
        assert abs(alone["measured_bytes"] / together["measured_bytes"] - 1) < 0.1


def test_least_memory_is_found_between_what_fails_and_what_is_required(tmp_path: Path) -> None:
    (found,) = measured(tmp_path, {**GRID, "dp": [1]}, "--bisect")["measurements"]
    assert found["outcome"] == Outcome.RAN
    assert 0.9 * found["measured_bytes"] < found["needed_bytes"] <= found["prediction"]["required_bytes"]
    assert found["versions"]["torch"]


def test_killed_measurement_goes_on_where_it_was_and_leaves_no_process(tmp_path: Path) -> None:
    output = tmp_path / "measured.jsonl"
    grid = {**GRID, "dp": [1], "micro_batch": [1, 2]}
    given = command(tmp_path, grid, "--output", str(output))
    with subprocess.Popen(given, env=environment(), stdout=subprocess.DEVNULL) as process:
        until(lambda: len(read_measurements(output)) == 1, timeout_s=300)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    before = output.read_bytes()
    told = measured(tmp_path, grid, "--output", str(output))
    assert output.read_bytes().startswith(before)
    assert len(output.read_text().splitlines()) == len(told["measurements"]) == 2
    again = measured(tmp_path, grid, "--output", str(output))
    assert again == told
