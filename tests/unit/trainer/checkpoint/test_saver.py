"""What a saver does after a checkpoint exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.put_only_store import PutOnlyStore
from tests.trainer.whole_checkpoints import list_checkpoints

from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest
from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.checkpoint.fragment_index import FragmentIndex, tensor_key
from frenzy.trainer.checkpoint.save import CheckpointSaver, RankFiles, Written, parts, rank_bytes_per_s
from frenzy.trainer.checkpoint.store import CheckpointStore


class KeepingStore(PutOnlyStore):
    """A store that refuses to remove anything, with an error of its own."""

    protocol = "keeping"

    def rm_file(self, path: str, **_: Any) -> None:
        raise RuntimeError(f"AccessDenied: {path}")


class LookingStore(PutOnlyStore):
    """A store that notes how much lies in the folder of each file that it is sent."""

    protocol = "looking"
    on_the_way: ClassVar[list[int]] = []

    def put_file(self, local: str, remote: str, **options: Any) -> None:
        self.on_the_way.append(sum(each.stat().st_size for each in Path(local).parents[1].rglob("*.safetensors")))
        super().put_file(local, remote, **options)


for store in (KeepingStore, LookingStore):
    fsspec.register_implementation(store.protocol, store, clobber=True)


def test_old_checkpoints_that_cannot_be_removed_are_left_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths, layout = RunPaths(f"keeping://{tmp_path}/run"), ParallelLayout(1, 1)
    manifests = [CheckpointManifest(step=step, layout=layout, files=(), save_id=f"s{step}") for step in (1, 2)]
    CheckpointStore(paths).commit(manifests[0])
    with CheckpointSaver(None, paths, layout, keep=1) as saver:
        saver._publish(manifests[1])
        assert saver._tidied is not None
        saver._tidied.result()
    assert "AccessDenied" in caplog.text
    assert [each.step for each in list_checkpoints(paths)] == [2, 1]


@pytest.mark.parametrize(
    ("parts", "rate"),
    [
        ([(10**9, 10.0), (10**9, 20.0)], 5e7),
        ([(10**9, 10.0), (500, 0.05)], 1e8),  # a rank with nothing but a head
        ([(500, 0.05), (500, 0.05)], 0.0),
    ],
)
def test_a_part_that_only_waits_for_the_disk_tells_no_rate(parts: list[tuple[int, float]], rate: float) -> None:
    assert rank_bytes_per_s([Written((), num_bytes, took_s) for num_bytes, took_s in parts]) == rate


@given(
    sizes=st.lists(st.integers(0, 40), max_size=6),
    starts=st.integers(0, 99),
    most_bytes=st.integers(1, 200),
)
def test_parts_hold_every_element_once_and_none_is_large(sizes: list[int], starts: int, most_bytes: int) -> None:
    tensors = [(tensor_key("fp32", starts, f"m{at}"), torch.arange(size) * 1.0 + at) for at, size in enumerate(sizes)]
    found = parts(tensors, most_bytes)
    pieces: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for key, piece in (each for part in found for each in part):
        _, start, name = key.split(":", 2)
        pieces.setdefault(name, []).append((int(start), piece))
    for key, tensor in tensors:
        of_it = pieces[key.split(":", 2)[2]]
        assert torch.equal(torch.cat([piece for _, piece in of_it]), tensor)
        assert [start for start, _ in of_it] == [
            starts + sum(len(b) for _, b in of_it[:at]) for at in range(len(of_it))
        ]
    assert all(sum(piece.nbytes for _, piece in part) < most_bytes + max(most_bytes, 4) for part in found)


def test_a_rank_needs_the_room_of_a_few_parts_on_its_way_to_a_store(tmp_path: Path) -> None:
    """The disk of a pod holds no checkpoint: eight ranks of an 8B model write 90 GB."""
    paths, scratch = RunPaths(f"looking://{tmp_path}/run"), tmp_path / "scratch"
    scratch.mkdir()
    tensors = [(tensor_key("fp32", 0, "large"), torch.randn(100_000)), (tensor_key("fp32", 7, "small"), torch.ones(3))]
    files = RankFiles(
        save_id="abc",
        step=1,
        rank=0,
        tensors=tensors,
        frozen=[(tensor_key("frozen", 0, "base"), torch.randn(50_000))],
        metadata={"rank": "0", "tp_rank": "0"},
        rng="",
        state_data=None,
    )
    LookingStore.on_the_way.clear()
    with CheckpointSaver(None, paths, ParallelLayout(1, 1), 1, scratch, part_bytes=40_000) as saver:
        written = saver._write(files, None)
        manifest = CheckpointManifest(step=1, layout=ParallelLayout(1, 1), files=written.entries, save_id="abc")
        saver._publish(manifest)
        saver._newest = manifest
        again = saver._write(replace(files, step=2), None)
    assert len(LookingStore.on_the_way) == 11 + 5 + 11, "the frozen part was sent once"
    assert max(LookingStore.on_the_way) < 90_000
    assert [each.path for each in again.entries if each.path.startswith("frozen")] == [
        each.path for each in written.entries if each.path.startswith("frozen")
    ]
    places = {f"{CheckpointStore(paths).place(1)}/{each.path}": each for each in written.entries}
    index = FragmentIndex.of_files(places, {})
    for key, tensor in (*tensors, *files.frozen):
        state, start, name = key.split(":", 2)
        read = torch.empty(tensor.numel())
        index.read(state, name, 0, int(start), read)
        assert torch.equal(read, tensor)
