"""Copies of a rank's tensors in host memory, made at a step's end and written while the next steps run."""

from __future__ import annotations

import logging
import mmap
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import torch

from frenzy.trainer.model.eight_bit_adam import EightBitMoment

logger = logging.getLogger(__name__)

T = TypeVar("T", torch.Tensor, EightBitMoment)


class Snapshot:
    """Host memory for the tensors of one rank, kept from one checkpoint to the next.

    Its pages are mapped as shared: a virtual GPU's limit counts private memory, and this is the host's. On a GPU
    they are page-locked where the system allows it, so that copies run at the link's speed. Raises OSError (ENOMEM)
    or MemoryError where there is no memory.
    """

    def __init__(self) -> None:
        self._copies: dict[str, torch.Tensor] = {}
        self._locked: set[int] = set()
        self._has_warned = False

    def take(self, key: str, tensor: T) -> T:
        """A copy of ``tensor`` under ``key``; whole once ``settle`` has returned, and until the next is taken."""
        if isinstance(tensor, EightBitMoment):
            return replace(
                tensor,
                codes=self._copy(f"{key}.codes", tensor.codes),
                scales=self._copy(f"{key}.scales", tensor.scales),
                table=self._copy(f"{key}.table", tensor.table),
            )
        return self._copy(key, tensor)

    def _copy(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        copy = self._copies.get(key)
        if copy is None or copy.dtype != tensor.dtype or copy.numel() != tensor.numel():
            copy = self._copies[key] = self._host_memory(tensor)
        copy.copy_(tensor.detach().view(-1), non_blocking=True)
        return copy

    def settle(self) -> None:
        """Wait for the copies from the GPU."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        """Give the memory back, once nobody reads the copies any more."""
        for copy in self._copies.values():
            if copy.data_ptr() in self._locked:
                torch.cuda.cudart().cudaHostUnregister(copy.data_ptr())
        self._copies.clear()

    def _host_memory(self, like: torch.Tensor) -> torch.Tensor:
        """Flat memory for as many elements. torch's own page-locked memory would be up to twice as much."""
        memory = torch.frombuffer(mmap.mmap(-1, max(1, like.numel()) * like.itemsize), dtype=like.dtype)
        if like.is_cuda:
            self._lock(memory, like.device)
        return memory.narrow(0, 0, like.numel())

    def _lock(self, memory: torch.Tensor, device: torch.device) -> None:
        """Page-lock ``memory``. Where the system refuses, copies into it are slower, and nothing else."""
        failed = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        if not failed:
            self._locked.add(memory.data_ptr())
            return
        with suppress(RuntimeError):  # CUDA's last error, which the next kernel would raise
            torch.zeros(1, device=device)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%d bytes of host memory could not be page-locked (CUDA error %d): checkpoints hold training up longer",
                memory.nbytes,
                failed,
            )
