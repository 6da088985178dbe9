"""Checkpoints in the run directory: listing, verifying, fetching, committing, retention.

Works on any fsspec store with put, get, list and delete; nothing is appended to or renamed
there. A checkpoint exists once its manifest is there, and the manifest goes first when one is
removed, so no reader ever sees half of one.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final, TypeVar

from frenzy.core.lifecycle.checkpoint_manifest import (
    FROZEN_FILES,
    MANIFEST_NAME,
    CheckpointManifest,
    FileEntry,
    complete_manifest,
    step_folder,
    step_of_folder,
)
from frenzy.core.lifecycle.resume import ParallelLayout, can_resume
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, PermanentError
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import files, stores
from frenzy.trainer.disk_room import has_room
from frenzy.trainer.files import OnProgress, put_file
from frenzy.trainer.heartbeats import counting
from frenzy.trainer.verified_file import damage_of, xxh3_128

logger = logging.getLogger(__name__)
T = TypeVar("T")

_CHUNK_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCheckpoint:
    """A checkpoint to load, whose tensors are verified as they are read.

    folder: where it is, a path or a URL. near: files that lie on this machine, too, and where, by their name.
    """

    folder: str
    manifest: CheckpointManifest
    near: Mapping[str, str] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def tensor_files(self) -> dict[str, FileEntry]:
        """Where its tensors are, and what the manifest says of each place."""
        found = (each for each in self.manifest.files if each.path.endswith(".safetensors"))
        return {self.near.get(each.path, f"{self.folder}/{each.path}"): each for each in found}

    @property
    def state_file(self) -> str:
        """Where it keeps what is not a tensor."""
        return f"{self.folder}/state-{self.manifest.save_id}.json"

    def note_damage(self, detail: str) -> None:
        """Let it be no checkpoint any more, for a rank found it damaged."""
        files.write_text(f"{self.folder}/{self.manifest.damage_note}", detail)


class CheckpointStore:
    """The checkpoints folder of one run."""

    def __init__(self, paths: RunPaths) -> None:
        self._fs, self._root = stores.opened(paths.checkpoints_dir)
        self._place = paths.checkpoints_dir
        protocol = self._fs.protocol
        self.is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def folder(self, step: int) -> str:
        return f"{self._root}/{step_folder(step)}"

    def place(self, step: int) -> str:
        """The checkpoint's folder, a path or a URL."""
        return f"{self._place}/{step_folder(step)}"

    def local_folder(self, step: int) -> Path:
        """The checkpoint's folder as a path; only on a local store."""
        return Path(self.folder(step))

    # reading

    def manifests(self) -> tuple[CheckpointManifest, ...]:
        """Checkpoints that exist with every file at its size, newest first; digests are not read."""
        found = (self._manifest(step, sizes) for step, sizes in sorted(self._sizes().items(), reverse=True))
        return tuple(each for each in found if each is not None)

    def _sizes(self) -> dict[int, dict[str, int]]:
        """Of each step with a folder the size of every file, by its path in that folder."""
        self._fs.invalidate_cache()
        found: dict[int, dict[str, int]] = {}
        files = self._fs.find(self._root, detail=True) if self._fs.isdir(self._root) else {}
        for path, info in files.items():
            folder, _, name = path.removeprefix(f"{self._root}/").partition("/")
            step = step_of_folder(folder)
            if step is not None:
                found.setdefault(step, {})[name] = info["size"]
        return found

    def _manifest(self, step: int, sizes: Mapping[str, int]) -> CheckpointManifest | None:
        try:
            place = f"{self.place(step)}/{MANIFEST_NAME}"
            text = self._patiently(partial(files.read_bytes, place)) if MANIFEST_NAME in sizes else None
            return complete_manifest(text, step, sizes)
        except ContractError as error:
            _skip(step, error.reason.sentence)
        except OSError as error:
            self._raise_if_away(error)
            _skip(step, f"its manifest cannot be read ({error})")
        return None

    def _patiently(self, read: Callable[[], T]) -> T:
        """A disk that fails once will again; a store may be away."""
        return read() if self.is_local else files.patiently(read)

    def _raise_if_away(self, error: OSError) -> None:
        """A store that does not answer says nothing of a checkpoint: passing it over would train from further back."""
        if not self.is_local and not isinstance(error, FileNotFoundError):
            raise error

    def mismatch(
        self, manifest: CheckpointManifest, on_progress: OnProgress = lambda _: None, *, whole: bool = True
    ) -> str | None:
        """What is wrong with the files' content; None when every digest is right. on_progress: told bytes read.

        whole: read all of it; else only the heads of files with a digest for each block, which who reads one verifies.
        """
        for each in manifest.files:
            try:
                problem = self._patiently(partial(self._problem, manifest.step, each, on_progress, whole=whole))
            except OSError as error:
                self._raise_if_away(error)
                return f"{each.path} cannot be read ({error})"
            if problem is not None:
                return problem
        return None

    def _problem(self, step: int, entry: FileEntry, on_progress: OnProgress, *, whole: bool) -> str | None:
        if entry.head_bytes:
            return damage_of(f"{self.place(step)}/{entry.path}", entry, on_progress, only_head=not whole)
        with stores.os_errors(), self._fs.open(f"{self.folder(step)}/{entry.path}", "rb") as source:
            is_right = _has_digest(source, entry, on_progress)
        return None if is_right else f"{entry.path} does not have its digest"

    # writing

    def upload(self, step: int, file: Path, on_progress: OnProgress = lambda _: None) -> None:
        """Put a local file into the checkpoint's folder."""
        self._fs.makedirs(self.folder(step), exist_ok=True)
        put_file(self._fs, file, f"{self.folder(step)}/{file.name}", on_progress)

    def make_durable(self, step: int, file: Path, on_progress: OnProgress = lambda _: None) -> None:
        """Let a written file outlive this machine: synced where it lies in its place, else put there."""
        if self.is_local:
            _sync(file)
        else:
            self.upload(step, file, on_progress)

    def repeat(self, file: str, *, of_step: int, step: int) -> None:
        """Let a file of one checkpoint belong to another, too: one more name of it, a copy inside another store.

        Raises OSError, NotImplementedError where the store can do neither.
        """
        source, target = f"{self.folder(of_step)}/{file}", f"{self.folder(step)}/{file}"
        if source == target:
            return
        if self.is_local:
            Path(target).unlink(missing_ok=True)  # of a save of this step before, which may be damaged
            Path(target).hardlink_to(source)
        else:
            self._fs.cp_file(source, target)

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
        _sync(temporary)
        temporary.replace(Path(folder) / MANIFEST_NAME)
        _sync(Path(folder))
        _sync(Path(folder).parent)

    def remove_half_written(self, but_step: int | None = None) -> None:
        """Remove files of saves that never got their manifest, but not of ``but_step``, which is being saved."""
        for step, sizes in self._sizes().items():
            if MANIFEST_NAME not in sizes and step != but_step:
                self._remove(step, sizes)

    def retain(self, newest: CheckpointManifest, keep: int, kept_steps: Sequence[int] = ()) -> None:
        """Keep ``newest`` (just committed), the ``keep - 1`` before it and the first of ``kept_steps`` that is there.

        Everything else is removed. A save that failed leaves no checkpoint: the next of ``kept_steps`` stays then.

        Later steps than ``newest`` were left behind when a run went back to an earlier
        checkpoint: they go too.
        """
        before = [each for each in self.manifests() if each.step < newest.step]
        there = {newest.step, *(each.step for each in before)}
        best = [step for step in kept_steps if step in there][:1]
        kept = {newest.step, *(each.step for each in before[: keep - 1]), *best}
        for step, sizes in self._sizes().items():
            if step not in kept:
                self._remove(step, sizes)
            elif step == newest.step:  # files of an earlier save of the same step, now that its manifest is replaced
                listed = {MANIFEST_NAME, *(each.path for each in newest.files)}
                self._remove_files(step, sizes.keys() - listed)

    def _remove(self, step: int, names: Iterable[str]) -> None:
        """Remove a checkpoint, the manifest first."""
        self._remove_files(step, sorted(names, key=lambda name: name != MANIFEST_NAME))
        self._remove_folder(step)

    def _remove_files(self, step: int, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._fs.rm_file(f"{self.folder(step)}/{name}")
            except FileNotFoundError:
                continue

    def _remove_folder(self, step: int) -> None:
        """Object stores have no folders to remove; a local one is empty by now."""
        if self.is_local:
            try:
                self.local_folder(step).rmdir()
            except OSError as error:
                logger.warning("folder of checkpoint at step %d left behind: %s", step, error)


def prepare_resume(paths: RunPaths, scratch_dir: Path, target: ParallelLayout) -> PreparedCheckpoint | None:
    """The newest checkpoint that is good as far as its heads tell; None when there is none.

    Called once on each node, before the ranks start. Raises PermanentError when a checkpoint
    exists that ``target`` cannot resume from.
    """
    store = CheckpointStore(paths)
    found = (_prepared(store, each, scratch_dir, target, whole=False) for each in store.manifests())
    return next((each for each in found if each is not None), None)


def prepare_step(paths: RunPaths, scratch_dir: Path, step: int, target: ParallelLayout) -> PreparedCheckpoint | None:
    """The checkpoint of ``step``, all of which is verified; None where it is not there, or not whole."""
    store = CheckpointStore(paths)
    found = (each for each in store.manifests() if each.step == step)
    return next((_prepared(store, each, scratch_dir, target, whole=True) for each in found), None)


def _prepared(
    store: CheckpointStore, manifest: CheckpointManifest, scratch_dir: Path, target: ParallelLayout, *, whole: bool
) -> PreparedCheckpoint | None:
    tell = counting(f"reading the checkpoint of step {manifest.step}: bytes read")
    problem = store.mismatch(manifest, tell, whole=whole)
    if problem is not None:
        _skip(manifest.step, problem)
        return None
    refusal = can_resume(manifest.layout, target)
    if refusal is not None:
        raise PermanentError(refusal)
    try:
        near = {} if store.is_local or target.zero_stage == 3 else _frozen_near(store, manifest, scratch_dir, tell)
    except ContractError as error:
        _skip(manifest.step, error.reason.sentence)
        return None
    except OSError as error:
        logger.warning("every rank reads the frozen weights from the store: %s", error)
        near = {}
    return PreparedCheckpoint(folder=store.place(manifest.step), manifest=manifest, near=near)


def _frozen_near(
    store: CheckpointStore, manifest: CheckpointManifest, scratch_dir: Path, on_progress: OnProgress
) -> dict[str, str]:
    """Below stage 3 every rank needs all frozen weights: a node fetches them once, where it has the room."""
    frozen = [each for each in manifest.files if each.path.startswith(FROZEN_FILES)]
    if not has_room(scratch_dir, sum(each.num_bytes for each in frozen)):
        return {}
    near = {}
    for each in frozen:
        local = scratch_dir / manifest.folder / each.path
        local.parent.mkdir(parents=True, exist_ok=True)
        files.download_file(f"{store.place(manifest.step)}/{each.path}", local, on_progress)
        problem = damage_of(str(local), each) if each.head_bytes else None
        if problem is not None:
            raise ContractError(problem)
        near[each.path] = str(local)
    return near


def _skip(step: int, why: str) -> None:
    logger.warning("checkpoint at step %d skipped: %s", step, why)


def _sync(path: Path) -> None:
    """Let a file, or the names in a folder, outlive a loss of power."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _has_digest(source: IO[bytes], entry: FileEntry, on_progress: OnProgress) -> bool:
    digest = xxh3_128() if entry.xxh3_128 else hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        on_progress(len(chunk))
    return digest.hexdigest() == (entry.xxh3_128 or entry.sha256)
