"""Host memory of a plan's ranks on one node: one term for each thing that takes it.

A term is of each rank or once of the node (a pod), which the ranks of a node share. All are added:
they are not there at the same time, but neither allocator gives back what loading took. A virtual
GPU's own memory is host memory too; it is the card's prediction, and not in here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frenzy.core.memory.host_offload import offload_terms, optimizer_state_bytes
from frenzy.core.memory.model_inputs import Array, PlanGrid, Workload
from frenzy.core.memory.model_states import StateElements
from frenzy.core.memory.table import HostTerms, Term
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.resource_plan import CHECKPOINT_STAGING
from frenzy.core.values.units import GIB, MIB

# The launcher with the libraries that its forked ranks share, and what each rank has of its own once it has
# run a step, torch 2.13, transformers 5.17. Held to what is measured, with one rank by scripts/gpu_proof.py's
# "host memory" within 20 %, with two by tests/trainer/test_host_memory.py within 15 %.
_LAUNCHER_BYTES: Final = 384 * MIB
_RANK_BYTES: Final = 128 * MIB
# CUDA's own in a process, at its first use: 1.2 GB of resident memory, pytorch issue 106511.
_CUDA_BYTES: Final = 1200 * MIB
# CUDA's libraries, mapped by all ranks: about what torch's wheel for CUDA has more of them than its CPU build.
_CUDA_LIBRARIES_BYTES: Final = 700 * MIB
# transformers cuts a model's files at this size unless told otherwise.
_SHARD_BYTES: Final = 5 * 10**9
_READING_BYTES: Final = GIB // 2
# trainer.tensor_file.CHUNK_BYTES: a piece on its way to the file, once more where it is converted.
CHECKPOINT_CHUNK_BYTES: Final = 4 * MIB
_CHUNKS: Final = 2


def host_terms(workload: Workload, grid: PlanGrid, states: StateElements) -> HostTerms:
    """All host memory of the plans of ``grid``."""
    resting = resting_terms(workload, grid)
    equation = "2 chunks of 4 MiB; the masters and states, 4*S each, where they are copied"
    staged = Term(CHECKPOINT_STAGING, equation, staging_bytes(workload, grid, states))
    gathered = Term("model gathered to be saved", "w*T at stage 3 of a script", gathered_bytes(workload, grid))
    return HostTerms((*resting.of_rank, *offload_terms(workload, grid, states), staged), (*resting.of_node, gathered))


def resting_terms(workload: Workload, grid: PlanGrid) -> HostTerms:
    """What does not depend on the plan's states: the processes, their data, and loading."""
    on_card = workload.kind is not DeviceKind.VIRTUAL
    process, launcher = _RANK_BYTES + on_card * _CUDA_BYTES, _LAUNCHER_BYTES + on_card * _CUDA_LIBRARIES_BYTES
    tokens = np.asarray(workload.sequence_length * grid.dp * grid.micro_batch * grid.accumulation, dtype=np.float64)
    whole = workload.weight_bytes * workload.shape.num_parameters
    of_rank = (
        Term("process of the rank", "measured; CUDA's 1.2 GB on a card", np.full(len(grid), float(process))),
        Term("data workers", "16 for each token of the global batch", 16.0 * tokens),
        Term("model to be cut", "w*N where tp > 1", np.where(grid.tp > 1, float(whole), 0.0)),
    )
    of_node = (
        Term("launcher and shared libraries", "measured", np.full(len(grid), float(launcher))),
        Term("loading", "largest shard, and at most 512 MiB", np.full(len(grid), loading_bytes(workload))),
    )
    return HostTerms(of_rank, of_node)


def loading_bytes(workload: Workload) -> float:
    """The peak of loading on a node beside the ranks' partitions: one shard, as its ranks read it, and buffers.

    A shard is never more than the whole model in fp32; random weights have none.
    """
    if workload.largest_shard_bytes is not None:
        shard = float(workload.largest_shard_bytes)
    else:
        shard = min(float(_SHARD_BYTES), 4.0 * workload.shape.num_parameters)
    return shard + min(float(_READING_BYTES), shard)


def gathered_bytes(workload: Workload, grid: PlanGrid) -> Array:
    """What a script's rank 0 takes to save the model: all that is trained, in the weights' format (``save_model``).

    Counted on each node, for nobody knows on which rank 0 will be.
    """
    trained = workload.trained.num_elements(workload.shape.num_layers)
    whole = float(workload.weight_bytes * trained)
    return np.where((grid.zero_stage == 3) & workload.gathers_model, whole, 0.0)


def staging_bytes(workload: Workload, grid: PlanGrid, states: StateElements) -> Array:
    """What saving a checkpoint takes of each rank: chunks on their way, and the copy that is written meanwhile.

    A copy is of the rank's partition, masters and optimizer states.
    """
    chunks = np.full(len(grid), float(_CHUNKS * CHECKPOINT_CHUNK_BYTES))
    return chunks + saved_bytes(workload, states) if workload.copies_checkpoints else chunks


def saved_bytes(workload: Workload, states: StateElements) -> Array:
    """What a checkpoint has of each rank's partition."""
    saved = 4.0 * states.partition + optimizer_state_bytes(workload, states.partition)
    return np.asarray(saved, dtype=np.float64)
