"""Saving a training run's state, free of the layout it runs on, while the training goes on.

Each rank writes the pieces of the fp32 weights and optimizer states it holds, labelled by
parameter and position; each rank of a later run reads the pieces it now needs. So there is one
path for every change of world size, ZeRO stage and tensor-parallel degree, nothing is converted,
and no file is ever unpickled.

    <run_dir>/checkpoints/step-<n>/rank-<r>-<save id>.safetensors   one for each rank
                                  /frozen-<r>-<save id>.safetensors its part of what is not trained, if anything
                                  /state-<save id>.json             counters, scalars, the trainer's state
                                  /manifest.json                    put last: the checkpoint exists

A run directory that is not local gets a rank's tensors in parts, ``rank-<r>-<save id>-<part>.safetensors``: each is
written to a scratch folder first, and the disk of a pod holds no checkpoint.

What training changes is copied to host memory first; a thread writes the copy. (A thread, for
hashing, writing and syncing leave the interpreter to the others, and only a process with the
GPU's context can read frozen weights from it.) The ranks meet again when all have written.
What is not trained is written once: later checkpoints have the same file under one more name.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import xxhash
from deepspeed.utils import groups
from torch import distributed

from frenzy.core.lifecycle.checkpoint_manifest import FROZEN_FILES, CheckpointManifest, FileEntry
from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values import codec
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import SAVING
from frenzy.core.values.units import GIB
from frenzy.trainer.checkpoint import zero_fragments
from frenzy.trainer.checkpoint.fragment_index import BUFFER, FROZEN, WEIGHTS, tensor_key
from frenzy.trainer.checkpoint.host_copies import Snapshot
from frenzy.trainer.checkpoint.rng import capture_rng
from frenzy.trainer.checkpoint.saved_state import TrainState, capture_state
from frenzy.trainer.checkpoint.store import CheckpointStore
from frenzy.trainer.collective import attempt, failure_of, from_rank0, raise_if_failed
from frenzy.trainer.heartbeats import beat
from frenzy.trainer.tensor_file import CHUNK_BYTES, write_fragments

logger = logging.getLogger(__name__)

# A virtual GPU's memory is the process's: a thread's stack is part of it.
_STACK_BYTES: Final = 2**20
_LOOK_S: Final = 0.2

Tensors = Sequence[tuple[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """What one rank writes of a checkpoint. state_data: of the first rank alone."""

    save_id: str
    step: int
    rank: int
    tensors: Tensors
    frozen: Tensors
    metadata: dict[str, str]
    rng: str
    state_data: bytes | None


@dataclass(frozen=True, slots=True)
class Pending:
    """A checkpoint that is not whole yet; ``written`` ends with this rank's files."""

    state: TrainState
    save_id: str
    written: Future[Written]


@dataclass(frozen=True, slots=True)
class Written:
    """A rank's files of a checkpoint. num_bytes, took_s: of those that hold what training changes."""

    entries: tuple[FileEntry, ...]
    num_bytes: int
    took_s: float


class Abandoned(Exception):
    """Nobody waits for what is being written."""


class CheckpointSaver:
    """Saves a run's checkpoints, one at a time; of each rank one. Leaving its context leaves no thread behind.

    ``begin`` and ``finish`` are collective. scratch_dir: local folder used on the way to a remote run
    directory. The newest ``keep`` checkpoints are kept. begun_s: when one was begun last, on the monotonic clock.
    resumed: the checkpoint that the engine was brought to. kept_steps: see ``TrainState``; of the newest that is whole.
    part_bytes: of a file on its way to a remote run directory, which may be twice as large.
    """

    def __init__(
        self,
        engine: Any,
        paths: RunPaths,
        layout: ParallelLayout,
        keep: int,
        scratch_dir: Path | None = None,
        resumed: CheckpointManifest | None = None,
        part_bytes: int = GIB // 2,
    ) -> None:
        self._engine, self._layout, self._keep = engine, layout, keep
        self._store, self._scratch_dir, self._part_bytes = CheckpointStore(paths), scratch_dir, part_bytes
        self._snapshot = Snapshot()
        self._newest = resumed if resumed is not None and resumed.layout == layout else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Pending | None = None
        self._tidied: Future[None] | None = None
        self.begun_s = time.monotonic()
        self._num_written = 0
        self._is_abandoned = False
        self.kept_steps: tuple[int, ...] = ()

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_abandoned = True
        if self._tidied is not None:  # the last checkpoint's: it may not have begun
            wait([self._tidied])
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._snapshot.close()

    @property
    def pending_step(self) -> int | None:
        """The step of the checkpoint that is not whole yet; the same on all ranks."""
        return None if self._pending is None else self._pending.state.step

    @property
    def is_writing(self) -> bool:
        """Whether this rank still writes."""
        return self._pending is not None and not self._pending.written.done()

    def begin(self, state: TrainState, *, trains_on: bool = True) -> None:
        """Take the run's state at an optimizer step's end; it is written from now on, until ``finish``.

        trains_on: the state changes meanwhile, and is copied first. Whoever comes while a checkpoint is being
        written finishes that one: no more work is at risk than was asked for. What goes wrong here is
        raised by ``finish``.
        """
        assert self._pending is None, "the checkpoint before is not finished"
        save_id = from_rank0(self._new_id)
        zero_fragments.before_access(self._engine)
        files, error = attempt(lambda: self._files(state, save_id, copied=trains_on))
        zero_fragments.after_access(self._engine)
        self.begun_s, self._num_written = time.monotonic(), 0
        self._pending = Pending(state, save_id, self._in_thread(lambda: self._write(files, error)))

    def finish(self) -> CheckpointManifest:
        """Wait for the files of all ranks and publish the manifest: from now on the checkpoint exists.

        Returns it on every rank. Raises TemporaryError on all ranks when the storage failed one of
        them: training may go on, the checkpoints before are untouched.
        """
        pending, self._pending = self._pending, None
        assert pending is not None, "no checkpoint was begun"
        mine, error = attempt(lambda: self._wait(pending.written))
        gathered: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(gathered, (mine, failure_of(error)))
        raise_if_failed([failure for _, failure in gathered], error)
        written: list[Written] = [each for each, _ in gathered]
        manifest = CheckpointManifest(
            step=pending.state.step,
            layout=self._layout,
            files=tuple(entry for each in written for entry in each.entries),
            save_id=pending.save_id,
            tokens_seen=pending.state.tokens_seen,
            rank_bytes_per_s=rank_bytes_per_s(written),
        )
        from_rank0(lambda: self._publish(manifest, pending.state.kept_steps))
        self._newest, self.kept_steps = manifest, pending.state.kept_after(manifest.step)
        return manifest

    def _new_id(self) -> str:
        """Once the thread has removed what is not kept: it would take the new files for leftovers."""
        if self._tidied is not None:
            self._tidied.result()
        return uuid.uuid4().hex[:8]

    def _files(self, state: TrainState, save_id: str, *, copied: bool) -> RankFiles:
        rank = distributed.get_rank()
        take = self._snapshot.take if copied else (lambda _, tensor: tensor)
        tensors = _moving_tensors(self._engine, take)
        self._snapshot.settle()
        return RankFiles(
            save_id=save_id,
            step=state.step,
            rank=rank,
            tensors=tensors,
            frozen=() if state.without_frozen else _frozen_tensors(self._engine, self._layout),
            metadata={"rank": str(rank), "tp_rank": str(zero_fragments.tensor_parallel_rank(self._layout))},
            rng=capture_rng(),
            state_data=_state_data(self._engine, state, self._layout) if rank == 0 else None,
        )

    def _in_thread(self, work: Callable[[], Any]) -> Future[Any]:
        before = threading.stack_size(_STACK_BYTES)
        try:
            return self._thread.submit(work)
        finally:
            threading.stack_size(before)

    def _wait(self, written: Future[Written]) -> Written:
        """The files. What is written meanwhile is a sign of progress."""
        told = -1
        while not written.done():
            if told != self._num_written:
                told = self._num_written
                beat(f"{SAVING}: bytes written", told)
            wait([written], timeout=_LOOK_S)
        return written.result()

    def _publish(self, manifest: CheckpointManifest, kept_steps: Sequence[int] = ()) -> None:
        self._store.commit(manifest)
        self._tidied = self._in_thread(lambda: self._retain(manifest, kept_steps))

    def _retain(self, manifest: CheckpointManifest, kept_steps: Sequence[int]) -> None:
        try:
            self._store.retain(manifest, self._keep, kept_steps)
        except Exception as error:  # stores raise errors of their own, and the new checkpoint is there
            logger.warning("old checkpoints could not be removed: %s", error)

    # in the thread

    def _write(self, files: RankFiles | None, error: Exception | None) -> Written:
        """Write this rank's files, into place on a local store, else by way of a scratch folder."""
        if files is None:
            assert error is not None
            raise error
        if files.rank == 0:
            self._store.remove_half_written(but_step=files.step)
        started_s = time.monotonic()
        entries = self._put(files, "rank-", files.tensors, {**files.metadata, "rng": files.rng}) + self._put_state(
            files
        )
        num_bytes, took_s = sum(each.num_bytes for each in entries), time.monotonic() - started_s
        return Written(entries + self._frozen(files), num_bytes, took_s)

    def _put(self, files: RankFiles, kind: str, tensors: Tensors, metadata: dict[str, str]) -> tuple[FileEntry, ...]:
        """``tensors`` in the checkpoint: in one file where it lies, else in parts that need little room on the way.

        kind: how the files' names begin.
        """
        stem, entries = f"{kind}{files.rank:05d}-{files.save_id}", []
        for number, part in enumerate([tensors] if self._store.is_local else parts(tensors, self._part_bytes)):
            with self._folder(files.step) as folder:
                file = folder / f"{stem}{f'-{number}' if number else ''}.safetensors"
                entries.append(write_fragments(file, part, metadata, self._tell))
                self._store.make_durable(files.step, file, self._tell)
        return tuple(entries)

    def _put_state(self, files: RankFiles) -> tuple[FileEntry, ...]:
        if files.state_data is None:
            return ()
        with self._folder(files.step) as folder:
            file = folder / f"state-{files.save_id}.json"
            entry = _write_data(file, files.state_data)
            self._store.make_durable(files.step, file, self._tell)
        return (entry,)

    @contextmanager
    def _folder(self, step: int) -> Iterator[Path]:
        if self._store.is_local:
            folder = self._store.local_folder(step)
            folder.mkdir(parents=True, exist_ok=True)
            yield folder
            return
        folder = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self._scratch_dir))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _frozen(self, files: RankFiles) -> tuple[FileEntry, ...]:
        """This rank's part of what is not trained, by the newest checkpoint's files where it has them."""
        if not files.frozen:
            return ()
        newest, known = self._newest, self._known_frozen(files.rank)
        if newest is not None and known:
            try:
                for each in known:
                    self._store.repeat(each.path, of_step=newest.step, step=files.step)
                return known
            except (OSError, NotImplementedError) as error:
                logger.warning("frozen weights are written again: %s", error)
        with _own_stream(files.frozen[0][1]):
            return self._put(files, FROZEN_FILES, files.frozen, files.metadata)

    def _known_frozen(self, rank: int) -> tuple[FileEntry, ...]:
        files = () if self._newest is None else self._newest.files
        return tuple(each for each in files if each.path.startswith(f"{FROZEN_FILES}{rank:05d}-"))

    def _tell(self, num_bytes: int) -> None:
        if self._is_abandoned:
            raise Abandoned
        self._num_written += num_bytes


def parts(tensors: Tensors, most_bytes: int) -> Sequence[Tensors]:
    """``tensors`` in groups of less than twice ``most_bytes``, the large ones cut; one group at least."""
    groups: list[list[tuple[str, torch.Tensor]]] = [[]]
    room = most_bytes
    for each in (piece for key, tensor in tensors for piece in _pieces(key, tensor, most_bytes)):
        if room <= 0:
            groups.append([])
            room = most_bytes
        groups[-1].append(each)
        room -= each[1].nbytes
    return groups


def _pieces(key: str, tensor: torch.Tensor, most_bytes: int) -> Iterator[tuple[str, torch.Tensor]]:
    state, start, name = key.split(":", 2)
    most = max(1, most_bytes // tensor.dtype.itemsize)
    for done in range(0, max(1, tensor.numel()), most):
        yield tensor_key(state, int(start) + done, name), tensor.narrow(0, done, min(most, tensor.numel() - done))


def rank_bytes_per_s(written: Sequence[Written]) -> float:
    """What a rank writes in a second: the largest part in the longest time. 0 where no part is large enough to tell."""
    largest = max(each.num_bytes for each in written)
    took_s = max(*(each.took_s for each in written), 1e-6)
    return largest / took_s if largest >= CHUNK_BYTES else 0.0


def save_checkpoint(
    engine: Any, paths: RunPaths, state: TrainState, layout: ParallelLayout, keep: int
) -> CheckpointManifest:
    """Save one checkpoint and wait for it: see ``CheckpointSaver``. Collective."""
    with CheckpointSaver(engine, paths, layout, keep) as saver:
        saver.begin(state, trains_on=False)
        return saver.finish()


def _moving_tensors(engine: Any, take: Callable[[str, Any], Any]) -> list[tuple[str, torch.Tensor]]:
    """What training changes of what this rank holds. take: gives a tensor that stays as it is."""
    held: list[tuple[str, torch.Tensor]] = []
    for position, partition in enumerate(zero_fragments.partitions(engine)):
        flats = {WEIGHTS: partition.weights, **partition.flat_states()}
        for key, flat in flats.items():
            kept = take(f"{key}.{position}", flat)
            held += [
                (tensor_key(key, each.start, each.name), kept.narrow(0, each.offset, each.numel))
                for each in partition.shards
            ]
    if groups._get_data_parallel_rank() == 0:
        buffers = zero_fragments.persistent_buffers(engine)
        held += [
            (tensor_key(BUFFER, each.start, each.name), take(f"{BUFFER}.{each.name}", each.values)) for each in buffers
        ]
    return held


def _frozen_tensors(engine: Any, layout: ParallelLayout) -> list[tuple[str, torch.Tensor]]:
    """This rank's part of what is not trained: its pieces in stage 3, else some of the whole ones."""
    dp_rank, dp, replicated = groups._get_data_parallel_rank(), layout.dp, layout.zero_stage < 3
    return [
        (tensor_key(FROZEN, each.start, each.name), each.values)
        for position, each in enumerate(zero_fragments.frozen_parameters(engine))
        if not replicated or position % dp == dp_rank
    ]


def _own_stream(like: torch.Tensor) -> AbstractContextManager[Any]:
    """A GPU's copies go beside the training's kernels, not behind them: only for what training does not change."""
    return torch.cuda.stream(torch.cuda.Stream(like.device)) if like.is_cuda else nullcontext()


def _state_data(engine: Any, state: TrainState, layout: ParallelLayout) -> bytes:
    return codec.dumps(capture_state(engine, state, layout)).encode()


def _write_data(file: Path, data: bytes) -> FileEntry:
    file.write_bytes(data)
    return FileEntry(path=file.name, num_bytes=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))
