"""What the memory model is asked: the workload the user fixed, and the plans as columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.hardware import DeviceKind
from frenzy.core.job import Precision
from frenzy.core.model_parameters import ModelShape
from frenzy.core.trainable import TrainedPart

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_WEIGHT_BYTES: Final = {Precision.FP32: 4, Precision.AUTOCAST_BF16: 4, Precision.BF16: 2, Precision.FP16: 2}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained, whatever the plan: everything the user fixed."""

    shape: ModelShape
    trained: TrainedPart
    precision: Precision
    optimizer: str
    sequence_length: int
    kind: DeviceKind
    bucket_elements: int

    @property
    def weight_bytes(self) -> int:
        return _WEIGHT_BYTES[self.precision]


@dataclass(frozen=True, kw_only=True)
class PlanGrid:
    """Plans as columns; all arrays have one entry for each plan.

    offload: master weights, optimizer states and the gradient partition are in host memory.
    """

    dp: Integers
    tp: Integers
    zero_stage: Integers
    micro_batch: Integers
    accumulation: Integers
    checkpointing: NDArray[np.bool_]
    offload: NDArray[np.bool_]

    def take(self, indices: Integers) -> PlanGrid:
        """The plans at ``indices``."""
        return PlanGrid(**{each.name: getattr(self, each.name)[indices] for each in fields(self)})

    def __len__(self) -> int:
        return len(self.dp)
