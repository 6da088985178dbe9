"""Tensors in and out of files, in pieces, by parameter and range."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import torch
import xxhash
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from frenzy.core.lifecycle.checkpoint_manifest import FileEntry
from frenzy.core.values.errors import ContractError
from frenzy.trainer import files, tensor_file
from frenzy.trainer.checkpoint.fragment_index import FragmentIndex, ShardReader, tensor_key
from frenzy.trainer.checkpoint.rng import capture_rng, restore_rng, restore_rng_as_new_rank
from frenzy.trainer.tensor_file import CHUNK_BYTES, read_header, write_fragments
from frenzy.trainer.verified_file import DamagedError, block_bytes, damage_of, read_into

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]


WRITTEN = torch.randn(1_500_007)


class MisreadStore(LocalFileSystem):  # type: ignore[misc]
    """Addressed as ``misread:///folder``; the next ``num_wrong`` windows that it gives have a wrong bit."""

    protocol = "misread"
    num_wrong: ClassVar[int] = 0

    def cat_ranges(self, *arguments: Any, **options: Any) -> Any:
        found = super().cat_ranges(*arguments, **options)
        if MisreadStore.num_wrong:
            MisreadStore.num_wrong -= 1
            found[0] = bytes([found[0][0] ^ 1]) + found[0][1:]
        return found


fsspec.register_implementation(MisreadStore.protocol, MisreadStore, clobber=True)


def rank_metadata(rank: int, tp_rank: int = 0) -> dict[str, str]:
    return {"rank": str(rank), "tp_rank": str(tp_rank), "rng": "{}"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_written_is_a_safetensors_file(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(7).to(dtype)
    entry = write_fragments(tmp_path / "f", [("a", tensor), ("empty", tensor[:0])], {"rank": "0"})
    assert torch.equal(load_file(tmp_path / "f")["a"], tensor)
    assert entry.num_bytes == (tmp_path / "f").stat().st_size
    head = (tmp_path / "f").read_bytes()[: entry.head_bytes]
    assert entry.xxh3_128 == xxhash.xxh3_128_hexdigest(head)
    assert entry.head_bytes == 8 + int.from_bytes(head[:8], "little")


def test_tensors_larger_than_a_chunk_arrive_whole_and_may_change_their_format(tmp_path: Path) -> None:
    numel = tensor_file.CHUNK_BYTES // 2 + 5
    tensor = torch.randn(numel).to(torch.bfloat16)
    write_fragments(tmp_path / "f", [("x", torch.ones(3)), ("a", tensor)], {})
    stored = read_header(str(tmp_path / "f"))[0]["a"]
    target = torch.empty(numel - 3)
    stored.read_into(target, start=3)
    assert torch.equal(target, tensor[3:].float())


@pytest.mark.parametrize("content", [b"", b"\x10" + bytes(7) + b"not json at all", b"\xff" * 40])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ContractError, match="f is not a fragment file"):
        read_header(str(tmp_path / "f"))


def test_a_file_that_cannot_be_read_is_not_taken_for_another_kind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        read_header(str(tmp_path))


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    write_fragments(tmp_path / "f", [("a", torch.ones(100))], {})
    stored = read_header(str(tmp_path / "f"))[0]["a"]
    (tmp_path / "f").write_bytes((tmp_path / "f").read_bytes()[:-4])
    with pytest.raises(DamagedError, match="ends too early"):
        stored.read_into(torch.empty(100))


def test_a_file_that_its_disk_cannot_read_is_damaged() -> None:
    # Nothing is mapped at a process's first address, so its memory gives an EIO there.
    with pytest.raises(DamagedError, match="mem cannot be read at byte 0"):
        read_into("/proc/self/mem", 0, memoryview(bytearray(8)))


def test_a_block_that_comes_wrong_once_costs_no_checkpoint(tmp_path: Path) -> None:
    entry = write_fragments(tmp_path / "f", [("a", WRITTEN)], {})
    place = f"misread://{tmp_path}/f"
    stored = read_header(place, entry)[0]["a"]
    MisreadStore.num_wrong = 1
    assert torch.equal(stored.whole(), WRITTEN)
    MisreadStore.num_wrong = 2
    with pytest.raises(DamagedError, match="f does not have its digest at byte"):
        stored.whole()


@pytest.mark.parametrize("num_chunks", [1, 3])
def test_each_chunk_that_is_written_is_told(tmp_path: Path, num_chunks: int) -> None:
    told: list[int] = []
    write_fragments(tmp_path / "f", [("a", torch.ones(num_chunks * CHUNK_BYTES // 4))], {}, told.append)
    assert len(told) == 1 + num_chunks and sum(told) == (tmp_path / "f").stat().st_size


@pytest.mark.parametrize("num_shards", [1, 4])
def test_each_shard_that_is_filled_is_told(tmp_path: Path, num_shards: int) -> None:
    told: list[int] = []
    index = write_cut(tmp_path, torch.ones(40), [])
    reader = ShardReader(index=index, source_tp=1, target_tp=1, tp_rank=0, target_maps={}, on_progress=told.append)
    for start in range(0, 40, 40 // num_shards):
        reader.read("fp32", "a:w", start, torch.empty(40 // num_shards), 40)
    assert told == [160 // num_shards] * num_shards


def write_cut(folder: Path, tensor: torch.Tensor, cuts: list[int]) -> FragmentIndex:
    """``tensor`` as parameter ``w`` cut at ``cuts``, one piece in each rank's file."""
    edges = [0, *sorted(cuts), tensor.numel()]
    written = {}
    for rank, (start, end) in enumerate(zip(edges, edges[1:], strict=False)):
        file = folder / f"rank-{rank}"
        pieces = [(tensor_key("fp32", start, "a:w"), tensor[start:end])]
        written[str(file)] = write_fragments(file, pieces, rank_metadata(rank))
    return FragmentIndex.of_files(dict(reversed(written.items())), {})


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 50), max_size=6),
    window=st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted),
)
def test_any_range_is_read_from_however_many_pieces(cuts: list[int], window: list[int]) -> None:
    tensor = torch.randn(50)
    with tempfile.TemporaryDirectory() as folder:
        index = write_cut(Path(folder), tensor, cuts)
        target = torch.empty(window[1] - window[0])
        index.read("fp32", "a:w", 0, window[0], target)
        assert torch.equal(target, tensor[window[0] : window[1]])
        assert index.numel("fp32", "a:w", 0) == 50
        assert index.states_of("a:w") == {"fp32"}


def test_a_gap_between_the_pieces_is_told_and_never_filled(tmp_path: Path) -> None:
    write_cut(tmp_path, torch.ones(30), [10, 20])
    places = (str(tmp_path / "rank-0"), str(tmp_path / "rank-2"))
    index = FragmentIndex.of_files({each: FileEntry(each, 0) for each in places}, {})
    with pytest.raises(ContractError, match="lacks elements 10 to 30 of fp32 of a:w"):
        index.read("fp32", "a:w", 0, 0, torch.empty(30))
    with pytest.raises(ContractError, match="lacks elements 0 to 5 of exp_avg of a:w"):
        index.read("exp_avg", "a:w", 0, 0, torch.empty(5))


LARGE = torch.arange(5_000_007, dtype=torch.int32)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), tensor=st.sampled_from([WRITTEN, LARGE]))
def test_who_reads_a_block_finds_its_damage_and_nobody_else_does(data: st.DataObject, tensor: torch.Tensor) -> None:
    at, start = data.draw(st.integers(0, tensor.nbytes - 1)), data.draw(st.integers(0, tensor.numel()))
    block, end = block_bytes(tensor.nbytes), min(tensor.numel(), start + data.draw(st.integers(1, 200_000)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f"
        entry = write_fragments(file, [("first", torch.ones(5)), ("a", tensor)], {})
        assert damage_of(str(file), entry) is None
        stored = read_header(str(file), entry)[0]["a"]
        flip(file, stored.extent.offset_bytes + at)
        assert damage_of(str(file), entry, only_head=True) is None
        assert "does not have its digest at byte" in (damage_of(str(file), entry) or "")
        target = torch.empty(end - start, dtype=tensor.dtype)
        if end > start and at // block in range(start * 4 // block, -(-end * 4 // block)):
            with pytest.raises(DamagedError, match="f does not have its digest at byte"):
                stored.read_into(target, start)
        else:
            stored.read_into(target, start)
            assert torch.equal(target, tensor[start:end])


@pytest.mark.parametrize("at", [0, 9, 60])
def test_a_damaged_head_is_found_before_anything_else_is_read(tmp_path: Path, at: int) -> None:
    entry = write_fragments(tmp_path / "f", [("a", WRITTEN)], {})
    flip(tmp_path / "f", at)
    with pytest.raises(DamagedError, match="f does not have its digest"):
        read_header(str(tmp_path / "f"), entry)


def test_a_range_on_a_store_is_read_as_one_in_a_folder(tmp_path: Path) -> None:
    entry = write_fragments(tmp_path / "f", [("a", WRITTEN)], {})
    place = f"memory://{tmp_path}/f"
    files.upload_file(tmp_path / "f", place)
    target = torch.empty(WRITTEN.numel() - 3)
    read_header(place, entry)[0]["a"].read_into(target, 3)
    assert torch.equal(target, WRITTEN[3:])
    assert damage_of(place, entry) is None


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def draw() -> list[float]:
    return [random.random(), float(np.random.random()), float(torch.rand(()))]  # noqa: NPY002


def test_restored_generators_go_on_where_they_were() -> None:
    random.gauss(0, 1)
    saved = capture_rng()
    expected = draw()
    draw()
    restore_rng(saved)
    assert draw() == expected


def test_new_ranks_draw_numbers_of_their_own_that_follow_from_the_checkpoint() -> None:
    saved = capture_rng()
    drawn = []
    for rank in (1, 2, 1):
        restore_rng_as_new_rank(saved, rank)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert all(first != second for first, second in zip(drawn[0], drawn[1], strict=True))
