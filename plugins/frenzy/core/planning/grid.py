"""Every way to cut a job over GPUs: data and tensor parallel degree, ZeRO stage, micro-batch, switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from frenzy.core.memory.closed_form import Integers, PlanGrid, PlanRow
from frenzy.core.models.parameters import ModelShape
from frenzy.core.values.job import Checkpointing

ZERO_STAGES: Final = (1, 2, 3)
_MAX_TENSOR_PARALLEL: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GridLimits:
    """max_gpus: no plan is wider. max_tp: no tensor-parallel group is wider (one node's GPUs).

    max_micro_batch: no micro-batch but 1 is larger. beyond: instead, only what is larger and all that a rank has of
    the batch. micro_batch: the only one, however large. offload: also plans that keep the optimizer in host memory.
    """

    max_gpus: int
    max_tp: int
    max_micro_batch: int
    beyond: bool = False
    micro_batch: int | None = None
    offload: bool = False


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
    dp, micro_batch = _batch_splits(global_batch, limits)
    choices = {Checkpointing.AUTO: (False, True), Checkpointing.ON: (True,), Checkpointing.OFF: (False,)}
    offload = (False, True) if limits.offload else (False,)
    degrees = tensor_parallel_degrees(shape, limits.max_tp)
    splits, switches = np.arange(len(dp)), choices[checkpointing]
    columns = np.meshgrid(degrees, splits, ZERO_STAGES, switches, offload, indexing="ij")
    tp, split, stage, checkpoint, to_host = (each.ravel() for each in columns)
    wanted = (dp[split] * tp <= limits.max_gpus) & ((stage == ZERO_STAGES[0]) | (dp[split] > 1))
    tp, split, stage = tp[wanted], split[wanted], stage[wanted]
    return PlanGrid(
        dp=dp[split],
        tp=tp,
        zero_stage=stage,
        micro_batch=micro_batch[split],
        accumulation=global_batch // dp[split] // micro_batch[split],
        checkpointing=checkpoint[wanted],
        offload=to_host[wanted],
    )


def _batch_splits(global_batch: int, limits: GridLimits) -> tuple[Integers, Integers]:
    """(data-parallel degree, micro-batch) of every way to cut the global batch evenly, both ascending."""
    degrees = np.asarray(divisors(global_batch, limits.max_gpus), dtype=np.int64)
    if limits.beyond:
        micro_batch = global_batch // degrees
        wanted = micro_batch > limits.max_micro_batch
        return degrees[wanted], micro_batch[wanted]
    sizes = divisors(global_batch, max(1, limits.max_micro_batch))
    if limits.micro_batch is not None:
        sizes = (limits.micro_batch,)
    dp, micro_batch = np.meshgrid(degrees, np.asarray(sizes, dtype=np.int64), indexing="ij")
    whole = (global_batch // dp) % micro_batch == 0
    return dp[whole], micro_batch[whole]


def grid_of(rows: Sequence[PlanRow | tuple[int, int, int, int, int, bool]]) -> PlanGrid:
    """The columns of ``rows``."""
    plans = [PlanRow(*row) for row in rows]
    numbers = np.asarray([plan[:5] for plan in plans], dtype=np.int64).reshape(len(plans), 5)
    switches = np.asarray([plan[5:] for plan in plans], dtype=np.bool_).reshape(len(plans), 2)
    return PlanGrid(
        dp=numbers[:, 0],
        tp=numbers[:, 1],
        zero_stage=numbers[:, 2],
        micro_batch=numbers[:, 3],
        accumulation=numbers[:, 4],
        checkpointing=switches[:, 0],
        offload=switches[:, 1],
    )
