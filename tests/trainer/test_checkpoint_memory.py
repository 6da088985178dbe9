"""Ranks live under a hard memory limit: a checkpoint must not be what breaks it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.trainer.checkpoint_ranks import Setup, make_engine, run_ranks, train

from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.units import KIB, MIB
from frenzy.trainer.checkpoint.load import load_checkpoint
from frenzy.trainer.checkpoint.save import CheckpointSaver, save_checkpoint
from frenzy.trainer.checkpoint.saved_state import TrainState
from frenzy.trainer.checkpoint.store import PreparedCheckpoint, prepare_resume

pytestmark = pytest.mark.thorough

LEEWAY_BYTES = 16 * MIB
STATE_BYTES_PER_PARAMETER = 12


def data_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData")) * KIB


def allow_only(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + num_bytes, resource.RLIM_INFINITY))


def save_within_the_limit(setup: Setup, run_dir: str) -> int:
    engine = make_engine(setup)
    train(engine, setup, 1, 1)
    allow_only(LEEWAY_BYTES)
    return save_checkpoint(engine, RunPaths(run_dir), TrainState(1), setup.layout, keep=1).num_bytes


def save_a_copy_within_the_limit(setup: Setup, run_dir: str) -> tuple[int, int]:
    """Bytes of the checkpoint, and of the private memory that is taken more than before."""
    engine = make_engine(setup)
    train(engine, setup, 1, 1)
    before = data_bytes()
    allow_only(LEEWAY_BYTES)
    with CheckpointSaver(engine, RunPaths(run_dir), setup.layout, keep=1) as saver:
        saver.begin(TrainState(1))
        taken = data_bytes() - before
        return saver.finish().num_bytes, taken


def load_within_the_limit(setup: Setup, prepared: PreparedCheckpoint) -> int:
    engine = make_engine(setup)
    moments_bytes = prepared.manifest.num_bytes * 8 // STATE_BYTES_PER_PARAMETER
    allow_only(moments_bytes + LEEWAY_BYTES)
    return load_checkpoint(engine, prepared).step


@pytest.mark.parametrize("stage", [1, 3])
def test_saving_takes_no_memory_and_loading_only_what_the_optimizer_will_hold(tmp_path: Path, stage: int) -> None:
    setup = Setup(1, stage, width=512)
    num_bytes = run_ranks(setup, save_within_the_limit, str(tmp_path))[0]
    assert num_bytes > 4 * LEEWAY_BYTES
    prepared = prepare_resume(RunPaths(str(tmp_path)), tmp_path, setup.layout)
    assert prepared is not None
    assert run_ranks(setup, load_within_the_limit, prepared) == [1]


def test_the_copy_of_what_is_written_is_the_hosts_and_not_a_virtual_gpus(tmp_path: Path) -> None:
    num_bytes, taken = run_ranks(Setup(1, 2, width=512), save_a_copy_within_the_limit, str(tmp_path))[0]
    assert num_bytes > 4 * LEEWAY_BYTES
    assert taken < 4 * MIB
