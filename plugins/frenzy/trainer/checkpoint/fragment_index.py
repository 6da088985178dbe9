"""Reading a checkpoint by parameter and range, whatever layout it was written on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from deepspeed.checkpoint.affine import SCALE_POWER_BY_STATE, ParamAffineMap

from frenzy.core.lifecycle.checkpoint_manifest import FileEntry
from frenzy.core.values.errors import ContractError
from frenzy.trainer.tensor_file import StoredTensor, read_header

# What a piece is of its parameter, beside the optimizer's own states.
WEIGHTS: Final = "fp32"
FROZEN: Final = "frozen"
BUFFER: Final = "buffer"


def tensor_key(state: str, start: int, name: str) -> str:
    """Key of a piece in a file: what it is of the parameter, its first element, the parameter."""
    return f"{state}:{start}:{name}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of a flattened (tensor-parallel shard of a) parameter from ``start`` on."""

    start: int
    stored: StoredTensor

    @property
    def end(self) -> int:
        return self.start + self.stored.numel


@dataclass(slots=True)
class FragmentIndex:
    """Pieces of all ranks' files by (state, parameter, tensor-parallel rank).

    ``tensor_parallel_maps`` says for each parameter how its shards make up the whole.
    """

    tensor_parallel_maps: Mapping[str, Any] = field(default_factory=dict)
    rng_by_rank: dict[int, str] = field(default_factory=dict)
    _pieces: dict[tuple[str, str, int], list[Piece]] = field(default_factory=dict)
    _states: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of_files(cls, files: Mapping[str, FileEntry], tensor_parallel_maps: Mapping[str, Any]) -> FragmentIndex:
        """files: each place, and what the manifest says of it."""
        index = cls(tensor_parallel_maps)
        for place, entry in files.items():
            index._add(place, entry)
        for pieces in index._pieces.values():
            pieces.sort(key=lambda each: each.start)
        return index

    def _add(self, place: str, entry: FileEntry) -> None:
        tensors, metadata = read_header(place, entry)
        if "rng" in metadata:  # frozen weights have files of their own, without
            self.rng_by_rank[int(metadata["rank"])] = metadata["rng"]
        tp_rank = int(metadata["tp_rank"])
        for key, stored in tensors.items():
            state, start, name = key.split(":", 2)
            self._pieces.setdefault((state, name, tp_rank), []).append(Piece(int(start), stored))
            self._states.setdefault(name, set()).add(state)

    def states_of(self, name: str) -> frozenset[str]:
        """What is stored of a parameter: ``fp32`` and its optimizer states. Empty when unknown."""
        return frozenset(self._states.get(name, ()))

    def tensors(self) -> frozenset[tuple[str, str]]:
        """(state, parameter) of everything stored."""
        return frozenset((state, name) for state, name, _ in self._pieces)

    def numel(self, state: str, name: str, tp_rank: int) -> int:
        """Elements of a parameter's shard, pieces of all ranks together."""
        pieces = self._pieces.get((state, name, tp_rank), ())
        return max((each.end for each in pieces), default=0)

    def read(self, state: str, name: str, tp_rank: int, start: int, target: torch.Tensor) -> None:
        """Fill the flat ``target`` with a shard's elements from ``start`` on.

        Raises ContractError when the checkpoint does not hold all of them.
        """
        position, end = start, start + target.numel()
        for piece in self._pieces.get((state, name, tp_rank), ()):
            if piece.start <= position < piece.end:
                upto = min(end, piece.end)
                window = target.narrow(0, position - start, upto - position)
                piece.stored.read_into(window, position - piece.start)
                position = upto
            if position >= end:
                break
        if position < end:
            raise ContractError(f"the checkpoint lacks elements {position} to {end} of {state} of {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReader:
    """Reads what one tensor-parallel rank needs, cutting whole parameters anew if the degree changed.

    target_maps: how this engine splits parameters over its tensor-parallel ranks, by name. on_progress: told the
    bytes of each shard that was filled.
    """

    index: FragmentIndex
    source_tp: int
    target_tp: int
    tp_rank: int
    target_maps: Mapping[str, Any]
    on_progress: Callable[[int], None] = lambda _: None

    def read(self, state: str, name: str, start: int, target: torch.Tensor, of_numel: int) -> None:
        """Fill ``target`` with elements of this rank's shard of the parameter from ``start`` on.

        of_numel: elements the whole shard has in the engine. Raises ContractError when the
        checkpoint's has another number.
        """
        if self.source_tp == self.target_tp:
            _require_numel(state, name, of_numel, self.index.numel(state, name, self.tp_rank))
            self.index.read(state, name, self.tp_rank, start, target)
        else:
            shard = self._cut(state, name, self._whole(state, name))
            _require_numel(state, name, of_numel, shard.numel())
            target.copy_(shard.narrow(0, start, target.numel()))
        self.on_progress(target.nbytes)

    def _whole(self, state: str, name: str) -> torch.Tensor:
        split = self.index.tensor_parallel_maps.get(name)
        if split is None:
            return self._shard(state, name, 0)
        shards = {rank: self._shard(state, name, rank) for rank in range(self.source_tp)}
        whole: torch.Tensor = ParamAffineMap.from_dict(split).rebuild(shards, _scale_power(state))
        return whole.reshape(-1)

    def _shard(self, state: str, name: str, tp_rank: int) -> torch.Tensor:
        shard = torch.empty(self.index.numel(state, name, tp_rank))
        self.index.read(state, name, tp_rank, 0, shard)
        return shard

    def _cut(self, state: str, name: str, whole: torch.Tensor) -> torch.Tensor:
        split = self.target_maps.get(name)
        if split is None:
            return whole
        shard: torch.Tensor = ParamAffineMap.from_dict(split).extract(whole, self.tp_rank, _scale_power(state))
        return shard.reshape(-1)


def _require_numel(state: str, name: str, needed: int, stored: int) -> None:
    if needed != stored:
        raise ContractError(f"the model needs {needed} elements, the checkpoint has {stored} of {state} of {name}")


def _scale_power(state: str) -> int:
    """Weights count once; anything made of gradients is refused by the map when it is scaled."""
    return int(SCALE_POWER_BY_STATE.get(state, 1 if state in ("frozen", "buffer") else -1))
