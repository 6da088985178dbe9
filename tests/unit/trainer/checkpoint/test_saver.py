"""What a saver does after a checkpoint exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.trainer.put_only_store import PutOnlyStore

from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest
from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values.launch import RunPaths
from frenzy.trainer.checkpoint.save import CheckpointSaver, Written, rank_bytes_per_s
from frenzy.trainer.checkpoint.store import CheckpointStore, list_checkpoints


class KeepingStore(PutOnlyStore):
    """A store that refuses to remove anything, with an error of its own."""

    protocol = "keeping"

    def rm_file(self, path: str, **_: Any) -> None:
        raise RuntimeError(f"AccessDenied: {path}")


fsspec.register_implementation(KeepingStore.protocol, KeepingStore, clobber=True)


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
