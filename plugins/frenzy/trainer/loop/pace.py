"""Lines for a person who reads a rank's log."""

from __future__ import annotations

import logging
import math
from typing import Final

from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.telemetry import StepRecord
from frenzy.core.values.units import format_bytes, format_duration

logger = logging.getLogger("frenzy.trainer")
_SLOW_STEPS: Final = 3


class Pace:
    """Says once when this machine cannot keep up with the virtual GPU's speed, so that nobody wonders."""

    def __init__(self, gpu: GpuType, rank: int) -> None:
        self._gpu, self._num_slow = gpu, 0
        self._watches = gpu.kind is DeviceKind.VIRTUAL and rank == 0

    def note(self, *, throttle_s: float, step_time_s: float, flops: float) -> None:
        if not self._watches:
            return
        self._num_slow = self._num_slow + 1 if throttle_s == 0.0 else 0
        if self._num_slow == _SLOW_STEPS:
            self._watches = False
            logger.warning(
                "this machine is slower than the GPU type %s: a step takes %s where the type would take %s",
                self._gpu.name,
                format_duration(step_time_s),
                format_duration(flops / self._gpu.flops_per_s),
            )


def log_validation(step: int, loss: float) -> None:
    """One line for one validation."""
    logger.info("step %d  validation loss %.4f  perplexity %.4g", step, loss, math.exp(min(loss, 700.0)))


def log_progress(record: StepRecord, *, total_steps: int, num_ranks: int) -> None:
    """One line for one step."""
    logger.info(
        "step %d/%d  loss %.4f  lr %.3g  %s/step  %.0f tokens/s  memory %s of %s",
        record.step,
        total_steps,
        record.loss,
        record.learning_rate,
        format_duration(record.step_time_s),
        record.tokens_per_s * num_ranks,
        format_bytes(record.peaks.allocated_bytes),
        format_bytes(record.capacity_bytes),
    )
