"""What a resume reads: the ranges that its ranks need, from a folder as from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from tests.trainer.checkpoint_ranks import Setup, make_engine, run_ranks, train, train_and_save
from tests.trainer.put_only_store import PutOnlyStore

from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.checkpoint import zero_fragments
from frenzy.trainer.checkpoint.load import load_checkpoint
from frenzy.trainer.checkpoint.store import PreparedCheckpoint, prepare_resume

pytestmark = pytest.mark.thorough

ALLOWED = 1.2
LARGE = Setup(2, 2, width=256)


class CountingStore(PutOnlyStore):
    """Addressed as ``counting:///folder``; counts the bytes that it gives."""

    protocol = "counting"
    given: ClassVar[int] = 0

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        found = super().cat_file(path, *arguments, **options)
        CountingStore.given += len(found)
        return found


fsspec.register_implementation(CountingStore.protocol, CountingStore, clobber=True)


def needed_bytes(engine: Any) -> int:
    """Bytes of what a rank holds of the checkpoint: fp32 weights, the optimizer's states, frozen weights."""
    trained = sum(
        shard.numel * 4 * (1 + len(partition.flat_states()))
        for partition in zero_fragments.partitions(engine)
        for shard in partition.shards
    )
    return trained + sum(each.values.nbytes for each in zero_fragments.frozen_parameters(engine))


def load_and_count(setup: Setup, prepared: PreparedCheckpoint) -> tuple[int, int, list[float]]:
    engine = make_engine(setup)
    before = CountingStore.given
    state = load_checkpoint(engine, prepared)
    read = CountingStore.given - before
    return needed_bytes(engine), read, train(engine, setup, state.step + 1, state.step + 2)


@pytest.mark.parametrize(
    "target", [(2, 2), (1, 3), (2, 3), (4, 3), (4, 1)], ids=lambda each: "to-{}x-stage{}".format(*each)
)
@pytest.mark.parametrize("stage", [1, 3])
def test_a_rank_reads_little_more_than_it_needs(tmp_path: Path, stage: int, target: tuple[int, int]) -> None:
    run_dir, after = f"counting://{tmp_path}", LARGE.on(*target)
    control = run_ranks(LARGE.on(2, stage), train_and_save, run_dir, (1,), 3)[0]
    prepared = prepare_resume(RunPaths(run_dir), tmp_path / "scratch", after.layout)
    assert prepared is not None
    for needed, read, losses in run_ranks(after, load_and_count, prepared):
        assert needed <= read <= ALLOWED * needed
        assert losses == pytest.approx(control[1:], rel=0, abs=2e-6)


def test_frozen_weights_that_all_ranks_need_are_fetched_once_on_a_node(tmp_path: Path) -> None:
    setup, run_dir = Setup(2, 3, lora=True, width=256), f"counting://{tmp_path / 'store'}"
    control = run_ranks(setup, train_and_save, run_dir, (1,), 3)[0]
    for stage, is_near in ((2, True), (3, False)):
        after = setup.on(2, stage)
        prepared = prepare_resume(RunPaths(run_dir), tmp_path / f"scratch-{stage}", after.layout)
        assert prepared is not None
        frozen = sum(each.num_bytes for each in prepared.manifest.files if each.path.startswith("frozen-"))
        assert bool(prepared.near) is is_near
        for needed, read, losses in run_ranks(after, load_and_count, prepared):
            assert read < frozen / 4 if is_near else read <= ALLOWED * needed
            assert losses == pytest.approx(control[1:], rel=0, abs=2e-6)


def test_ranks_read_frozen_weights_from_the_store_where_their_disk_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, run_dir = Setup(2, 2, lora=True), f"counting://{tmp_path / 'store'}"
    control = run_ranks(setup, train_and_save, run_dir, (1,), 3)[0]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FRENZY_DISK_BYTES", "1000")
    prepared = prepare_resume(RunPaths(run_dir), tmp_path / "scratch", setup.layout)
    assert prepared is not None
    assert not prepared.near
    for _, _, losses in run_ranks(setup, load_and_count, prepared):
        assert losses == pytest.approx(control[1:], rel=0, abs=2e-6)
