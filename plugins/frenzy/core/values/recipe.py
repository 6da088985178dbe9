"""How a step is run, where neither job nor plan decides it.

The memory model and the DeepSpeed config both ask here, so they cannot differ. What each setting
changes: docs/decisions/a-recipe-that-is-fast.md.
"""

from __future__ import annotations

from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision


def is_fused(optimizer: str, kind: DeviceKind) -> bool:
    """Whether one kernel updates a whole partition in place, without a root and a quotient as long as it.

    Not on a virtual GPU: its stored measurements are of torch's plain loop.
    """
    return optimizer == "adamw" and kind is DeviceKind.CUDA


def is_summed_in_fp32(precision: Precision, accumulation_steps: int, *, offload: bool) -> bool:
    """Whether gradients that are made in 16 bits are added up over micro-batches in fp32.

    Not where the host adds them up: DeepSpeed does that in the weights' format.
    """
    return precision in (Precision.BF16, Precision.FP16) and accumulation_steps > 1 and not offload


def is_overlapped(kind: DeviceKind, dp: int, *, offload: bool) -> bool:
    """Whether stages 1 and 2 reduce one bucket while the next one fills (stage 3 always does, with one).

    A CPU has no streams to do both on. With the optimizer on the host, gradients leave one by one anyway.
    """
    return kind is DeviceKind.CUDA and dp > 1 and not offload


def is_pinned(kind: DeviceKind) -> bool:
    """Whether what is offloaded is page-locked, without which no copy runs beside the computation."""
    return kind is DeviceKind.CUDA
