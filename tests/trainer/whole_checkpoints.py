"""Checkpoints of a run directory, as a test looks at them."""

from __future__ import annotations

from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.checkpoint.store import CheckpointStore


def list_checkpoints(paths: RunPaths) -> tuple[CheckpointManifest, ...]:
    """Complete checkpoints, newest first; sizes are checked, digests are not."""
    return CheckpointStore(paths).manifests()


def newest_good(paths: RunPaths) -> CheckpointManifest | None:
    """The newest checkpoint whose every file has its size and digest; None when there is none."""
    store = CheckpointStore(paths)
    return next((each for each in store.manifests() if store.mismatch(each) is None), None)
