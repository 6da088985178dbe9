"""Loading a training run's state onto whatever layout runs now: each rank reads the pieces it needs."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.utils import groups
from torch import distributed

from frenzy.core.lifecycle.resume import ParallelLayout, can_resume
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, PermanentError, Reason, ReasonCode, TemporaryError
from frenzy.trainer import files
from frenzy.trainer.checkpoint import zero_fragments
from frenzy.trainer.checkpoint.fragment_index import BUFFER, FROZEN, WEIGHTS, FragmentIndex, ShardReader
from frenzy.trainer.checkpoint.rng import restore_rng, restore_rng_as_new_rank
from frenzy.trainer.checkpoint.saved_state import SavedState, TrainState, restore_state, tensor_parallel_maps
from frenzy.trainer.checkpoint.store import PreparedCheckpoint
from frenzy.trainer.checkpoint.zero_fragments import tensor_parallel_rank
from frenzy.trainer.collective import RETRY_AFTER_S
from frenzy.trainer.heartbeats import counting
from frenzy.trainer.verified_file import DamagedError


def load_checkpoint(engine: Any, prepared: PreparedCheckpoint, layout: ParallelLayout | None = None) -> TrainState:
    """Bring a fresh engine to the state of ``prepared``; returns the trainer's own state. Collective.

    Each rank reads what it needs, and verifies it. Raises TemporaryError on a rank that finds damage, once it has
    noted that, so that the next attempt goes on from the checkpoint before.
    Raises PermanentError when the engine's layout or model is not one the checkpoint can fill.
    """
    target = layout or layout_of_engine(engine)
    refusal = can_resume(prepared.manifest.layout, target)
    if refusal is not None:
        raise PermanentError(refusal)
    _require_same_everywhere(prepared)
    try:
        return _load(engine, prepared, target)
    except DamagedError as error:
        prepared.note_damage(error.reason.sentence)
        found = f"The checkpoint of step {prepared.step} is damaged: {error.reason.sentence}."
        detail = f"{found} From now on it is passed over."
        raise TemporaryError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail)) from error


def _load(engine: Any, prepared: PreparedCheckpoint, target: ParallelLayout) -> TrainState:
    saved = codec.loads(SavedState, files.patiently(lambda: files.read_text(prepared.state_file)))
    index = FragmentIndex.of_files(prepared.tensor_files, saved.tensor_parallel_maps)
    reader = ShardReader(
        index=index,
        source_tp=prepared.manifest.layout.tp,
        target_tp=target.tp,
        tp_rank=tensor_parallel_rank(target),
        target_maps=tensor_parallel_maps(engine, target),
        on_progress=counting("loading the checkpoint: bytes filled"),
    )
    zero_fragments.before_access(engine)
    _fill(engine, reader, without_frozen=saved.train.without_frozen)
    zero_fragments.publish_weights(engine)
    zero_fragments.after_access(engine)
    restore_state(engine, saved)
    _restore_generators(index)
    return saved.train


def _fill(engine: Any, reader: ShardReader, *, without_frozen: bool) -> None:
    with torch.no_grad():
        for partition in zero_fragments.partitions(engine):
            _fill_partition(partition, reader)
        for held in zero_fragments.frozen_parameters(engine):
            if without_frozen and not reader.index.states_of(held.name):
                continue
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


def layout_of_engine(engine: Any) -> ParallelLayout:
    world_size = distributed.get_world_size()
    dp = groups._get_data_parallel_world_size()
    return ParallelLayout(world_size, int(engine.zero_optimization_stage()), world_size // dp)


def _require_same_everywhere(prepared: PreparedCheckpoint) -> None:
    chosen: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(chosen, (prepared.step, prepared.manifest.save_id))
    if len(set(chosen)) > 1:
        steps = sorted({step for step, _ in chosen})
        raise TemporaryError(
            Reason(code=ReasonCode.LAUNCH_FAILED, detail=f"The nodes chose different checkpoints: steps {steps}."),
            retry_after_s=RETRY_AFTER_S,
        )
