"""Checkpoints as files: which exist, which are good, which are removed. No tensors here."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trainer.put_only_store import PutOnlyStore
from tests.trainer.whole_checkpoints import list_checkpoints, newest_good

from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest, FileEntry
from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values import codec
from frenzy.core.values.errors import PermanentError, ReasonCode
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import files
from frenzy.trainer.checkpoint.saved_state import TrainState
from frenzy.trainer.checkpoint.store import CheckpointStore, prepare_resume

LAYOUT = ParallelLayout(2, 2)


@pytest.fixture(params=["", f"{PutOnlyStore.protocol}://"], ids=["local", "remote"])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> RunPaths:
    return RunPaths(f"{request.param}{tmp_path}/run")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "scratch"


def write_files(paths: RunPaths, step: int, save_id: str = "a") -> tuple[FileEntry, ...]:
    """Files of a checkpoint without its manifest: what a save leaves that was cut short."""
    store = CheckpointStore(paths)
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(2):
            file = Path(folder) / f"rank-{rank:05d}-{save_id}.safetensors"
            file.write_bytes(f"step {step} rank {rank} of {save_id}".encode() * 10)
            store.upload(step, file)
            digest = xxhash.xxh3_128_hexdigest(file.read_bytes())
            entries.append(FileEntry(file.name, file.stat().st_size, digest))
    return tuple(entries)


def save(paths: RunPaths, step: int, keep: int = 100, save_id: str = "a") -> CheckpointManifest:
    store = CheckpointStore(paths)
    store.remove_half_written()
    manifest = CheckpointManifest(step=step, layout=LAYOUT, files=write_files(paths, step, save_id), save_id=save_id)
    store.commit(manifest)
    store.retain(manifest, keep)
    return manifest


def test_bytes_of_a_checkpoint_are_told_as_they_are_read(paths: RunPaths) -> None:
    manifest, store = save(paths, 1), CheckpointStore(paths)
    read: list[int] = []
    assert store.mismatch(manifest, read.append) is None
    assert read == [each.num_bytes for each in manifest.files]


def folder(paths: RunPaths, step: int) -> Path:
    return Path(paths.checkpoints_dir.removeprefix(f"{PutOnlyStore.protocol}://")) / f"step-{step}"


def steps(paths: RunPaths) -> list[int]:
    return [each.step for each in list_checkpoints(paths)]


def test_a_run_without_checkpoints_starts_afresh(paths: RunPaths, scratch: Path) -> None:
    assert list_checkpoints(paths) == ()
    assert newest_good(paths) is None
    assert prepare_resume(paths, scratch, LAYOUT) is None


def test_checkpoints_are_listed_newest_first_by_number(paths: RunPaths) -> None:
    for step in (9, 10, 100):
        save(paths, step)
    assert steps(paths) == [100, 10, 9]


def test_the_manifest_says_what_was_saved(paths: RunPaths) -> None:
    manifest = save(paths, 7)
    assert list_checkpoints(paths) == (manifest,)
    assert newest_good(paths) == manifest


def test_without_its_manifest_a_checkpoint_does_not_exist(paths: RunPaths, caplog: pytest.LogCaptureFixture) -> None:
    save(paths, 1)
    write_files(paths, 2)
    assert steps(paths) == [1]
    assert "checkpoint at step 2 skipped: it was never completed" in caplog.text


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes, not"),
        (lambda file: file.write_bytes(b"x" + file.read_bytes()[1:]), "does not have its digest"),
        (lambda file: file.unlink(), "is missing"),
    ],
    ids=["truncated", "altered", "missing"],
)
def test_a_damaged_file_makes_the_one_before_the_newest_good(
    paths: RunPaths, scratch: Path, caplog: pytest.LogCaptureFixture, damage: object, words: str
) -> None:
    good = save(paths, 1)
    save(paths, 2)
    damage(next(folder(paths, 2).glob("rank-00001-*")))  # type: ignore[operator]
    assert newest_good(paths) == good
    prepared = prepare_resume(paths, scratch, LAYOUT)
    assert prepared is not None and prepared.manifest == good
    assert words in caplog.text


def test_checkpoints_with_the_digests_of_before_are_verified_by_them(paths: RunPaths, scratch: Path) -> None:
    save(paths, 1)
    store = CheckpointStore(paths)
    for step in (2, 3):
        content = {each.path: (folder(paths, step) / each.path).read_bytes() for each in write_files(paths, step)}
        entries = tuple(FileEntry(n, len(c), sha256=hashlib.sha256(c).hexdigest()) for n, c in content.items())
        store.commit(CheckpointManifest(step=step, layout=LAYOUT, files=entries, save_id="a"))
    damaged = next(folder(paths, 3).glob("rank-00001-*"))
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    prepared = prepare_resume(paths, scratch, LAYOUT)
    assert prepared is not None and prepared.step == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 2}', '{"schema_version": 99}'])
def test_a_manifest_that_cannot_be_read_is_skipped_with_its_reason(
    paths: RunPaths, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    good = save(paths, 1)
    save(paths, 2)
    (folder(paths, 2) / "manifest.json").write_text(text)
    assert newest_good(paths) == good
    assert "checkpoint at step 2 skipped: CheckpointManifest" in caplog.text


@pytest.mark.parametrize("path", ["../step-1/other", "/etc/passwd", ".."])
def test_a_manifest_cannot_name_files_elsewhere(paths: RunPaths, path: str) -> None:
    manifest = save(paths, 2)
    forged = codec.dumps(manifest).replace(manifest.files[0].path, path)
    (folder(paths, 2) / "manifest.json").write_text(forged)
    assert newest_good(paths) is None


def test_a_prepared_checkpoint_is_read_where_it_lies(paths: RunPaths, scratch: Path) -> None:
    manifest = save(paths, 3)
    prepared = prepare_resume(paths, scratch, LAYOUT)
    assert prepared is not None and prepared.step == 3
    assert {place: files.size(place) for place in prepared.tensor_files} == {
        f"{paths.checkpoints_dir}/step-3/{each.path}": each.num_bytes for each in manifest.files
    }
    assert not scratch.exists()


def test_a_checkpoint_in_which_a_rank_found_damage_is_none_until_it_is_saved_again(
    paths: RunPaths, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save(paths, step)
    prepared = prepare_resume(paths, scratch, LAYOUT)
    assert prepared is not None and prepared.step == 2
    prepared.note_damage("a block does not have its digest")
    assert steps(paths) == [1]
    assert "a rank found damage, which damaged-a.txt tells" in caplog.text
    save(paths, 2, save_id="b")
    assert steps(paths) == [2, 1]
    assert not list(folder(paths, 2).glob("damaged-*"))


def test_a_file_that_is_repeated_takes_the_place_of_a_damaged_one(paths: RunPaths) -> None:
    good, _ = (save(paths, step) for step in (1, 2))
    file = good.files[0].path
    (folder(paths, 2) / file).write_bytes(b"damaged")
    CheckpointStore(paths).repeat(file, of_step=1, step=2)
    assert (folder(paths, 2) / file).read_bytes() == (folder(paths, 1) / file).read_bytes()


def test_a_plan_that_cannot_go_on_is_refused_with_the_reason(paths: RunPaths, scratch: Path) -> None:
    save(paths, 3)
    with pytest.raises(PermanentError) as caught:
        prepare_resume(paths, scratch, ParallelLayout(1, 0))
    assert caught.value.reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE


def test_half_written_files_go_at_the_next_save_before_it_needs_the_room(paths: RunPaths) -> None:
    save(paths, 1)
    write_files(paths, 2)
    CheckpointStore(paths).remove_half_written()
    assert steps(paths) == [1]
    assert not list(folder(paths, 2).glob("*"))


def test_the_checkpoint_that_is_to_stay_does(paths: RunPaths) -> None:
    manifests = [save(paths, step, keep=9) for step in (1, 2, 3, 4)]
    CheckpointStore(paths).retain(manifests[-1], 1, kept_steps=(2, 1))
    assert steps(paths) == [4, 2]


def test_a_best_checkpoint_that_was_never_written_lets_the_one_before_it_stay(paths: RunPaths) -> None:
    one = TrainState(1, kept_step=1)
    failed = TrainState(2, kept_step=2, kept_before=one.kept_after(1))
    after = TrainState(4, kept_step=2, kept_before=one.kept_after(1))
    manifests = [save(paths, step, keep=9) for step in (1, 3, 4)]
    CheckpointStore(paths).retain(manifests[-1], 1, after.kept_steps)
    assert steps(paths) == [4, 1]
    assert after.kept_after(4) == (2, 1), "the next checkpoint of the run keeps it, too"
    assert failed.kept_after(2) == (2,), "and none once the best is there"


def test_saving_a_step_again_keeps_the_first_until_the_second_is_complete(paths: RunPaths) -> None:
    first = save(paths, 5, save_id="a")
    CheckpointStore(paths).remove_half_written()
    write_files(paths, 5, save_id="b")
    assert newest_good(paths) == first
    second = save(paths, 5, save_id="b")
    assert newest_good(paths) == second
    assert {each.name for each in folder(paths, 5).iterdir()} == {"manifest.json", *(x.path for x in second.files)}


@settings(max_examples=40, deadline=None)
@given(
    saves=st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["good", "damaged", "cut short"])), max_size=12),
    keep=st.integers(1, 4),
)
def test_a_save_always_leaves_itself_and_at_most_keep(saves: list[tuple[int, str]], keep: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        paths = RunPaths(root)
        for number, (step, fate) in enumerate(saves):
            if fate == "cut short":
                before = newest_good(paths)
                write_files(paths, step, f"s{number}")
                assert newest_good(paths) == before
                continue
            manifest = save(paths, step, keep, f"s{number}")
            assert newest_good(paths) == manifest
            assert len(steps(paths)) <= keep
            assert max(steps(paths)) == step
            assert {each.name for each in Path(paths.checkpoints_dir).iterdir()} == {f"step-{s}" for s in steps(paths)}
            if fate == "damaged":
                next(folder(paths, step).glob("rank-00000-*")).write_bytes(b"")
