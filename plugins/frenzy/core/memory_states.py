"""How many elements of the model's states a rank holds, by data- and tensor-parallel degree."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from frenzy.core.model_parameters import ModelShape
from frenzy.core.trainable import TrainedPart

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StateElements:
    """Elements on one rank, one entry for each plan.

    trained, frozen: parameters of the tensor-parallel shard. partition: trained / dp, padded.
    overlapping: whole size of the trained tensors of which a part lies in a rank's partition (the
    largest over the ranks): DeepSpeed copies them undivided. table: the input embedding; head:
    the output matrix, tied or not. head_gradient: what its own gradient takes (0 when tied);
    tied_gradient: its share of a tied embedding's, held until the embedding's own is made;
    table_gradients: what is held while that happens. layer, last_linear: one layer's trained
    tensors, and its last linear map, the first that goes backward. first_tensor, largest_tensor:
    of the trained ones. persistent: tensors small enough for stage 3 to leave undivided.
    """

    trained: Array
    frozen: Array
    partition: Array
    overlapping: Array
    table: Array
    head: Array
    head_gradient: Array
    tied_gradient: Array
    table_gradients: Array
    layer: Array
    last_linear: Array
    first_tensor: Array
    largest_tensor: Array
    persistent: Array


@dataclass(frozen=True, slots=True)
class StateRequest:
    """What the counts depend on beside the degrees; ``persistent`` is stage 3's threshold."""

    shape: ModelShape
    trained: TrainedPart
    persistent: int


def state_elements(request: StateRequest, dp: Integers, tp: Integers) -> StateElements:
    """The elements for each plan's ``dp`` and ``tp``."""
    pairs = list(zip(dp.tolist(), tp.tolist(), strict=True))
    rows = {pair: _one(request, *pair) for pair in set(pairs)}
    return StateElements(
        **{
            field.name: np.asarray([rows[pair][field.name] for pair in pairs], dtype=np.float64)
            for field in fields(StateElements)
        }
    )


@lru_cache(maxsize=4096)
def _partition(sizes: tuple[int, ...], dp: int) -> tuple[int, int]:
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


def _sizes(request: StateRequest, tp: int) -> list[int]:
    trained = request.trained
    embeddings = [each.elements_per_rank(tp) for each in trained.embeddings]
    layer = [each.elements_per_rank(tp) for each in trained.layer]
    head = [each.elements_per_rank(tp) for each in trained.head]
    return [*embeddings, *(layer * request.shape.num_layers), *head]


def _one(request: StateRequest, dp: int, tp: int) -> dict[str, int]:
    shape, trained = request.shape, request.trained
    sizes = _sizes(request, tp)
    partition, overlapping = _partition(tuple(sizes), dp)
    table = shape.embeddings[0].num_elements
    full, tied = trained.is_everything, shape.tied_embeddings
    linear = [each.elements_per_rank(tp) for each in trained.layer if each.is_linear]
    return {
        "trained": sum(sizes),
        # adapters come on top of the model; without them every parameter is trained
        "frozen": 0 if full else shape.parameters_per_rank(tp),
        "partition": partition,
        "overlapping": overlapping,
        "table": table,
        "head": table,
        "head_gradient": table if full and not tied else 0,
        "tied_gradient": table if full and tied else 0,
        "table_gradients": (3 if tied else 1) * table if full else 0,
        "layer": sum(each.elements_per_rank(tp) for each in trained.layer),
        "last_linear": linear[-1] if linear else 0,
        "first_tensor": sizes[0] if sizes else 0,
        "largest_tensor": max(sizes, default=0),
        "persistent": sum(each for each in sizes if each <= request.persistent),
    }
