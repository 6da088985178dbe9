"""What a resume finds after a save went wrong, a file rotted, or the run went back."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.checkpoint_ranks import (
    Setup,
    make_engine,
    resume_and_save,
    run_ranks,
    train,
    train_and_save,
)
from tests.trainer.put_only_store import DeadlyStore

from frenzy.core.values.errors import TemporaryError
from frenzy.core.values.launch import RunPaths
from frenzy.trainer.checkpoint.save import (
    TrainState,
    list_checkpoints,
    newest_good,
    prepare_resume,
    save_checkpoint,
)

pytestmark = pytest.mark.thorough

TWO = Setup(2, 2)


class Fatal(dict[str, Any]):
    """A callback's state that strikes when it is encoded: after the tensors, before the manifest."""

    def items(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


class DiskFull(dict[str, Any]):
    def items(self) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")


def steps(run_dir: str) -> list[int]:
    return [each.step for each in list_checkpoints(RunPaths(run_dir))]


def resumed_from(run_dir: str, scratch: Path, setup: Setup = TWO) -> tuple[int, list[float]]:
    prepared = prepare_resume(RunPaths(run_dir), scratch, setup.layout)
    assert prepared is not None
    state, losses = run_ranks(setup, resume_and_save, prepared, run_dir, (), 4)[0]
    return state.step, losses


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_corrupt_newest_checkpoint_is_skipped_for_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = str(tmp_path)
    control = run_ranks(TWO, train_and_save, run_dir, (2, 3), 4)[0]
    flip_a_byte(next(tmp_path.glob("checkpoints/step-3/rank-00001-*")))
    step, losses = resumed_from(run_dir, tmp_path)
    assert (step, losses) == (2, control[2:])
    assert "checkpoint at step 3 skipped" in caplog.text
    assert "does not have its digest" in caplog.text


def save_then_die(setup: Setup, run_dir: str) -> None:
    engine = make_engine(setup)
    train(engine, setup, 1, 1)
    save_checkpoint(engine, RunPaths(run_dir), TrainState(1), setup.layout, keep=2)
    train(engine, setup, 2, 2)
    save_checkpoint(engine, RunPaths(run_dir), TrainState(2, callback_states=Fatal(a=1)), setup.layout, keep=2)


def test_killed_in_mid_save_resumes_from_the_checkpoint_before_and_clears_the_rest(tmp_path: Path) -> None:
    run_dir = str(tmp_path)
    with pytest.raises(AssertionError):
        run_ranks(TWO, save_then_die, run_dir)
    assert list(tmp_path.glob("checkpoints/step-2/rank-*"))
    assert steps(run_dir) == [1]
    prepared = prepare_resume(RunPaths(run_dir), tmp_path, TWO.layout)
    assert prepared is not None
    run_ranks(TWO, resume_and_save, prepared, run_dir, (3,), 4)
    assert steps(run_dir) == [3, 1]
    assert not (tmp_path / "checkpoints/step-2").exists()


class OutOfMemory(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")


def save_without_memory(setup: Setup, run_dir: str) -> str:
    engine = make_engine(setup)
    with pytest.raises(RuntimeError) as caught:
        state = TrainState(1, callback_states=OutOfMemory(a=1))
        save_checkpoint(engine, RunPaths(run_dir), state, setup.layout, keep=1)
    return str(caught.value)


def test_running_out_of_memory_in_a_save_is_told_by_every_rank(tmp_path: Path) -> None:
    heard = run_ranks(TWO, save_without_memory, str(tmp_path))
    assert all("can't allocate memory" in each for each in heard)
    assert steps(str(tmp_path)) == []


def save_on_full_disk(setup: Setup, run_dir: str) -> list[float]:
    engine = make_engine(setup)
    losses = train(engine, setup, 1, 1)
    save_checkpoint(engine, RunPaths(run_dir), TrainState(1), setup.layout, keep=1)
    losses += train(engine, setup, 2, 2)
    with pytest.raises(TemporaryError, match=r"Rank 0 could not save.*No space left"):
        save_checkpoint(engine, RunPaths(run_dir), TrainState(2, callback_states=DiskFull(a=1)), setup.layout, keep=1)
    losses += train(engine, setup, 3, 3)
    save_checkpoint(engine, RunPaths(run_dir), TrainState(3), setup.layout, keep=1)
    return losses + train(engine, setup, 4, 4)


def test_a_save_that_fails_on_one_rank_fails_on_all_and_harms_nothing(tmp_path: Path) -> None:
    losses = run_ranks(TWO, save_on_full_disk, str(tmp_path))[0]
    assert losses == run_ranks(TWO, train_and_save, str(tmp_path / "control"), (), 4)[0]
    assert steps(str(tmp_path)) == [3]
    assert [each.name for each in (tmp_path / "checkpoints").iterdir()] == ["step-3"]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    run_ranks(TWO, train_and_save, str(tmp_path), (1, 2, 3, 4), 4, 2)
    assert steps(str(tmp_path)) == [4, 3]
    assert sorted(each.name for each in (tmp_path / "checkpoints").iterdir()) == ["step-3", "step-4"]


def test_a_run_that_went_back_leaves_no_later_checkpoint_behind(tmp_path: Path) -> None:
    run_dir = str(tmp_path)
    run_ranks(TWO, train_and_save, run_dir, (1, 4), 4)
    flip_a_byte(next(tmp_path.glob("checkpoints/step-4/state-*")))
    prepared = prepare_resume(RunPaths(run_dir), tmp_path, TWO.layout)
    assert prepared is not None and prepared.step == 1
    run_ranks(TWO, resume_and_save, prepared, run_dir, (2,), 2, 1)
    newest = newest_good(RunPaths(run_dir))
    assert newest is not None and newest.step == 2
    assert steps(run_dir) == [2]


def test_saving_a_step_again_replaces_it_at_the_moment_of_its_manifest(tmp_path: Path) -> None:
    run_dir = str(tmp_path)
    run_ranks(TWO, train_and_save, run_dir, (3,), 3, 1)
    first = newest_good(RunPaths(run_dir))
    prepared = prepare_resume(RunPaths(run_dir), tmp_path, TWO.layout)
    assert prepared is not None
    run_ranks(TWO, resume_and_save, prepared, run_dir, (3,), 3, 1)
    second = newest_good(RunPaths(run_dir))
    assert first is not None and second is not None and first.save_id != second.save_id
    names = {each.name for each in (tmp_path / "checkpoints/step-3").iterdir()}
    assert names == {"manifest.json", *(each.path for each in second.files)}


def test_a_remote_run_directory_needs_neither_append_nor_rename(tmp_path: Path) -> None:
    run_dir = f"putonly://{tmp_path}/store"
    control = run_ranks(TWO, train_and_save, run_dir, (1, 2), 4, 1)[0]
    assert steps(run_dir) == [2]
    one = TWO.on(1, 3)
    step, losses = resumed_from(run_dir, tmp_path / "scratch", one)
    assert step == 2
    assert losses == pytest.approx(control[2:], rel=0, abs=1e-6)
    assert (tmp_path / "scratch" / "step-2").is_dir()


@pytest.mark.parametrize("victim", ["step-2/rank-00001", "step-2/state", "step-2/manifest"])
def test_killed_at_any_put_the_checkpoint_before_is_still_the_newest_good(
    tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeadlyStore, "victim", victim)
    run_dir = f"deadly://{tmp_path}"
    with pytest.raises(AssertionError):
        run_ranks(TWO, train_and_save, run_dir, (1, 2), 2, 1)
    newest = newest_good(RunPaths(run_dir))
    assert newest is not None and newest.step == 1
