"""What a script takes from its plan: plans that differ in anything else are none of its."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from frenzy.core.memory.closed_form import PlanGrid
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.job import Checkpointing
from frenzy.core.values.workload import Honour, WorkloadSpec


def honoured(grid: PlanGrid, request: PlanRequest) -> PlanGrid:
    """The plans of ``grid`` that the request's script can run; all of them for the built-in trainer.

    Without ``micro_batch`` a step is one micro-batch, without ``zero`` the stage is 1 (see ``as_held``), without
    ``checkpointing`` activations are kept unless the specification says that they are not.
    """
    workload = request.job.workload
    if workload is None:
        return grid
    wanted = (grid.tp == 1) & (grid.dp >= workload.min_gpus)
    if workload.most_gpus is not None:
        wanted &= grid.dp <= workload.most_gpus
    if not workload.takes(Honour.MICRO_BATCH):
        wanted &= grid.accumulation == 1
    if not workload.takes(Honour.ZERO):
        wanted &= grid.zero_stage == 1
    if not workload.takes(Honour.CHECKPOINTING):
        wanted &= grid.checkpointing == (request.job.training.gradient_checkpointing is Checkpointing.ON)
    if not workload.takes(Honour.OFFLOAD):
        wanted &= ~grid.offload
    return grid.take(np.flatnonzero(wanted & _goes_on(grid, request)))


def as_held(grid: PlanGrid, workload: WorkloadSpec | None) -> PlanGrid:
    """``grid`` as far as ZeRO's memory goes: where a script does not take its stage, each rank holds all states."""
    if workload is None or workload.takes(Honour.ZERO) or not workload.divides_states:
        return grid
    return replace(grid, dp=np.ones_like(grid.dp))


def _goes_on(grid: PlanGrid, request: PlanRequest) -> NDArray[np.bool_]:
    """Plans on which the script's checkpoint can be read."""
    written = request.resumes_as
    if written is None:
        return np.ones(len(grid), dtype=np.bool_)
    return np.asarray((grid.dp == written.num_gpus) & (grid.zero_stage == written.zero_stage), dtype=np.bool_)
