"""How many elements of the model's states a rank holds, by data- and tensor-parallel degree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.models.parameters import ModelShape, ParameterTensor
from frenzy.core.models.trainable import TrainedPart
from frenzy.core.models.weight_storage import NF4_STORAGES, WeightStorage, code_bytes, is_packed

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
    table_gradients: what is held while that happens. layer, whole_layer: one layer's trained tensors; all of them.
    experts: those of them that belong to experts whose plain weights are one tensor, trained or not; experts_at_once:
    of one layer where that stands for a period of several. last_linear, last_gradient: its last linear map, the
    first that goes backward, and what of it is trained (with experts, all of one map's are one tensor: the largest).
    whole_layer and last_linear count weights in 4 bits by the bytes of their codes; so does packed_maps, a layer's
    linear maps in bitsandbytes' 4 bits. largest_packed, packed_experts: weights of the largest linear map, and of the
    largest tensor of experts, in 4 bits.
    first_tensor, largest_tensor: of the trained ones. persistent: tensors small enough for stage 3 to leave undivided.
    oversized: trained tensors larger than a bucket, but for the input embedding.
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
    whole_layer: Array
    experts: Array
    experts_at_once: Array
    last_linear: Array
    last_gradient: Array
    packed_maps: Array
    largest_packed: Array
    packed_experts: Array
    first_tensor: Array
    largest_tensor: Array
    persistent: Array
    oversized: Array


@dataclass(frozen=True, slots=True)
class StateRequest:
    """What the counts depend on beside the degrees.

    persistent: stage 3's threshold; bucket: elements of one. weight_bytes: of a plain weight. joins_experts: all
    experts of a layer are in one tensor.
    """

    shape: ModelShape
    trained: TrainedPart
    persistent: int
    bucket: int
    storage: WeightStorage = WeightStorage.PLAIN
    weight_bytes: int = 2
    joins_experts: bool = True

    def gathered_elements(self, tensor: ParameterTensor, tp: int) -> float:
        """Elements of ``tensor`` on a rank when it is gathered, codes as so many plain ones of the same bytes."""
        return tensor.elements_per_rank(tp) * code_bytes(tensor, self.storage, self.weight_bytes) / self.weight_bytes


# Degrees of two kinds packed into one number, to find the distinct pairs.
_PAIR: Final = 2**32


def state_elements(request: StateRequest, dp: Integers, tp: Integers) -> StateElements:
    """The elements for each plan's ``dp`` and ``tp``: counted once for each distinct pair."""
    pairs, where = np.unique(tp * _PAIR + dp, return_inverse=True)
    columns = np.empty((len(_FIELDS), len(pairs)))
    for degree in np.unique(pairs // _PAIR).tolist():
        here = pairs // _PAIR == degree
        columns[:, here] = _columns(request, degree, tuple((pairs[here] % _PAIR).tolist()))
    return StateElements(**dict(zip(_FIELDS, columns[:, where], strict=True)))


_FIELDS: Final = tuple(field.name for field in fields(StateElements))


@lru_cache(maxsize=256)
def _columns(request: StateRequest, tp: int, degrees: tuple[int, ...]) -> Array:
    """One row for each field of ``StateElements``, one column for each data-parallel degree."""
    sizes = _sizes(request, tp)
    counts = _counts(request, sizes, tp)
    parts = np.asarray([_partition(sizes, dp) for dp in degrees], dtype=np.float64).reshape(len(degrees), 2)
    found: dict[str, float | Array] = {**counts, "partition": parts[:, 0], "overlapping": parts[:, 1]}
    rows = np.empty((len(_FIELDS), len(degrees)))
    for row, name in zip(rows, _FIELDS, strict=True):
        row[:] = found[name]
    return rows


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The trained tensors of a rank, laid flat: elements of each, and where it begins and ends."""

    each: Integers
    starts: Integers
    ends: Integers

    @property
    def total(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


def _sizes(request: StateRequest, tp: int) -> _Sizes:
    trained = request.trained
    layers = np.tile(_elements(trained.layer, tp), request.shape.num_layers)
    each = np.concatenate([_elements(trained.embeddings, tp), layers, _elements(trained.head, tp)])
    ends = np.cumsum(each)
    return _Sizes(each, ends - each, ends)


def _elements(tensors: Iterable[ParameterTensor], tp: int) -> Integers:
    return np.asarray([each.elements_per_rank(tp) for each in tensors], dtype=np.int64)


def _partition(sizes: _Sizes, dp: int) -> tuple[int, int]:
    """(partition, overlapping) elements of ``sizes`` laid flat and divided over ``dp`` ranks.

    A partition that lies inside one tensor overlaps that tensor alone, and whichever holds the
    start of the largest tensor overlaps at least as much: beside that one only the partitions
    in which a tensor begins have to be looked at, hence never more than there are tensors.
    """
    total = sizes.total
    if total == 0:
        return 0, 0
    partition = -(-total // (2 * dp)) * 2
    ranks = np.arange(dp, dtype=np.int64) if dp <= len(sizes.each) else np.unique(sizes.starts // partition)
    lower = ranks * partition
    lower = lower[lower < total]
    first = np.searchsorted(sizes.ends, lower, side="right")
    last = np.searchsorted(sizes.ends, np.minimum(lower + partition, total), side="left")
    return partition, int(max((sizes.ends[last] - sizes.starts[first]).max(), partition))


def _counts(request: StateRequest, sizes: _Sizes, tp: int) -> dict[str, float]:
    """The elements that do not depend on the data-parallel degree."""
    shape, trained, experts = request.shape, request.trained, _experts(request, tp)
    packed = [each for each in shape.layer if is_packed(each, request.storage)]
    codes = packed if request.storage in NF4_STORAGES else []
    table = shape.embeddings[0].num_elements
    full, tied = trained.is_everything, shape.tied_embeddings
    head = table if shape.has_output_matrix else 0
    beside_table = sizes.each[1:] if full else sizes.each
    return {
        "trained": sizes.total,
        # adapters come on top of the model; without them every parameter is trained
        "frozen": 0 if full else shape.parameters_per_rank(tp),
        "table": table,
        "head": head,
        "head_gradient": head if full and not tied else 0,
        "tied_gradient": table if full and tied else 0,
        "table_gradients": (3 if tied else 1) * table if full else 0,
        "layer": sum(each.elements_per_rank(tp) for each in trained.layer),
        "whole_layer": sum(request.gathered_elements(each, tp) for each in shape.layer),
        "experts": sum(experts),
        "experts_at_once": max(experts, default=0),
        "last_linear": _last_map(shape.layer, lambda each: request.gathered_elements(each, tp)),
        "last_gradient": _last_map(trained.layer, lambda each: each.elements_per_rank(tp)),
        "packed_maps": sum(request.gathered_elements(each, tp) for each in codes if each.is_linear),
        "largest_packed": max((each.elements_per_rank(tp) for each in packed if each.is_linear), default=0),
        "packed_experts": max((each.elements_per_rank(tp) for each in packed if _is_joined(each, request)), default=0),
        "first_tensor": int(sizes.each[0]) if len(sizes.each) else 0,
        "largest_tensor": int(sizes.each.max()) if len(sizes.each) else 0,
        "persistent": int(sizes.each[sizes.each <= request.persistent].sum()),
        "oversized": int(beside_table[beside_table > request.bucket].sum()),
    }


def _is_joined(tensor: ParameterTensor, request: StateRequest) -> bool:
    """Whether it has the weights of all experts of its layer."""
    return request.joins_experts and tensor.is_expert and not tensor.is_linear


def _experts(request: StateRequest, tp: int) -> list[int]:
    """Elements of experts in each layer of a period; a closed form's layer is one. Maps of their own do not count.

    Neither do those in 4 bits: autograd keeps no view of them (``trainer.model.four_bit_experts``).
    """
    found: dict[str, int] = {}
    for each in request.shape.layer:
        if _is_joined(each, request) and not is_packed(each, request.storage):
            first = each.name.partition(".")[0]
            place = first if first.isdigit() else ""
            found[place] = found.get(place, 0) + each.elements_per_rank(tp)
    return list(found.values())


def _last_map(layer: Iterable[ParameterTensor], elements: Callable[[ParameterTensor], float]) -> float:
    """Elements of a layer's last linear map; with experts, of the largest tensor of them."""
    maps = [each for each in layer if each.is_linear or each.is_expert]
    experts = [elements(each) for each in maps if each.is_expert]
    return max(experts) if experts else elements(maps[-1]) if maps else 0
