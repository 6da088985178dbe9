"""Checkpoints that a script wrote itself: the run directory keeps where each one is, and of which step."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.lifecycle.checkpoint_manifest import SCRIPT_FORMAT, CheckpointManifest, FileEntry
from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import files
from frenzy.trainer.checkpoint.store import CheckpointStore

logger = logging.getLogger("frenzy.trainer")

_NAME: Final = "script.json"
_MOST_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCheckpoint:
    """path: a file or folder of the script's own, or a URL."""

    step: int
    path: str


def script_folder(spec: LaunchSpec) -> str:
    """Where a script is asked to write: beside the records, and of no name of theirs."""
    return f"{RunPaths(spec.run_dir).checkpoints_dir}/script"


def record(spec: LaunchSpec, checkpoint: ScriptCheckpoint, scratch: Path) -> bool:
    """Let ``checkpoint`` exist for whoever decides what follows; False where nothing is at its path."""
    if not _is_there(checkpoint.path):
        logger.warning("the script says that %r is a checkpoint, but nothing is there", checkpoint.path)
        return False
    store, file = CheckpointStore(RunPaths(spec.run_dir)), scratch / _NAME
    content = json.dumps({"path": checkpoint.path}).encode()
    file.write_bytes(content)
    store.upload(checkpoint.step, file)
    manifest = CheckpointManifest(
        step=checkpoint.step,
        layout=ParallelLayout.of(spec.plan),
        files=(FileEntry(_NAME, len(content), sha256=hashlib.sha256(content).hexdigest()),),
        save_id=uuid.uuid4().hex,
        format=SCRIPT_FORMAT,
    )
    store.commit(manifest)
    store.retain(manifest, max(2, spec.job.checkpoint.keep))
    return True


def newest(spec: LaunchSpec) -> ScriptCheckpoint | None:
    """The newest checkpoint that is still at its path; None where the script starts anew."""
    if spec.job.checkpoint.resume == "never" or not spec.job.can_move:
        return None
    store = CheckpointStore(RunPaths(spec.run_dir))
    for manifest in store.manifests():
        if manifest.format != SCRIPT_FORMAT or store.mismatch(manifest) is not None:
            continue
        if manifest.layout != ParallelLayout.of(spec.plan) and not spec.job.can_change_width:
            continue
        place = f"{RunPaths(spec.run_dir).checkpoints_dir}/{manifest.folder}/{_NAME}"
        try:
            path = str(json.loads(files.read_bytes(place, most_bytes=_MOST_BYTES))["path"])
            if _is_there(path):
                return ScriptCheckpoint(step=manifest.step, path=path)
        except (OSError, ImportError, ValueError, KeyError, TypeError, FrenzyError) as error:
            logger.warning("the checkpoint of step %d is passed over: %s", manifest.step, error)
            continue
        logger.warning("the checkpoint of step %d is no longer at %s", manifest.step, path)
    return None


def _is_there(path: str) -> bool:
    """Whether ``path`` names anything. No words name the working folder to a file system."""
    return bool(path) and files.exists(path)
