"""What a real card holds beside the tensors of a training step.

Figures of others; this project has not measured them on a card. They are taken at their upper end,
because they only enter what the card must have.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frenzy.core.hardware import DeviceKind
from frenzy.core.memory_workload import Array, PlanGrid
from frenzy.core.units import KIB, MIB

# Two handles (forward and backward thread) of 2 x 4 MiB + 8 x 16 KiB, and of 32 MiB from Hopper on
# (PyTorch, aten/src/ATen/cuda/CUDABlas.cpp: the default of CUBLAS_WORKSPACE_CONFIG).
CUBLAS_WORKSPACES_BYTES: Final = 2 * (8 * MIB + 8 * 16 * KIB)
_HOPPER_WORKSPACES_BYTES: Final = 2 * 32 * MIB
# CUDA's context with its kernels: 0.4 to 0.6 GiB by card and driver.
CONTEXT_BYTES: Final = 600 * MIB
# Buffers of one NCCL communicator: 544 to 688 MB by number of channels and peers.
_COMMUNICATOR_BYTES: Final = 688_000_000


def workspace_bytes(kind: DeviceKind) -> int:
    """cuBLAS' workspaces, which PyTorch's allocator counts as allocated."""
    return CUBLAS_WORKSPACES_BYTES if kind is DeviceKind.CUDA else 0


def beside_bytes(kind: DeviceKind, grid: PlanGrid) -> Array:
    """What the card needs outside PyTorch's allocator, and Hopper's larger workspaces.

    One communicator for data-parallel ranks, one more with tensor parallelism; none on a single rank.
    """
    if kind is not DeviceKind.CUDA:
        return np.zeros(len(grid))
    communicators = (grid.dp > 1).astype(np.float64) + (grid.tp > 1)
    return CONTEXT_BYTES + _HOPPER_WORKSPACES_BYTES - CUBLAS_WORKSPACES_BYTES + _COMMUNICATOR_BYTES * communicators
