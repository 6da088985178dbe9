"""Every way to cut a job over GPUs: data and tensor parallel degree, ZeRO stage, micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from frenzy.core.job import Checkpointing
from frenzy.core.memory import PlanGrid
from frenzy.core.model_parameters import ModelShape

ZERO_STAGES: Final = (1, 2, 3)
_MAX_TENSOR_PARALLEL: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GridLimits:
    """max_gpus: no plan is wider. max_tp: no tensor-parallel group is wider (one node's GPUs)."""

    max_gpus: int
    max_tp: int


def divisors(number: int, most: int) -> tuple[int, ...]:
    """Divisors of ``number`` up to ``most``, ascending."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    both = {*small, *(number // each for each in small)}
    return tuple(sorted(each for each in both if each <= most))


def tensor_parallel_degrees(shape: ModelShape, max_tp: int) -> tuple[int, ...]:
    """Degrees that divide the attention heads and the key/value heads."""
    most = min(max_tp, _MAX_TENSOR_PARALLEL)
    return tuple(each for each in divisors(shape.num_heads, most) if shape.num_key_value_heads % each == 0)


def plan_grid(shape: ModelShape, global_batch: int, checkpointing: Checkpointing, limits: GridLimits) -> PlanGrid:
    """All plans with exactly ``global_batch`` sequences a step, at most ``limits`` wide.

    Stages 2 and 3 divide nothing on a single data-parallel rank and are left out there.
    """
    choices = {Checkpointing.AUTO: (False, True), Checkpointing.ON: (True,), Checkpointing.OFF: (False,)}
    rows: list[tuple[int, int, int, int, int, bool]] = []
    for tp in tensor_parallel_degrees(shape, limits.max_tp):
        for dp in divisors(global_batch, limits.max_gpus // tp):
            stages = ZERO_STAGES if dp > 1 else ZERO_STAGES[:1]
            per_rank = global_batch // dp
            rows += [
                (dp, tp, stage, micro, per_rank // micro, checkpoint)
                for stage, micro, checkpoint in product(stages, divisors(per_rank, per_rank), choices[checkpointing])
            ]
    return grid_of(rows)


def grid_of(rows: Sequence[tuple[int, int, int, int, int, bool]]) -> PlanGrid:
    """Columns of (dp, tp, ZeRO stage, micro-batch, accumulation, checkpointing) rows."""
    table = np.asarray([row[:5] for row in rows], dtype=np.int64).reshape(len(rows), 5)
    return PlanGrid(
        dp=table[:, 0],
        tp=table[:, 1],
        zero_stage=table[:, 2],
        micro_batch=table[:, 3],
        accumulation=table[:, 4],
        checkpointing=np.asarray([row[5] for row in rows], dtype=np.bool_),
    )
