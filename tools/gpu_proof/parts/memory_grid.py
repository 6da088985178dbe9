"""MARP's predicted peaks against measured ones over a grid; ranks of ZeRO beyond the card are imagined.

What is measured is also kept whole, in the form of ``frenzy marp measure --output``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from frenzy.core.values import codec
from frenzy.trainer.measure.case import MeasureCase
from frenzy.trainer.measure.case_grid import grid_cases
from frenzy.trainer.measure.record import Measurement, append_measurement, read_measurements
from tools.gpu_proof.attempts import Bench, TimeIsUp
from tools.gpu_proof.figure_lines import Found
from tools.gpu_proof.parts.attempt_figures import in_gib
from tools.gpu_proof.proof import Case, Part

# Beside the lines, for tests/data/memory.
MEASURED: Final = "measured.jsonl"
_CALIBRATION: Final = Path(__file__).parents[3] / "plugins/frenzy/adapters/calibration.json"


def _cases(bench: Bench) -> Iterator[Case]:
    scale = bench.scale
    cases = grid_cases(scale.grid, name="grid", seed=0)[: scale.grid_cases]
    for first in range(0, len(cases), scale.chunk):
        chunk = cases[first : first + scale.chunk]
        yield Case(name=f"cases {first + 1} to {first + len(chunk)}", run=partial(_run, chunk))


def _run(chunk: Sequence[MeasureCase], bench: Bench, folder: Path) -> Iterator[Found]:
    folder.mkdir(parents=True, exist_ok=True)
    listed, stored = folder / "cases.jsonl", folder / MEASURED
    listed.write_text("".join(f"{codec.dumps(each)}\n" for each in chunk), encoding="utf-8")
    options = ["--device", bench.machine.gpu.kind, "--gpus", "1", "--text", str(bench.text)]
    options += ["--calibration", str(_CALIBRATION), "--case-file", str(listed), "--output", str(stored)]
    command = [sys.executable, "-m", "frenzy.trainer.measure", "--with-parent", *options]
    left_s = bench.deadline_s - bench.clock_s()
    try:
        subprocess.run(command, env=dict(os.environ), stdout=subprocess.DEVNULL, timeout=left_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeIsUp from error
    for each in read_measurements(stored):
        append_measurement(bench.output / MEASURED, each)
        yield _found(each)


def _found(measured: Measurement) -> Found:
    name = f"peak of {measured.case.label}, {measured.num_parameters / 1e6:.0f}M"
    if measured.measured_bytes is None:
        return Found(name=name, value=None, unit="GiB", detail=f"{measured.outcome}: {measured.detail}")
    predicted = None if measured.prediction is None else measured.prediction.peak_allocated_bytes
    return in_gib(name, measured.measured_bytes, predicted)


PART: Final = Part(
    name="memory grid",
    title="MARP's grid: predicted peaks against measured ones, ranks of ZeRO imagined",
    share=0.18,
    case_s=200.0,
    cases=_cases,
)
