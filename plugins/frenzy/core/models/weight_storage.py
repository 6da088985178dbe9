"""How the weights of a model are stored: plain, or with the layers' linear maps quantised to 4 bits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from frenzy.core.models.parameters import ModelShape, ParameterTensor

_NF4_BLOCK: Final = 64
_DOUBLE_BLOCK: Final = 256
_NF4_TABLES_BYTES: Final = 4 * (16 + 256)
_GPTQ_GROUP: Final = 128


class WeightStorage(StrEnum):
    """plain: one format for all. nf4: bitsandbytes' 4-bit blocks (``double``: with their scales
    quantised too). gptq: packed integers with fp16 scales for each group of 128 inputs, or for all of them at once.
    """

    PLAIN = "plain"
    NF4 = "nf4"
    NF4_DOUBLE = "nf4-double"
    GPTQ = "gptq"
    GPTQ_UNGROUPED = "gptq-ungrouped"


NF4_STORAGES: Final = frozenset({WeightStorage.NF4, WeightStorage.NF4_DOUBLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    """Bytes of a part of the model.

    sharded: parameters, which sharding divides. beside: scales kept apart from the parameters,
    whole on every rank.
    """

    sharded: float = 0.0
    beside: float = 0.0

    def __add__(self, other: StoredBytes) -> StoredBytes:
        return StoredBytes(sharded=self.sharded + other.sharded, beside=self.beside + other.beside)

    def __mul__(self, times: int) -> StoredBytes:
        return StoredBytes(sharded=self.sharded * times, beside=self.beside * times)


def stored_tensor(tensor: ParameterTensor, storage: WeightStorage, weight_bytes: int) -> StoredBytes:
    """Bytes of one parameter in the format of ``storage`` (``weight_bytes`` an element when it is plain).

    NF4: half a byte an element and an fp32 scale for each 64 of them; with double quantisation one
    byte a scale, and an fp32 scale for each 256 of those (Dettmers et al. 2023, QLoRA, section 3).
    GPTQ: half a byte, an fp16 scale and a 4-bit zero for each group of inputs, an int32 group
    number for each input (the layout of AutoGPTQ's quantised linear map).
    """
    size = tensor.num_elements
    if not is_packed(tensor, storage):
        return StoredBytes(sharded=float(weight_bytes * size))
    if storage in {WeightStorage.GPTQ, WeightStorage.GPTQ_UNGROUPED}:
        groups = size / (_GPTQ_GROUP if storage is WeightStorage.GPTQ else tensor.columns)
        return StoredBytes(sharded=size / 2 + 2.5 * groups + 4.0 * tensor.columns)
    scales = size / _NF4_BLOCK
    beside = 4.0 * scales if storage is WeightStorage.NF4 else scales + 4.0 * scales / _DOUBLE_BLOCK
    return StoredBytes(sharded=size / 2, beside=beside + _NF4_TABLES_BYTES)


def is_packed(tensor: ParameterTensor, storage: WeightStorage) -> bool:
    """Whether a parameter of a layer is kept in 4 bits."""
    if storage is WeightStorage.PLAIN or not (tensor.is_linear or tensor.is_expert):
        return False
    # A row of inputs that is no multiple of the block stays plain (``trainer.four_bit``).
    return storage not in NF4_STORAGES or tensor.columns % _NF4_BLOCK == 0


def code_bytes(tensor: ParameterTensor, storage: WeightStorage, weight_bytes: int) -> float:
    """Bytes of an element of a parameter of a layer, without what lies beside it."""
    return 0.5 if storage in NF4_STORAGES and is_packed(tensor, storage) else float(weight_bytes)


def stored_layer(shape: ModelShape, storage: WeightStorage, weight_bytes: int) -> StoredBytes:
    """Bytes of one of the model's layers."""
    return sum((stored_tensor(each, storage, weight_bytes) for each in shape.layer), StoredBytes())


def stored_outside(shape: ModelShape, outside_bytes: int) -> StoredBytes:
    """Bytes of embeddings, last norm and head, which are never quantised."""
    outer = (*shape.embeddings, *shape.head)
    return StoredBytes(sharded=float(outside_bytes * sum(each.num_elements for each in outer)))
