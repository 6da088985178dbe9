"""How many elements of the model's states a rank holds, by data- and tensor-parallel degree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from frenzy.core.model_parameters import ModelShape, ParameterTensor
from frenzy.core.trainable import TrainedPart

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StateElements:
    """Elements on one rank, one entry for each plan.

    trained, frozen: parameters of the tensor-parallel shard. partition: trained / dp, padded.
    overlapping: whole size of the trained tensors of which a part lies in a rank's partition (the
    largest over the ranks): DeepSpeed copies them undivided. head, layer, embedding: trained
    tensors of the output part, one layer, the input embedding. tied_head_gradient: the output
    matrix's share of a tied embedding's gradient, held until the embedding's own is made.
    embedding_gradient: what is held while that happens. small: elements by tensor size.
    """

    trained: Array
    frozen: Array
    partition: Array
    overlapping: Array
    head: Array
    head_gradient: Array
    tied_head_gradient: Array
    layer: Array
    embedding: Array
    embedding_gradient: Array
    tensor_sizes: tuple[int, ...]

    def persistent(self, threshold: int) -> float:
        """Elements of the tensors that stage 3 never partitions."""
        return float(sum(size for size in self.tensor_sizes if size <= threshold))


def state_elements(shape: ModelShape, trained: TrainedPart, dp: Integers, tp: Integers) -> StateElements:
    """The elements for each plan's ``dp`` and ``tp``."""
    rows = {pair: _one(shape, trained, *pair) for pair in {(int(d), int(t)) for d, t in zip(dp, tp, strict=True)}}
    table = np.asarray([rows[(int(d), int(t))] for d, t in zip(dp, tp, strict=True)], dtype=np.float64)
    columns = table.reshape(len(dp), -1).T
    return StateElements(
        trained=columns[0],
        frozen=columns[1],
        partition=columns[2],
        overlapping=columns[3],
        head=columns[4],
        head_gradient=columns[5],
        tied_head_gradient=columns[6],
        layer=columns[7],
        embedding=columns[8],
        embedding_gradient=columns[9],
        tensor_sizes=tuple(_sizes(shape, trained, 1).tolist()),
    )


@lru_cache(maxsize=4096)
def _one_cached(sizes: tuple[int, ...], dp: int) -> tuple[int, int]:
    """(partition, overlapping) elements of ``sizes`` laid flat and divided over ``dp`` ranks."""
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    total = int(ends[-1]) if len(ends) else 0
    alignment = 2 * dp
    partition = -(-total // alignment) * alignment // dp
    if total == 0:
        return 0, 0
    lower = np.arange(dp, dtype=np.int64) * partition
    first = np.searchsorted(ends, lower, side="right")
    last = np.searchsorted(ends, np.minimum(lower + partition, total), side="left")
    starts = np.concatenate(([0], ends))
    beyond = starts[np.minimum(last, len(ends) - 1) + 1]
    spans = np.where(lower < total, beyond - starts[np.minimum(first, len(ends))], 0)
    return partition, int(max(spans.max(), partition))


def _sizes(shape: ModelShape, trained: TrainedPart, tp: int) -> NDArray[np.int64]:
    outer = [each.elements_per_rank(tp) for each in trained.embeddings]
    layer = [each.elements_per_rank(tp) for each in trained.layer]
    head = [each.elements_per_rank(tp) for each in trained.head]
    return np.asarray([*outer, *(layer * shape.num_layers), *head], dtype=np.int64)


def _total(tensors: tuple[ParameterTensor, ...], tp: int) -> int:
    return sum(each.elements_per_rank(tp) for each in tensors)


def _one(shape: ModelShape, trained: TrainedPart, dp: int, tp: int) -> tuple[float, ...]:
    sizes = _sizes(shape, trained, tp)
    partition, overlapping = _one_cached(tuple(sizes.tolist()), dp)
    num_trained = int(sizes.sum())
    # adapters come on top of the model; without them every parameter is trained
    frozen = 0 if trained.is_everything else shape.parameters_per_rank(tp)
    table = shape.embeddings[0].num_elements
    embedding = _total(trained.embeddings, tp)
    tied = shape.tied_embeddings and trained.is_everything
    head_use = _total(shape.head, tp) + (table if shape.tied_embeddings else 0)
    return (
        num_trained,
        frozen,
        partition,
        overlapping,
        head_use,
        _total(trained.head, tp) + (table if tied else 0),
        table if tied else 0,
        _total(trained.layer, tp),
        embedding,
        (3 if tied else 1) * table if trained.is_everything else 0,
    )
