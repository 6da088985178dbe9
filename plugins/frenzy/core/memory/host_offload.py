"""The optimizer in host memory (ZeRO-Offload): what it takes there, and what it adds to a step.

What DeepSpeed keeps on the host was read from its source (runtime/zero/stage_1_and_2.py and
stage3.py, the ``cpu_offload`` and ``offload_optimizer`` branches). Symbols as in ``memory``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from frenzy.core.memory.model_inputs import Array, Integers, PlanGrid, Workload
from frenzy.core.memory.model_states import StateElements
from frenzy.core.memory.table import Term

_OPTIMIZER_STATES: Final = {"adamw": 2, "adamw-8bit": 2, "sgd": 1}
# bitsandbytes: a byte an element and an fp32 scale for each 256; fp32 for fewer elements than these.
_EIGHT_BIT_BYTES: Final = 1 + 4 / 256
_EIGHT_BIT_LEAST_ELEMENTS: Final = 4096
STATES_EQUATION: Final = "4*S for each state (Adam: 2), or S + S/64 in 8 bits"
# PCIe 3.0 x16, the slowest slot that the catalogue's cards sit in; one for each GPU.
_HOST_LINK_BYTES_PER_S: Final = 16e9
# A node's torch.optim.AdamW on CPU: 1.39 s for 1e9 parameters. Ren et al. 2021 (ZeRO-Offload), table 4.
_HOST_ADAM_ELEMENTS_PER_S: Final = 1e9 / 1.39


def optimizer_state_bytes(workload: Workload, elements: Array) -> Array:
    """Bytes of the optimizer's states for a partition of so many elements."""
    eight_bit = (workload.optimizer == "adamw-8bit") & (elements >= _EIGHT_BIT_LEAST_ELEMENTS)
    each = np.where(eight_bit, _EIGHT_BIT_BYTES, 4.0)
    return np.asarray(_OPTIMIZER_STATES[workload.optimizer] * each * elements, dtype=np.float64)


def offload_terms(workload: Workload, grid: PlanGrid, states: StateElements) -> tuple[Term, ...]:
    """Host memory of one rank for its optimizer, in bytes; zero without offload."""
    weight, stage3, partition = workload.weight_bytes, grid.zero_stage == 3, states.partition
    kept = weight * (partition + states.largest_tensor)
    summed = np.where(grid.accumulation > 1, weight * states.overlapping, 0.0)
    # torch's plain AdamW makes the root and the quotient anew, each as long as the partition
    each = 0.0 if workload.is_fused else 8.0 if workload.optimizer == "adamw" else 4.0
    passing = each * partition
    # what DeepSpeed page-locks when told to: the optimizer's own tensors never
    lockable = (
        Term("fp32 master weights", "4*S", 4.0 * partition),
        Term("fp32 gradient partition", "4*S", 4.0 * partition),
        Term(
            "gradients of earlier micro-batches",
            "stages 1 and 2: w*(tensors in the partition), none without accumulation; stage 3: w*S",
            np.where(stage3, weight * partition, summed),
        ),
        Term(
            "buffers for weights and gradients on their way",
            "stages 1 and 2: w*(S + largest tensor)",
            np.where(stage3, 0.0, kept),
        ),
    )
    terms = (
        *lockable,
        Term("optimizer states", STATES_EQUATION, optimizer_state_bytes(workload, partition)),
        Term("temporaries of the optimizer step", "AdamW: 8*S unless fused", passing),
        Term("pinned buffers", "if pinned, each up to a power of two; not the states", _pinned(workload, lockable)),
    )
    return tuple(replace(each, num_bytes=np.where(grid.offload, each.num_bytes, 0.0)) for each in terms)


def _pinned(workload: Workload, terms: tuple[Term, ...]) -> Array:
    """What page-locked buffers take beyond their sizes: torch's host allocator rounds up to a power of two."""
    sizes = np.maximum(np.stack([each.num_bytes for each in terms]), 1.0)
    beyond = np.exp2(np.ceil(np.log2(sizes))) - sizes
    return np.asarray(beyond.sum(axis=0) * workload.pin_memory, dtype=np.float64)


def offload_times_s(num_trained: int, weight_bytes: float, grid: PlanGrid, gpus_per_node: int) -> Array:
    """Seconds that offloading adds to a step of each plan: the way over PCIe, and the update by the CPU.

    Each element's fp32 gradient goes down (4 bytes) and its weight comes up (w bytes); gradients of
    earlier micro-batches go down in the weights' format and come up again to be added to. A node's
    ranks share its CPU.
    """
    elements = num_trained / (grid.dp * grid.tp)
    earlier = 2.0 * weight_bytes * (grid.accumulation - 1)
    # stage 1 sums on the GPU and sends once
    moved = 4.0 + weight_bytes + np.where(grid.zero_stage == 1, 0.0, earlier)
    updated = elements * ranks_per_node(grid, gpus_per_node)
    seconds = elements * moved / _HOST_LINK_BYTES_PER_S + updated / _HOST_ADAM_ELEMENTS_PER_S
    return np.asarray(np.where(grid.offload, seconds, 0.0), dtype=np.float64)


def ranks_per_node(grid: PlanGrid, gpus_per_node: int) -> Integers:
    """Ranks of each plan that may run on one node."""
    ranks: Integers = np.minimum(grid.dp * grid.tp, max(1, gpus_per_node))
    return ranks
