"""What CUDA and its libraries hold on a card beside a program's own tensors.

Figures of others, but for Hopper's context.
"""

from __future__ import annotations

from typing import Final

from frenzy.core.values.units import KIB, MIB

# Two handles (forward and backward thread) of 2 x 4 MiB + 8 x 16 KiB, and of 32 MiB from Hopper on
# (PyTorch, aten/src/ATen/cuda/CUDABlas.cpp: the default of CUBLAS_WORKSPACE_CONFIG).
CUBLAS_WORKSPACES_BYTES: Final = 2 * (8 * MIB + 8 * 16 * KIB)
HOPPER_WORKSPACES_BYTES: Final = 2 * 32 * MIB
# CUDA's context with its kernels: 0.4 to 0.6 GiB by card and driver; the upper end.
CONTEXT_BYTES: Final = 600 * MIB
# One rank that filled an H100 (torch 2.11, CUDA 13): in use by the process, less what torch's allocator had
# (tests/data/gpu/h100.jsonl, growing memory).
HOPPER_CONTEXT_BYTES: Final = 1710 * MIB
# Buffers of one NCCL communicator: 544 to 688 MB by number of channels and peers; the upper end. By its source
# (init.cc, device.h) a connection has buffers of 0.5, 4.7 and 4 MiB for its three protocols, and 2 MiB at its sender:
# 12 MiB in granules of 2 (as NVIDIA/nccl issue 1685 shows). Two neighbours over an A100's 24 channels take 604 MB.
COMMUNICATOR_BYTES: Final = 688_000_000
# What a process on one of several cards had outside of torch's allocator when its card was full: 0.36 to 2.10 GiB in 14
# logs of public issues (tests/data/memory/reports/outside_torch.csv), most of A100 and H100 1.6 or more; the upper end.
OUTSIDE_ON_SEVERAL_CARDS_BYTES: Final = 2160 * MIB
