"""AdamW with moments in 8 bits, and how its moments go into checkpoints and come back.

A moment is one byte for each element, an index into a table of 256 values from -1 to 1, and one
fp32 scale for each block of 256 elements (block-wise dynamic quantisation, Dettmers et al. 2021,
arXiv 2110.02861). Blocks lie across the parameters of a rank's flat partition, so another layout
has other blocks: checkpoints hold the moments in fp32, by parameter and position as AdamW's own.
Going back to the same blocks gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

BLOCK_ELEMENTS: Final = 256
# Below this many elements the optimizer keeps its moments in fp32.
MIN_ELEMENTS: Final = 4096
_WORK_ELEMENTS: Final = 2**20
_KEYS: Final[Mapping[str, str]] = {"exp_avg": "1", "exp_avg_sq": "2"}


def make_adamw_8bit(
    parameters: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]], settings: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """The optimizer of bitsandbytes for parameters or groups of them. settings: lr, betas, weight_decay."""
    from bitsandbytes.optim import AdamW8bit

    optimizer: torch.optim.Optimizer = AdamW8bit(
        list(parameters),
        lr=settings["lr"],
        betas=tuple(settings["betas"]),
        weight_decay=settings["weight_decay"],
        min_8bit_size=MIN_ELEMENTS,
    )
    return optimizer


def is_eight_bit(optimizer: object) -> bool:
    """Whether ``optimizer`` is one that ``make_adamw_8bit`` made."""
    return type(optimizer).__module__.partition(".")[0] == "bitsandbytes"


@dataclass(frozen=True, slots=True)
class EightBitMoment:
    """Elements [start, start + count) of a moment; reads like a flat fp32 tensor, a chunk at a time."""

    codes: torch.Tensor
    scales: torch.Tensor
    table: torch.Tensor
    start: int
    count: int

    dtype = torch.float32

    def numel(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    def detach(self) -> EightBitMoment:
        return self

    def narrow(self, dimension: int, start: int, length: int) -> EightBitMoment:
        return replace(self, start=self.start + start, count=length)

    def cpu(self) -> torch.Tensor:
        """The elements in fp32, on the host."""
        end = self.start + self.count
        codes = self.codes[self.start : end].cpu().long()
        first = self.start // BLOCK_ELEMENTS
        scales = self.scales[first : -(-end // BLOCK_ELEMENTS)].cpu()
        return self.table.cpu()[codes] * scales[torch.arange(self.start, end) // BLOCK_ELEMENTS - first]


def moments(state: Mapping[str, Any]) -> dict[str, Any]:
    """The moments by their usual names: tensors where the optimizer keeps fp32, else EightBitMoments."""
    return {name: _moment(state, key) for name, key in _KEYS.items() if f"state{key}" in state}


def _moment(state: Mapping[str, Any], key: str) -> Any:
    codes = state[f"state{key}"]
    if codes.dtype == torch.float32:
        return codes
    return EightBitMoment(codes, state[f"absmax{key}"], state[f"qmap{key}"], 0, codes.numel())


def store_moment(state: MutableMapping[str, Any], name: str, values: torch.Tensor, device: torch.device) -> None:
    """Put a moment, flat fp32 ``values`` on the host, into the optimizer's ``state`` in its own form."""
    key = _KEYS[name]
    state.setdefault("step", 0)
    if values.numel() < MIN_ELEMENTS:
        state[f"state{key}"] = values.to(device)
        return
    table = _table(signed=name == "exp_avg")
    codes, scales = quantised(values, table)
    state[f"state{key}"], state[f"absmax{key}"] = codes.to(device), scales.to(device)
    state[f"qmap{key}"] = table.to(device)


def _table(*, signed: bool) -> torch.Tensor:
    from bitsandbytes.functional import create_dynamic_map

    table: torch.Tensor = create_dynamic_map(signed=signed)
    return table


def quantised(values: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (uint8) and block scales of flat fp32 ``values``; exact for values that came from such codes.

    The table's ends differ (-0.993 and 1), so a block's scale follows from the end its largest element
    must have had.
    """
    num_blocks = -(-values.numel() // BLOCK_ELEMENTS)
    codes = torch.empty(values.numel(), dtype=torch.uint8)
    scales = torch.empty(num_blocks)
    between = (table[1:] + table[:-1]) / 2
    for start in range(0, values.numel(), _WORK_ELEMENTS):
        piece = values[start : start + _WORK_ELEMENTS]
        blocks = torch.nn.functional.pad(piece, (0, -piece.numel() % BLOCK_ELEMENTS)).view(-1, BLOCK_ELEMENTS)
        scale = torch.maximum(blocks.amax(1) / table[-1], (-blocks.amin(1)).clamp(min=0) / _below(table))
        first = start // BLOCK_ELEMENTS
        scales[first : first + len(scale)] = scale
        relative = blocks / torch.where(scale > 0, scale, 1.0).unsqueeze(1)
        codes[start : start + piece.numel()] = torch.bucketize(relative, between).view(-1)[: piece.numel()]
    return codes, scales


def _below(table: torch.Tensor) -> torch.Tensor:
    """How far the table reaches below zero; 1 for a table of positive values."""
    return -table[0] if table[0] < 0 else torch.ones(())
