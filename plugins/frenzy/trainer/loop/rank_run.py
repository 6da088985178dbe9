"""What one rank trains with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frenzy.core.models.flops import FlopsShape
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.callbacks import Callback
from frenzy.trainer.loop.prepare import Prepared
from frenzy.trainer.telemetry.device import Device
from frenzy.trainer.telemetry.shared_progress import SharedProgress
from frenzy.trainer.telemetry.writer import RecordPipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything one rank trains with."""

    spec: LaunchSpec
    prepared: Prepared
    paths: RunPaths
    engine: Any
    config: Any
    device: Device
    board: SharedProgress
    records: RecordPipe
    rank: int
    local_rank: int
    callbacks: tuple[Callback, ...]
    flops_shape: FlopsShape
    stop_is_set: Callable[[], bool]
    scratch: Path

    @property
    def dp_rank(self) -> int:
        """Ranks of one tensor-parallel group are neighbours and read the same data."""
        return self.rank // self.spec.plan.tp

    @property
    def tokens_per_step(self) -> int:
        return self.spec.plan.global_batch_size * self.spec.job.data.sequence_length
