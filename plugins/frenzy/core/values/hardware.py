"""GPU types: what one device of a kind can hold and do.

A *virtual* GPU is a process of this machine with an enforced memory budget and a throttled
speed: its capacity is the budget, its peak rate the rate the throttle holds it to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from frenzy.core.values.job import Precision


class DeviceKind(StrEnum):
    CUDA = "cuda"
    VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """One kind of GPU.

    memory_bytes: capacity as the driver reports it, or the virtual GPU's budget.
    flops_per_s: dense peak in the 16-bit formats (fp32 for a virtual GPU); bf16_flops_per_s: in bf16
    where that differs. fp32_flops_per_s: in fp32 proper; tf32_flops_per_s: where the job allows TF32.
    memory_bandwidth_bytes_per_s, link_bytes_per_s: device memory; GPU to GPU inside a node.
    node_link_bytes_per_s: from a node of such GPUs to others, all its network adapters together.
    price_per_hour: of one GPU, in the cluster's currency; 0: free, None: nobody said. power_w: limit of the board.
    max_gpus_per_job: how many can work together; None for any number. One of a card's slices or shares.
    """

    name: str
    memory_bytes: int
    flops_per_s: float
    kind: DeviceKind = DeviceKind.CUDA
    fp32_flops_per_s: float | None = None
    memory_bandwidth_bytes_per_s: float = 1e12
    link_bytes_per_s: float = 16e9
    compute_capability: str | None = None
    price_per_hour: float | None = None
    bf16_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    power_w: float | None = None
    node_link_bytes_per_s: float | None = None
    max_gpus_per_job: int | None = None

    @property
    def pool(self) -> str:
        """Name of the Airflow pool that mirrors this type."""
        return f"gpu_{self.name}"

    def peak_flops_per_s(self, precision: Precision) -> float:
        """Dense peak rate in ``precision``."""
        if precision is Precision.FP32 and self.fp32_flops_per_s is not None:
            return self.fp32_flops_per_s
        if precision in (Precision.BF16, Precision.AUTOCAST_BF16) and self.bf16_flops_per_s is not None:
            return self.bf16_flops_per_s
        return self.flops_per_s
