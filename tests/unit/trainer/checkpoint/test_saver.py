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
from frenzy.trainer.checkpoint.save import CheckpointSaver
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
