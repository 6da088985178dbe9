"""Checkpoints in the run directory: listing, verifying, fetching, committing, retention.

Works on any fsspec store with put, get, list and delete; nothing is appended to or renamed
there. A checkpoint exists once its manifest is there, and the manifest goes first when one is
removed, so no reader ever sees half of one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import fsspec

from frenzy.core.lifecycle.resume import ParallelLayout, can_resume
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, PermanentError
from frenzy.core.values.launch import RunPaths
from frenzy.trainer.checkpoint.manifest import (
    MANIFEST_NAME,
    STATE_FORMAT,
    CheckpointManifest,
    step_folder,
    step_of_folder,
)

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCheckpoint:
    """A verified checkpoint whose files lie in the local folder ``directory``."""

    directory: Path
    manifest: CheckpointManifest

    @property
    def step(self) -> int:
        return self.manifest.step


class CheckpointStore:
    """The checkpoints folder of one run."""

    def __init__(self, paths: RunPaths) -> None:
        self._fs, self._root = fsspec.core.url_to_fs(paths.checkpoints_dir)
        protocol = self._fs.protocol
        self.is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def folder(self, step: int) -> str:
        return f"{self._root}/{step_folder(step)}"

    def local_folder(self, step: int) -> Path:
        """The checkpoint's folder as a path; only on a local store."""
        return Path(self.folder(step))

    # reading

    def manifests(self) -> tuple[CheckpointManifest, ...]:
        """Checkpoints that exist with every file at its size, newest first; digests are not read."""
        listing = self._listing()
        found = (self._manifest(step, listing) for step in sorted(_steps_in(listing, self._root), reverse=True))
        return tuple(each for each in found if each is not None)

    def _listing(self) -> dict[str, int]:
        """Every file below the root with its size."""
        self._fs.invalidate_cache()
        if not self._fs.isdir(self._root):
            return {}
        return {path: info["size"] for path, info in self._fs.find(self._root, detail=True).items()}

    def _manifest(self, step: int, listing: dict[str, int]) -> CheckpointManifest | None:
        path = f"{self.folder(step)}/{MANIFEST_NAME}"
        if path not in listing:
            _skip(step, "it was never completed")
            return None
        try:
            manifest = codec.loads(CheckpointManifest, self._fs.cat_file(path))
            _check_contents(manifest, step)
        except ContractError as error:
            _skip(step, error.reason.sentence)
            return None
        except OSError as error:
            _skip(step, f"its manifest cannot be read ({error})")
            return None
        for each in manifest.files:
            size = listing.get(f"{self.folder(step)}/{each.path}")
            if size != each.num_bytes:
                found = "is missing" if size is None else f"has {size} bytes, not {each.num_bytes}"
                _skip(step, f"{each.path} {found}")
                return None
        return manifest

    def mismatch(self, manifest: CheckpointManifest) -> str | None:
        """What is wrong with the files' content; None when every digest is right."""
        for each in manifest.files:
            try:
                with self._fs.open(f"{self.folder(manifest.step)}/{each.path}", "rb") as source:
                    digest = _digest(source)
            except OSError as error:
                return f"{each.path} cannot be read ({error})"
            if digest != each.sha256:
                return f"{each.path} does not have its digest"
        return None

    def fetch(self, manifest: CheckpointManifest, into: Path) -> str | None:
        """Copy the files to the folder ``into``; says what is wrong, None when every digest is right."""
        into.mkdir(parents=True, exist_ok=True)
        for each in manifest.files:
            try:
                with (
                    self._fs.open(f"{self.folder(manifest.step)}/{each.path}", "rb") as source,
                    (into / each.path).open("wb") as target,
                ):
                    digest = _digest(source, target)
            except OSError as error:
                return f"{each.path} cannot be fetched ({error})"
            if digest != each.sha256:
                return f"{each.path} does not have its digest"
        return None

    # writing

    def upload(self, step: int, file: Path) -> None:
        """Put a local file into the checkpoint's folder."""
        self._fs.makedirs(self.folder(step), exist_ok=True)
        self._fs.put_file(str(file), f"{self.folder(step)}/{file.name}")

    def commit(self, manifest: CheckpointManifest) -> None:
        """Put the manifest: from here on the checkpoint exists."""
        folder = self.folder(manifest.step)
        data = codec.dumps(manifest, indent=1).encode()
        self._fs.makedirs(folder, exist_ok=True)
        if not self.is_local:
            self._fs.pipe_file(f"{folder}/{MANIFEST_NAME}", data)
            return
        temporary = Path(folder) / f".{MANIFEST_NAME}.{manifest.save_id}"
        temporary.write_bytes(data)
        temporary.replace(Path(folder) / MANIFEST_NAME)

    def remove_half_written(self) -> None:
        """Remove files of saves that never got their manifest."""
        listing = self._listing()
        for step in _steps_in(listing, self._root):
            folder = self.folder(step)
            if f"{folder}/{MANIFEST_NAME}" not in listing:
                self._remove_files(path for path in listing if path.startswith(f"{folder}/"))
                self._remove_folder(step)

    def retain(self, newest: CheckpointManifest, keep: int) -> None:
        """Keep ``newest`` (just committed) and the ``keep - 1`` before it; remove everything else.

        Later steps than ``newest`` were left behind when a run went back to an earlier
        checkpoint: they go too.
        """
        before = [each for each in self.manifests() if each.step < newest.step]
        kept = {each.step: each for each in (newest, *before[: keep - 1])}
        listing = self._listing()
        for step in _steps_in(listing, self._root) - set(kept):
            folder = self.folder(step)
            files = [path for path in listing if path.startswith(f"{folder}/")]
            self._remove_files(sorted(files, key=lambda path: not path.endswith(f"/{MANIFEST_NAME}")))
            self._remove_folder(step)
        self._remove_unlisted(newest, listing)

    def _remove_unlisted(self, manifest: CheckpointManifest, listing: dict[str, int]) -> None:
        """Files of an earlier save of the same step, now that its manifest is replaced."""
        folder = self.folder(manifest.step)
        listed = {f"{folder}/{name}" for name in (MANIFEST_NAME, *(each.path for each in manifest.files))}
        self._remove_files(path for path in listing if path.startswith(f"{folder}/") and path not in listed)

    def _remove_files(self, files: Iterable[str]) -> None:
        for path in files:
            try:
                self._fs.rm_file(path)
            except FileNotFoundError:
                continue

    def _remove_folder(self, step: int) -> None:
        """Object stores have no folders to remove; a local one is empty by now."""
        if self.is_local:
            try:
                self.local_folder(step).rmdir()
            except OSError as error:
                logger.warning("folder of checkpoint at step %d left behind: %s", step, error)


def list_checkpoints(paths: RunPaths) -> tuple[CheckpointManifest, ...]:
    """Complete checkpoints of the run, newest first; sizes are checked, digests are not."""
    return CheckpointStore(paths).manifests()


def newest_good(paths: RunPaths) -> CheckpointManifest | None:
    """The newest checkpoint whose every file has its size and digest; None when there is none."""
    store = CheckpointStore(paths)
    for manifest in store.manifests():
        problem = store.mismatch(manifest)
        if problem is None:
            return manifest
        _skip(manifest.step, problem)
    return None


def prepare_resume(paths: RunPaths, scratch_dir: Path, target: ParallelLayout) -> PreparedCheckpoint | None:
    """The newest good checkpoint, with its files on local disk; None when there is none.

    Called once on each node, before the ranks start. Raises PermanentError when a checkpoint
    exists that ``target`` cannot resume from.
    """
    store = CheckpointStore(paths)
    for manifest in store.manifests():
        directory, problem = _bring_near(store, manifest, scratch_dir)
        if problem is not None:
            _skip(manifest.step, problem)
            continue
        refusal = can_resume(manifest.layout, target)
        if refusal is not None:
            raise PermanentError(refusal)
        return PreparedCheckpoint(directory=directory, manifest=manifest)
    return None


def _skip(step: int, why: str) -> None:
    logger.warning("checkpoint at step %d skipped: %s", step, why)


def _bring_near(store: CheckpointStore, manifest: CheckpointManifest, scratch_dir: Path) -> tuple[Path, str | None]:
    if store.is_local:
        return store.local_folder(manifest.step), store.mismatch(manifest)
    directory = scratch_dir / manifest.folder
    return directory, store.fetch(manifest, directory)


def _check_contents(manifest: CheckpointManifest, step: int) -> None:
    if manifest.format != STATE_FORMAT:
        raise ContractError(f"its format is {manifest.format!r}, this release reads {STATE_FORMAT!r}")
    if manifest.step != step:
        raise ContractError(f"its manifest is of step {manifest.step}")
    if any("/" in each.path or each.path.startswith(".") for each in manifest.files):
        raise ContractError("its manifest names a file outside the checkpoint's folder")


def _steps_in(listing: Iterable[str], root: str) -> set[int]:
    folders = {path[len(root) + 1 :].split("/")[0] for path in listing if path.startswith(f"{root}/")}
    return {step for step in map(step_of_folder, folders) if step is not None}


def _digest(source: IO[bytes], copy_to: IO[bytes] | None = None) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return digest.hexdigest()


__all__ = [
    "CheckpointStore",
    "PreparedCheckpoint",
    "list_checkpoints",
    "newest_good",
    "prepare_resume",
]
