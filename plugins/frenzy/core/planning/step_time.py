"""Predicted time of an optimizer step of each plan.

Real GPUs: ``throughput``, with the shares of their datasheets that were measured. Virtual GPUs: what
their throttle holds them to, from the same FLOP count, and what the ranks wait for each other.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import PlanGrid, Workload
from frenzy.core.models.flops import training_flops
from frenzy.core.planning.step_work import model_work
from frenzy.core.planning.throughput import Link, StepWork, step_parts, step_seconds
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.utilisation import utilisation
from frenzy.core.values.zero_buckets import zero_buckets

__all__ = ["Array", "Link", "step_times_s", "step_work"]

Array = NDArray[np.float64]


def step_times_s(workload: Workload, grid: PlanGrid, gpu: GpuType, link: Link, calibration: Calibration) -> Array:
    """Seconds of one optimizer step of each plan in ``grid`` on ``gpu``."""
    if gpu.kind is DeviceKind.CUDA:
        return step_seconds(step_parts(step_work(workload), grid, gpu, link), utilisation(gpu))
    return _virtual_step_times_s(workload, grid, gpu, link, calibration)


def step_work(workload: Workload) -> StepWork:
    """What ``workload`` computes in a step; DeepSpeed communicates gradients in the format of the weights."""
    return replace(
        model_work(workload.shape, workload.trained, workload.storage, workload.sequence_length),
        precision=workload.precision,
        weight_bytes=workload.weight_bytes,
        gradient_bytes=workload.weight_bytes,
        repeated=workload.checkpointed_share,
        reductions=_num_buckets(workload),
    )


def _virtual_step_times_s(
    workload: Workload, grid: PlanGrid, gpu: GpuType, link: Link, calibration: Calibration
) -> Array:
    compute = _compute_s(workload, grid, gpu, calibration)
    overhead = grid.accumulation * calibration.micro_batch_overhead_s
    latency = _num_collectives(workload, grid) * calibration.collective_latency_s
    return compute + overhead + latency + _communication_s(workload, grid, link)


def _compute_s(workload: Workload, grid: PlanGrid, gpu: GpuType, calibration: Calibration) -> Array:
    """FLOPs of a rank's share of the global batch over the reached rate."""
    shape = workload.shape.flops_shape(_num_trainable(workload))
    per_token = [
        training_flops(shape, num_tokens=1, sequence_length=workload.sequence_length, checkpointing=checkpointing)
        for checkpointing in (0.0, workload.checkpointed_share)
    ]
    tokens = grid.micro_batch * grid.accumulation * float(workload.sequence_length)
    flops = tokens * np.where(grid.checkpointing, per_token[1], per_token[0]) / grid.tp
    rate: float = gpu.peak_flops_per_s(workload.precision) * calibration.utilisation(gpu.kind)
    return np.asarray(flops / rate, dtype=np.float64)


def _num_buckets(workload: Workload) -> int:
    return ceil(_num_trainable(workload) / zero_buckets(workload.bucket_elements).reduce)


def _num_trainable(workload: Workload) -> int:
    return workload.trained.num_elements(workload.shape.num_layers)


def _num_collectives(workload: Workload, grid: PlanGrid) -> Array:
    """How often ranks must meet in a step: each bucket's reduction, and in stage 3 each module's weights twice."""
    buckets = _num_buckets(workload)
    modules = len(workload.shape.layer) * workload.shape.num_layers
    reductions = buckets * np.where(grid.zero_stage == 1, 1, grid.accumulation)
    gathers = np.where(grid.zero_stage == 3, 2.0 * modules * grid.accumulation, buckets)
    data_parallel = np.where(grid.dp > 1, reductions + gathers, 0.0)
    tensor_parallel = np.where(grid.tp > 1, 4.0 * workload.shape.num_layers * grid.accumulation, 0.0)
    return np.asarray(data_parallel + tensor_parallel, dtype=np.float64)


def _communication_s(workload: Workload, grid: PlanGrid, link: Link) -> Array:
    """Ring collectives: (P-1)/P of the buffer crosses each link, twice for an all-reduce.

    Stage 1 reduces gradients once a step, stages 2 and 3 once a micro-batch; stages 1 and 2 then
    gather the updated weights; stage 3 gathers the weights forward and backward. Tensor
    parallelism all-reduces the hidden states twice forward and twice backward in each layer.
    """
    ring = (grid.dp - 1) / grid.dp
    gradients = workload.weight_bytes * float(_num_trainable(workload)) / grid.tp
    weights = workload.weight_bytes * float(workload.shape.num_parameters) / grid.tp
    reductions = np.where(grid.zero_stage == 1, 1, grid.accumulation)
    stages12 = ring * (2 * gradients * reductions + gradients)
    stage3 = ring * grid.accumulation * (gradients + 2 * weights)
    data_parallel = np.where(grid.zero_stage == 3, stage3, stages12)
    hidden = grid.micro_batch * grid.accumulation * float(workload.sequence_length * workload.shape.hidden_size)
    crossings = 8.0 * workload.shape.num_layers * (grid.tp - 1) / grid.tp
    tensor_parallel = crossings * hidden * workload.weight_bytes
    inside = grid.dp * grid.tp <= link.gpus_per_node
    rate = np.where(inside, link.inside_bytes_per_s, min(link.inside_bytes_per_s, link.between_bytes_per_s))
    return np.asarray(data_parallel / rate + tensor_parallel / link.inside_bytes_per_s, dtype=np.float64)
