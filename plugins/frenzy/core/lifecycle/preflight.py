"""Whether a rank can train where it was put: a judgement before anything large is made, over facts that were read.

Pure. Refused is only what is sure to fail: the sentence then comes within seconds, names the cause, and costs no load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.core.values.units import MIB, format_bytes

# Libraries, data and logs; then sockets to each other rank, of the process group and of NCCL's channels.
_FILES: Final = 256
_FILES_PER_RANK: Final = 8
# Buffers that an RDMA device reads must be locked; NCCL's are 4 MiB for each of some channels and peers.
_LEAST_LOCKED_BYTES: Final = 64 * MIB
# Terms of the memory model that hold nothing but what was counted: the others are estimates, and may be too high.
_COUNTED: Final = frozenset({"weights", "fp32 master weights", "optimizer states"})
_ARCHITECTURE: Final = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")

Version = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What a rank sees of its GPU.

    wheel_cuda: of torch; driver_cuda: the newest that the driver runs, None without one. num_devices: that the process
    sees. name, capability, free_bytes: of the rank's own, None where it cannot be asked. architectures: that torch was
    built for (sm_90, compute_90).
    """

    wheel_cuda: Version | None
    driver_cuda: Version | None
    num_devices: int
    name: str | None = None
    capability: Version | None = None
    architectures: tuple[str, ...] = ()
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a rank sees of its node; None where a figure is without limit, or not to be had.

    max_locked_bytes: that the process may lock. has_rdma: whether NCCL could use RDMA devices.
    """

    max_open_files: int | None
    max_locked_bytes: int | None = None
    has_rdma: bool = False
    gpu: GpuFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the plan asks of one rank's place. counted_bytes: its GPU is sure to hold; 0 where that is found out."""

    local_rank: int
    num_local_ranks: int
    num_ranks: int
    num_nodes: int
    counted_bytes: int

    @property
    def num_open_files(self) -> int:
        return _FILES + _FILES_PER_RANK * self.num_ranks


def counted_bytes(memory: MemoryPrediction) -> int:
    """What a GPU is sure to hold: weights and states, without activations and all else that is estimated."""
    return sum(each.num_bytes for each in memory.terms if each.name in _COUNTED)


def refusal(facts: NodeFacts, needs: Needs) -> Reason | None:
    """Why the rank cannot train there; the first reason, the node's driver before what depends on it."""
    return next(_refusals(facts, needs), None)


def _refusals(facts: NodeFacts, needs: Needs) -> Iterator[Reason]:
    if facts.gpu is not None:
        yield from _of_gpu(facts.gpu, needs)
        yield from _of_locked_memory(facts, needs)
    if facts.max_open_files is not None and facts.max_open_files < needs.num_open_files:
        yield Reason(
            code=ReasonCode.NODE_LIMITS_TOO_LOW,
            detail=(
                f"A process may open {facts.max_open_files} files; with {needs.num_ranks} ranks it needs "
                f"{needs.num_open_files}."
            ),
            remedy=f"Raise the hard limit (ulimit -Hn, LimitNOFILE) to at least {needs.num_open_files}.",
        )


def _of_locked_memory(facts: NodeFacts, needs: Needs) -> Iterator[Reason]:
    locked = facts.max_locked_bytes
    if facts.has_rdma and needs.num_nodes > 1 and locked is not None and locked < _LEAST_LOCKED_BYTES:
        yield Reason(
            code=ReasonCode.NODE_LIMITS_TOO_LOW,
            detail=f"A process may lock {format_bytes(locked)} of memory, which is too little for its RDMA devices.",
            remedy="Raise the hard limit (ulimit -Hl unlimited, LimitMEMLOCK), or give the pods IPC_LOCK.",
        )


def _of_gpu(gpu: GpuFacts, needs: Needs) -> Iterator[Reason]:
    if gpu.wheel_cuda is None:
        yield Reason(
            code=ReasonCode.GPU_NOT_SUPPORTED,
            detail="The trainer's torch was built without CUDA.",
            remedy="Use an image, or an environment, with a CUDA build of torch.",
        )
        return
    wheel = _dotted(gpu.wheel_cuda)
    if gpu.driver_cuda is None:
        yield Reason(code=ReasonCode.GPU_UNAVAILABLE, detail="The node has no NVIDIA driver that a worker can see.")
        return
    if gpu.driver_cuda[0] < gpu.wheel_cuda[0]:  # within a major release any driver of it runs what is newer
        yield Reason(
            code=ReasonCode.DRIVER_TOO_OLD,
            detail=f"The node's driver runs CUDA up to {_dotted(gpu.driver_cuda)}; the trainer's torch is for {wheel}.",
            remedy="Update the driver (580 or newer runs CUDA 13, 525 CUDA 12), or use an image for an older CUDA.",
        )
        return
    if gpu.num_devices <= needs.local_rank:
        yield Reason(
            code=ReasonCode.GPU_UNAVAILABLE,
            detail=f"The worker sees {gpu.num_devices} GPUs of the {needs.num_local_ranks} that it was given.",
        )
    if gpu.capability is not None and not runs_on(gpu.capability, gpu.architectures):
        yield Reason(
            code=ReasonCode.GPU_NOT_SUPPORTED,
            detail=(
                f"{gpu.name} has compute capability {_dotted(gpu.capability)}; the trainer's torch, for CUDA {wheel}, "
                f"has code for {', '.join(gpu.architectures)}."
            ),
            remedy="Leave the GPU type out (constraints.gpu_types), or use an image built for it.",
        )
    if gpu.free_bytes is not None and gpu.free_bytes < needs.counted_bytes:
        yield Reason(  # as the allocator would say it later: a plan that needs less may do
            code=ReasonCode.CUDA_OUT_OF_MEMORY,
            detail=(
                f"{gpu.name} has {format_bytes(gpu.free_bytes)} free, and the plan's weights and states need "
                f"{format_bytes(needs.counted_bytes)}: something else holds its memory."
            ),
            remedy="End what holds it (nvidia-smi shows the processes), or leave the job to a smaller plan.",
        )


def runs_on(capability: Version, architectures: tuple[str, ...]) -> bool:
    """Whether code for one of ``architectures`` runs on a GPU of ``capability``; an empty list says nothing.

    Machine code (sm) runs within its major release from its minor on, PTX (compute) on all that is newer; with an "a"
    only on its own, with an "f" within its major release.
    """
    matches = [match for each in architectures if (match := _ARCHITECTURE.fullmatch(each))]
    return not matches or any(_fits(capability, match) for match in matches)


def _fits(capability: Version, match: re.Match[str]) -> bool:
    built = (int(match[2]), int(match[3]))
    if match[4] == "a":
        return built == capability
    is_portable = match[1] == "compute" and not match[4]
    return built <= capability and (is_portable or built[0] == capability[0])


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
