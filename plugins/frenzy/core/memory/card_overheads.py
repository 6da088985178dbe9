"""What a plan adds for the libraries on a real card, to its peak and to what the card must have."""

from __future__ import annotations

from typing import Final

import numpy as np

from frenzy.core.memory.cuda_memory import (
    COMMUNICATOR_BYTES,
    CONTEXT_BYTES,
    CUBLAS_WORKSPACES_BYTES,
    HOPPER_CONTEXT_BYTES,
    HOPPER_WORKSPACES_BYTES,
)
from frenzy.core.memory.model_inputs import Array, PlanGrid
from frenzy.core.values.hardware import DeviceKind

_HOPPER: Final = 9.0


def workspace_bytes(kind: DeviceKind) -> int:
    """cuBLAS' workspaces, which PyTorch's allocator counts as allocated."""
    return CUBLAS_WORKSPACES_BYTES if kind is DeviceKind.CUDA else 0


def larger_workspace_bytes(compute_capability: str | None) -> int:
    """What the workspaces take beyond ``workspace_bytes`` on Hopper and later cards; 0 where that is not known."""
    return HOPPER_WORKSPACES_BYTES - CUBLAS_WORKSPACES_BYTES if _is_hopper_or_later(compute_capability) else 0


def larger_context_bytes(compute_capability: str | None) -> int:
    """What CUDA takes beyond ``beside_bytes`` on such a card."""
    return HOPPER_CONTEXT_BYTES - CONTEXT_BYTES if _is_hopper_or_later(compute_capability) else 0


def _is_hopper_or_later(compute_capability: str | None) -> bool:
    return compute_capability is not None and float(compute_capability) >= _HOPPER


def beside_bytes(kind: DeviceKind, grid: PlanGrid) -> Array:
    """What the card needs outside PyTorch's allocator, and Hopper's larger workspaces on any card.

    One communicator for data-parallel ranks, one more with tensor parallelism; none on a single rank.
    """
    if kind is not DeviceKind.CUDA:
        return np.zeros(len(grid))
    communicators = (grid.dp > 1).astype(np.float64) + (grid.tp > 1)
    return CONTEXT_BYTES + HOPPER_WORKSPACES_BYTES - CUBLAS_WORKSPACES_BYTES + COMMUNICATOR_BYTES * communicators
