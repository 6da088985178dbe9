"""A virtual GPU: its memory is measured and bounded, its speed is held."""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launching import GPT2, Case, LaunchServer, records

from frenzy.core.values.run_files import ExitCode
from frenzy.core.values.units import MIB

WIDE: dict[str, Any] = {**GPT2, "n_embd": 256, "n_layer": 4}
# Weights of WIDE: 4 blocks of 12 h^2 + 13 h, the embeddings of 260 tokens and 64 positions, a norm.
NUM_WIDE = 4 * (12 * 256**2 + 13 * 256) + (260 + 64) * 256 + 2 * 256


def test_steps_take_at_least_the_time_of_the_type(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path), data=text, flops_per_s=1e8)
    assert server.run(case).exit_code == ExitCode.DONE
    num_parameters = 2 * (12 * 32**2 + 13 * 32) + (260 + 64) * 32 + 2 * 32
    floor_s = 8 * 32 * (6 * num_parameters + 12 * 2 * 32 * 32) / 1e8
    for each in records(case):
        assert each.step_time_s >= floor_s
        assert 0 < each.throttle_s < each.step_time_s


def test_slow_machine_is_said_in_the_log(server: LaunchServer, text: str, tmp_path: Path) -> None:
    assert server.run(Case(run_dir=str(tmp_path), data=text, flops_per_s=1e15)).exit_code == ExitCode.DONE
    log = (tmp_path / "attempt-1/logs/rank-0.log").read_text()
    assert log.count("this machine is slower than the GPU type small") == 1


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_resident_memory_is_that_of_the_states(
    server: LaunchServer, text: str, tmp_path: Path, zero_stage: int
) -> None:
    case = Case(run_dir=str(tmp_path), data=text, model=WIDE, num_gpus=2, zero_stage=zero_stage, num_steps=3)
    assert server.run(case).exit_code == ExitCode.DONE
    # fp32: weights whole (a share in stage 3), the optimizer's copy and two moments shared by two.
    whole = {1: 1.0, 2: 1.0, 3: 0.5}[zero_stage]
    least = 4 * NUM_WIDE * (whole + 2 * 0.5)
    last = records(case)[-1]
    assert least < last.peaks.device_used_bytes < least + 4 * NUM_WIDE + 12 * MIB
    assert last.peaks.allocated_bytes >= last.peaks.device_used_bytes


def test_snapshots_of_a_callback_show_in_the_peaks(server: LaunchServer, text: str, tmp_path: Path) -> None:
    callback = {"path": "frenzy.trainer.callbacks:SnapshotAverage", "args": {"keep_last": 6}}
    case = Case(run_dir=str(tmp_path), data=text, model=WIDE, num_steps=8, training={"callbacks": [callback]})
    assert server.run(case).exit_code == ExitCode.DONE
    peaks = [each.peaks.allocated_bytes for each in records(case)]
    # of the middle one: now and then the heap grows by some MiB, for whatever it may be
    per_step = statistics.median(after - before for before, after in pairwise(peaks[:6]))
    assert per_step == pytest.approx(4 * NUM_WIDE, rel=0.03)
    assert peaks[7] - peaks[6] < 0.1 * 4 * NUM_WIDE


def test_averaged_weights_are_the_mean_of_the_snapshots(server: LaunchServer, text: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    def run(name: str, num_steps: int, callbacks: list[Any]) -> Any:
        case = Case(
            run_dir=str(tmp_path / name), data=text, num_steps=num_steps, num_gpus=2, training={"callbacks": callbacks}
        )
        assert server.run(case).exit_code == ExitCode.DONE
        return load_file(tmp_path / name / "model/model.safetensors")

    average = {"path": "frenzy.trainer.callbacks:SnapshotAverage", "args": {"keep_last": 2}}
    mean, last, before = run("mean", 3, [average]), run("last", 3, []), run("before", 2, [])
    for name, value in mean.items():
        assert value.sub((last[name] + before[name]) / 2).abs().max().item() < 1e-6
