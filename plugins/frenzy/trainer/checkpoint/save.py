"""Saving and loading a training run's state, free of the layout it ran on.

Each rank writes the pieces of the fp32 weights and optimizer states it holds, labelled by
parameter and position; each rank of a later run reads the pieces it now needs. So there is one
path for every change of world size, ZeRO stage and tensor-parallel degree, nothing is converted,
no rank needs memory for more than a chunk, and no file is ever unpickled.

    <run_dir>/checkpoints/step-<n>/rank-<r>-<save id>.safetensors   one for each rank
                                  /state-<save id>.json             counters, scalars, the trainer's state
                                  /manifest.json                    put last: the checkpoint exists
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any, Final

import torch
from deepspeed.utils import groups
from torch import distributed

from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest, FileEntry
from frenzy.core.lifecycle.resume import ParallelLayout, can_resume
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, PermanentError, Reason, ReasonCode, TemporaryError
from frenzy.core.values.launch import RunPaths
from frenzy.trainer.checkpoint import zero_fragments
from frenzy.trainer.checkpoint.fragment_index import FragmentIndex, ShardReader, tensor_key
from frenzy.trainer.checkpoint.rng import capture_rng, restore_rng, restore_rng_as_new_rank
from frenzy.trainer.checkpoint.saved_state import (
    SavedState,
    TrainState,
    capture_state,
    restore_state,
    tensor_parallel_maps,
)
from frenzy.trainer.checkpoint.store import (
    CheckpointStore,
    PreparedCheckpoint,
    list_checkpoints,
    newest_good,
    prepare_resume,
)
from frenzy.trainer.collective import RETRY_AFTER_S, attempt, failure_of, from_rank0, raise_if_failed
from frenzy.trainer.heartbeats import counting
from frenzy.trainer.tensor_file import write_fragments

logger = logging.getLogger(__name__)

WEIGHTS: Final = "fp32"
FROZEN: Final = "frozen"
BUFFER: Final = "buffer"


# saving


def save_checkpoint(
    engine: Any,
    paths: RunPaths,
    state: TrainState,
    layout: ParallelLayout,
    keep: int,
    scratch_dir: Path | None = None,
) -> CheckpointManifest:
    """Save the run at an optimizer step's end; keeps the newest ``keep`` checkpoints. Collective.

    Returns the committed manifest on every rank. scratch_dir: local folder used on the way to a
    remote run directory. Raises TemporaryError on all ranks when the storage failed one of
    them: training may go on, the checkpoints before are untouched.
    """
    store = CheckpointStore(paths)
    save_id = from_rank0(lambda: _begin(store))
    zero_fragments.before_access(engine)
    entries, error = attempt(lambda: _write_rank(engine, store, state, layout, save_id, scratch_dir))
    zero_fragments.after_access(engine)
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, (entries, failure_of(error)))
    raise_if_failed([failure for _, failure in gathered], error)
    manifest = CheckpointManifest(
        step=state.step,
        layout=layout,
        files=tuple(entry for written, _ in gathered for entry in written),
        save_id=save_id,
        tokens_seen=state.tokens_seen,
    )
    from_rank0(lambda: _finish(store, manifest, keep))
    return manifest


def _begin(store: CheckpointStore) -> str:
    store.remove_half_written()
    return uuid.uuid4().hex[:8]


def _finish(store: CheckpointStore, manifest: CheckpointManifest, keep: int) -> None:
    store.commit(manifest)
    try:
        store.retain(manifest, keep)
    except OSError as error:
        logger.warning("old checkpoints could not be removed: %s", error)


def _write_rank(
    engine: Any,
    store: CheckpointStore,
    state: TrainState,
    layout: ParallelLayout,
    save_id: str,
    scratch_dir: Path | None,
) -> tuple[FileEntry, ...]:
    """Write this rank's files, into place on a local store, else by way of a scratch folder."""
    if store.is_local:
        folder = store.local_folder(state.step)
        folder.mkdir(parents=True, exist_ok=True)
        return _write_files(engine, folder, state, layout, save_id)
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=scratch_dir))
    try:
        entries = _write_files(engine, folder, state, layout, save_id)
        tell = counting("saving a checkpoint: bytes sent")
        for entry in entries:
            store.upload(state.step, folder / entry.path, tell)
        return entries
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_files(
    engine: Any, folder: Path, state: TrainState, layout: ParallelLayout, save_id: str
) -> tuple[FileEntry, ...]:
    rank = distributed.get_rank()
    metadata = {"rank": str(rank), "tp_rank": str(_tp_rank(layout)), "rng": capture_rng()}
    file = folder / f"rank-{rank:05d}-{save_id}.safetensors"
    tell = counting("saving a checkpoint: bytes written")
    entry = write_fragments(file, _held_tensors(engine, layout), metadata, tell)
    if rank != 0:
        return (entry,)
    return entry, _write_state(engine, folder / f"state-{save_id}.json", state, layout)


def _held_tensors(engine: Any, layout: ParallelLayout) -> list[tuple[str, torch.Tensor]]:
    held: list[tuple[str, torch.Tensor]] = []
    for partition in zero_fragments.partitions(engine):
        flats = {WEIGHTS: partition.weights, **partition.flat_states()}
        for key, flat in flats.items():
            held += [
                (tensor_key(key, each.start, each.name), flat.narrow(0, each.offset, each.numel))
                for each in partition.shards
            ]
    dp_rank, dp = groups._get_data_parallel_rank(), layout.dp
    frozen = zero_fragments.frozen_parameters(engine)
    replicated = layout.zero_stage < 3
    held += [
        (tensor_key(FROZEN, each.start, each.name), each.values)
        for position, each in enumerate(frozen)
        if not replicated or position % dp == dp_rank
    ]
    if dp_rank == 0:
        buffers = zero_fragments.persistent_buffers(engine)
        held += [(tensor_key(BUFFER, each.start, each.name), each.values) for each in buffers]
    return held


def _write_state(engine: Any, file: Path, state: TrainState, layout: ParallelLayout) -> FileEntry:
    data = codec.dumps(capture_state(engine, state, layout)).encode()
    file.write_bytes(data)
    return FileEntry(path=file.name, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


# loading


def load_checkpoint(engine: Any, prepared: PreparedCheckpoint, layout: ParallelLayout | None = None) -> TrainState:
    """Bring a fresh engine to the state of ``prepared``; returns the trainer's own state. Collective.

    Raises PermanentError when the engine's layout or model is not one the checkpoint can fill.
    """
    target = layout or _layout_of(engine)
    refusal = can_resume(prepared.manifest.layout, target)
    if refusal is not None:
        raise PermanentError(refusal)
    _require_same_everywhere(prepared)
    saved = codec.loads(SavedState, state_file(prepared).read_bytes())
    files = [prepared.directory / each.path for each in prepared.manifest.files if each.path.startswith("rank-")]
    index = FragmentIndex.of_files(files, saved.tensor_parallel_maps)
    reader = ShardReader(
        index=index,
        source_tp=prepared.manifest.layout.tp,
        target_tp=target.tp,
        tp_rank=_tp_rank(target),
        target_maps=tensor_parallel_maps(engine, target),
        on_progress=counting("loading the checkpoint: bytes filled"),
    )
    zero_fragments.before_access(engine)
    _fill(engine, reader)
    zero_fragments.publish_weights(engine)
    zero_fragments.after_access(engine)
    restore_state(engine, saved)
    _restore_generators(index)
    return saved.train


def _fill(engine: Any, reader: ShardReader) -> None:
    with torch.no_grad():
        for partition in zero_fragments.partitions(engine):
            _fill_partition(partition, reader)
        for held in zero_fragments.frozen_parameters(engine):
            reader.read(FROZEN, held.name, held.start, held.values, held.of_numel)
        for held in zero_fragments.persistent_buffers(engine):
            reader.read(BUFFER, held.name, held.start, held.values, held.of_numel)


def _fill_partition(partition: zero_fragments.Partition, reader: ShardReader) -> None:
    stored = [reader.index.states_of(each.name) for each in partition.shards]
    for shard, states in zip(partition.shards, stored, strict=True):
        if WEIGHTS not in states:
            raise ContractError(f"the checkpoint does not hold the trained parameter {shard.name}")
    _fill_flat(WEIGHTS, partition.weights, partition, reader)
    for state in sorted(frozenset[str]().union(*stored) - {WEIGHTS}):
        with partition.filling(state) as flat:
            _fill_flat(state, flat, partition, reader)


def _fill_flat(state: str, flat: torch.Tensor, partition: zero_fragments.Partition, reader: ShardReader) -> None:
    for shard in partition.shards:
        if state in reader.index.states_of(shard.name):
            piece = flat.narrow(0, shard.offset, shard.numel)
            reader.read(state, shard.name, shard.start, piece, shard.of_numel)


def _restore_generators(index: FragmentIndex) -> None:
    rank = distributed.get_rank()
    if rank in index.rng_by_rank:
        restore_rng(index.rng_by_rank[rank])
    else:
        restore_rng_as_new_rank(index.rng_by_rank[0], rank)


def state_file(prepared: PreparedCheckpoint) -> Path:
    """Where a checkpoint keeps what is not a tensor."""
    return prepared.directory / f"state-{prepared.manifest.save_id}.json"


def _layout_of(engine: Any) -> ParallelLayout:
    world_size = distributed.get_world_size()
    dp = groups._get_data_parallel_world_size()
    return ParallelLayout(world_size, int(engine.zero_optimization_stage()), world_size // dp)


# between ranks


def _tp_rank(layout: ParallelLayout) -> int:
    return int(groups.get_tensor_model_parallel_rank()) if layout.tp > 1 else 0


def _require_same_everywhere(prepared: PreparedCheckpoint) -> None:
    chosen: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(chosen, (prepared.step, prepared.manifest.save_id))
    if len(set(chosen)) > 1:
        steps = sorted({step for step, _ in chosen})
        raise TemporaryError(
            Reason(code=ReasonCode.LAUNCH_FAILED, detail=f"The nodes chose different checkpoints: steps {steps}."),
            retry_after_s=RETRY_AFTER_S,
        )


__all__ = [
    "CheckpointManifest",
    "FileEntry",
    "ParallelLayout",
    "PreparedCheckpoint",
    "TrainState",
    "list_checkpoints",
    "load_checkpoint",
    "newest_good",
    "prepare_resume",
    "save_checkpoint",
]
