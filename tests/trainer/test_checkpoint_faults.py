"""What a resume finds after a save went wrong, a file rotted, or the run went back."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
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
from tests.trainer.whole_checkpoints import list_checkpoints, newest_good
from torch import distributed

from frenzy.core.values.errors import TemporaryError
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.checkpoint.save import CheckpointSaver, save_checkpoint
from frenzy.trainer.checkpoint.saved_state import TrainState
from frenzy.trainer.checkpoint.store import prepare_resume

pytestmark = pytest.mark.thorough

TWO = Setup(2, 2)


def steps(run_dir: str) -> list[int]:
    return [each.step for each in list_checkpoints(RunPaths(run_dir))]


def resumed_from(run_dir: str, scratch: Path, setup: Setup = TWO) -> tuple[int, list[float]]:
    prepared = prepare_resume(RunPaths(run_dir), scratch, setup.layout)
    assert prepared is not None
    state, losses = run_ranks(setup, resume_and_save, prepared, run_dir, (), 4)[0]
    return state.step, losses


def flip_a_byte(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("store", ["", "putonly://"], ids=["local", "remote"])
def test_damage_that_a_rank_finds_fails_the_attempt_and_the_next_passes_the_checkpoint_over(
    tmp_path: Path, store: str, stage: int
) -> None:
    run_dir, one = f"{store}{tmp_path}", TWO.on(1, stage)
    control = run_ranks(TWO, train_and_save, run_dir, (2, 3), 4)[0]
    flip_a_byte(next(tmp_path.glob("checkpoints/step-3/rank-00001-*")), at=-1)
    with pytest.raises(
        AssertionError, match=r"TemporaryError.*step 3 is damaged: rank-00001-.* does not have its digest"
    ):
        resumed_from(run_dir, tmp_path, one)
    step, losses = resumed_from(run_dir, tmp_path, one)
    assert step == 2
    assert losses == pytest.approx(control[2:], rel=0, abs=1e-6)


@pytest.mark.parametrize("store", ["", "putonly://"], ids=["local", "remote"])
def test_a_corrupt_newest_checkpoint_is_skipped_for_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    run_dir = f"{store}{tmp_path}"
    control = run_ranks(TWO, train_and_save, run_dir, (2, 3), 4)[0]
    flip_a_byte(next(tmp_path.glob("checkpoints/step-3/rank-00001-*")), at=100)
    step, losses = resumed_from(run_dir, tmp_path)
    assert (step, losses) == (2, control[2:])
    assert "checkpoint at step 3 skipped" in caplog.text
    assert "does not have its digest" in caplog.text


def train_and_die_writing(setup: Setup, run_dir: str, after_bytes: int) -> None:
    """The kernel ends the process, without a word, at the first byte beyond ``after_bytes`` of any file."""
    engine = make_engine(setup)
    with CheckpointSaver(engine, RunPaths(run_dir), setup.layout, keep=2) as saver:
        train(engine, setup, 1, 1)
        saver.begin(TrainState(1))
        train(engine, setup, 2, 2)
        saver.finish()
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (after_bytes, after_bytes))
        saver.begin(TrainState(2))
        train(engine, setup, 3, 3)
        saver.finish()


@pytest.mark.parametrize("after_bytes", [0, 1, 5000, 40_000])
def test_killed_at_any_byte_of_the_writing_resumes_from_the_checkpoint_before_and_clears_the_rest(
    tmp_path: Path, after_bytes: int
) -> None:
    run_dir = str(tmp_path)
    with pytest.raises(AssertionError):
        run_ranks(TWO, train_and_die_writing, run_dir, after_bytes)
    assert max(each.stat().st_size for each in tmp_path.glob("checkpoints/step-2/rank-*")) == after_bytes
    assert steps(run_dir) == [1]
    prepared = prepare_resume(RunPaths(run_dir), tmp_path, TWO.layout)
    assert prepared is not None
    run_ranks(TWO, resume_and_save, prepared, run_dir, (3,), 4)
    assert steps(run_dir) == [3, 1]
    assert not (tmp_path / "checkpoints/step-2").exists()


def train_while_writing(setup: Setup, run_dir: str) -> tuple[list[float], int, list[str]]:
    """Losses, the step that was pending while training, and the names of the threads that are left."""
    engine = make_engine(setup)
    with CheckpointSaver(engine, RunPaths(run_dir), setup.layout, keep=2) as saver:
        losses = train(engine, setup, 1, 2)
        saver.begin(TrainState(2))
        losses += train(engine, setup, 3, 4)
        pending = saver.pending_step
        assert not steps(run_dir) or distributed.get_rank() != 0, "no manifest before every rank has written"
        saver.finish()
        assert saver.pending_step is None
    assert pending is not None
    left = [each.name for each in threading.enumerate() if each.name.startswith("checkpoint")]
    return losses, pending, left


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_written_while_training_goes_on_is_the_state_it_was_begun_at(tmp_path: Path, stage: int) -> None:
    setup, run_dir = Setup(2, stage), str(tmp_path)
    losses, pending, left = run_ranks(setup, train_while_writing, run_dir)[0]
    assert (pending, left) == (2, [])
    assert resumed_from(run_dir, tmp_path, setup) == (2, losses[2:])


def leave_while_writing(setup: Setup, run_dir: str) -> list[str]:
    engine = make_engine(setup)
    train(engine, setup, 1, 1)
    with CheckpointSaver(engine, RunPaths(run_dir), setup.layout, keep=2) as saver:
        saver.begin(TrainState(1))
    return [each.name for each in threading.enumerate() if each.name.startswith("checkpoint")]


def test_a_run_that_fails_while_a_checkpoint_is_written_leaves_neither_thread_nor_checkpoint(tmp_path: Path) -> None:
    assert run_ranks(TWO, leave_while_writing, str(tmp_path)) == [[], []]
    assert steps(str(tmp_path)) == []


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
    with CheckpointSaver(engine, RunPaths(run_dir), setup.layout, keep=1) as saver:
        losses = train(engine, setup, 1, 1)
        saver.begin(TrainState(1))
        losses += train(engine, setup, 2, 2)
        saver.finish()
        with files_of_at_most(1000 if distributed.get_rank() == 1 else resource.RLIM_INFINITY):
            saver.begin(TrainState(2))
            losses += train(engine, setup, 3, 3)
            with pytest.raises(TemporaryError, match=r"Rank 1 could not save.*File too large"):
                saver.finish()
        saver.begin(TrainState(3))
        losses += train(engine, setup, 4, 4)
        saver.finish()
    return losses


@contextlib.contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Writing beyond fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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
    flip_a_byte(next(tmp_path.glob("checkpoints/step-4/state-*")), at=20)
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
    assert not (tmp_path / "scratch").exists(), "ranks read the store itself"


@pytest.mark.parametrize("stage", [2, 3])
def test_a_frozen_base_is_written_once_in_a_run_and_found_by_every_layout(tmp_path: Path, stage: int) -> None:
    setup, run_dir = Setup(2, stage, lora=True), str(tmp_path)
    control = run_ranks(setup, train_and_save, run_dir, (1, 2), 6, 2)[0]
    prepared = prepare_resume(RunPaths(run_dir), tmp_path, setup.layout)
    assert prepared is not None
    run_ranks(setup, resume_and_save, prepared, run_dir, (3,), 3, 2)
    found = {each.name: each.stat() for each in tmp_path.glob("checkpoints/step-*/frozen-*")}
    assert len(found) == 2, "one file for each rank, with the same names in both checkpoints"
    assert all(each.st_nlink == 2 for each in found.values())
    assert not any("frozen:" in text_of_header(each) for each in tmp_path.glob("checkpoints/step-*/rank-*"))
    other = Setup(1, 1, lora=True)
    prepared = prepare_resume(RunPaths(run_dir), tmp_path, other.layout)
    assert prepared is not None and prepared.step == 3
    _, losses = run_ranks(other, resume_and_save, prepared, run_dir, (4,), 6, 1)[0]
    assert losses == pytest.approx(control[3:], rel=0, abs=1e-6)
    assert len(list(tmp_path.glob("checkpoints/step-4/frozen-*"))) == 1, "another layout has other parts"


def text_of_header(file: Path) -> str:
    content = file.read_bytes()
    return content[8 : 8 + int.from_bytes(content[:8], "little")].decode()


def test_a_frozen_base_on_a_store_is_copied_there_and_sent_once(tmp_path: Path) -> None:
    setup, run_dir = TWO.on(2, 2), f"putonly://{tmp_path}/store"
    run_ranks(replace(setup, lora=True), train_and_save, run_dir, (1, 2), 2, 1)
    assert steps(run_dir) == [2]
    names = [each.name for each in (tmp_path / "store/checkpoints/step-2").iterdir()]
    assert len([each for each in names if each.startswith("frozen-")]) == 2
    newest = newest_good(RunPaths(run_dir))
    assert newest is not None
    assert {each.path for each in newest.files} == set(names) - {"manifest.json"}
    assert not any(each.startswith("frozen-") and newest.save_id in each for each in names)


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
