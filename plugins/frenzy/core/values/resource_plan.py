"""Resource plans: what MARP lists, HAS chooses from, and the launcher runs.

Kept apart from ``marp`` (which makes them) so that the queue, the scheduler and the trainer
need not import the memory model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from frenzy.core.values.codec import OMITTED_IF_EMPTY
from frenzy.core.values.errors import Reason
from frenzy.core.values.zero_buckets import DEEPSPEED_BUCKET_ELEMENTS

# The term of the copy of what a rank saves.
CHECKPOINT_STAGING: Final = "checkpoint staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One addend of the predicted peak, in bytes on each GPU; ``equation`` says where it is from."""

    name: str
    num_bytes: int
    equation: str = ""


@dataclass(frozen=True, slots=True)
class HostTerm:
    """One addend of the host memory of a node: bytes of each rank there, or once of the node."""

    name: str
    num_bytes: int
    equation: str = ""
    of_each_rank: bool = True

    def bytes_of(self, num_ranks: int) -> int:
        """On a node with so many ranks."""
        return self.num_bytes * num_ranks if self.of_each_rank else self.num_bytes


class MemorySource(StrEnum):
    """Where a plan's memory is from: the memory model, earlier runs, the specification, or nowhere yet."""

    PREDICTED = "predicted"
    LEARNT = "learnt"
    DECLARED = "declared"
    REHEARSAL = "rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Predicted memory of one GPU of a plan.

    peak_allocated_bytes: expected maximum held by tensors (what the trainer measures).
    required_bytes: what the card must have: the peak plus everything outside tensors and a margin.
    host_bytes: host memory of a node with as many of the plan's ranks as it may get.
    host_terms: addends of the host memory, largest first; none where only the sum is known.
    at: the point in time of the peak. terms: addends of the peak, largest first, summing to it.
    is_declared: by the specification, not predicted. learnt_from: so many runs of the same script; 0 is none.
    is_rehearsal: nothing is known of it, the whole card is for it, and a few steps are to show what it takes.
    uncopied_bytes: what a rank writes of its partition at a checkpoint, where the host takes no copy of it first.
    learned_factor: what earlier runs put on the model's own peak; the peak divided by it is the model's.
    """

    peak_allocated_bytes: int
    required_bytes: int
    host_bytes: int
    at: str
    terms: tuple[MemoryTerm, ...] = ()
    host_terms: tuple[HostTerm, ...] = field(default=(), metadata=OMITTED_IF_EMPTY)
    uncopied_bytes: int = field(default=0, metadata=OMITTED_IF_EMPTY)
    learned_factor: float = 1.0
    is_declared: bool = field(default=False, metadata=OMITTED_IF_EMPTY)
    learnt_from: int = field(default=0, metadata=OMITTED_IF_EMPTY)
    is_rehearsal: bool = field(default=False, metadata=OMITTED_IF_EMPTY)

    @property
    def source(self) -> MemorySource:
        """Where the numbers are from."""
        if self.is_rehearsal:
            return MemorySource.REHEARSAL
        if self.learnt_from:
            return MemorySource.LEARNT
        return MemorySource.DECLARED if self.is_declared else MemorySource.PREDICTED

    @property
    def margin_share(self) -> float:
        """By what share of the peak the requirement is above it."""
        return self.required_bytes / self.peak_allocated_bytes - 1.0 if self.peak_allocated_bytes else 0.0

    @property
    def model_peak_bytes(self) -> int:
        """The peak by the memory model alone."""
        return round(self.peak_allocated_bytes / self.learned_factor)

    @property
    def host_bytes_of_node_and_rank(self) -> tuple[int, int]:
        """Host memory that each node gives once, and for each rank; all of it once where only the sum is known."""
        if not self.host_terms:
            return self.host_bytes, 0
        once = each = 0
        for term in self.host_terms:
            if term.of_each_rank:
                each += term.num_bytes
            else:
                once += term.num_bytes
        return once, each

    def host_bytes_of(self, num_ranks: int) -> int:
        """Host memory of a node with so many of the plan's ranks."""
        once, each = self.host_bytes_of_node_and_rank
        return once + num_ranks * each


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePlan:
    """One way to run a job: ``num_gpus`` GPUs of one type.

    global batch = dp * micro_batch_size * accumulation_steps, exactly.
    predicted_run_s covers the whole remaining job; predicted_cost = GPU-hours * price, None where that is not known.
    bucket_elements sizes DeepSpeed's ZeRO buffers (``zero_buckets``). model_step_s: step time by the time model
    alone, where what earlier runs took says otherwise.
    """

    gpu_type: str
    num_gpus: int
    dp: int
    tp: int
    zero_stage: int
    micro_batch_size: int
    accumulation_steps: int
    activation_checkpointing: bool
    offload_optimizer: bool = False
    bucket_elements: int = DEEPSPEED_BUCKET_ELEMENTS
    memory: MemoryPrediction
    gpu_memory_bytes: int
    step_time_s: float
    samples_per_s: float
    predicted_run_s: float
    predicted_cost: float | None = None
    model_step_s: float | None = field(default=None, metadata=OMITTED_IF_EMPTY)

    @property
    def global_batch_size(self) -> int:
        return self.dp * self.micro_batch_size * self.accumulation_steps

    @property
    def is_timed(self) -> bool:
        """Whether its time is predicted; that of a script without a model is assumed, to order its plans."""
        return self.memory.source is MemorySource.PREDICTED

    @property
    def gpu_hours(self) -> float:
        return self.num_gpus * self.predicted_run_s / 3600.0

    @property
    def cost_order(self) -> tuple[bool, float]:
        """Ascending by cost; plans without one come last, by GPU-hours."""
        cost = self.predicted_cost
        return (True, self.gpu_hours) if cost is None else (False, cost)

    @property
    def shape(self) -> PlanShape:
        """What identifies the plan among all others of the same job."""
        return PlanShape(
            gpu_type=self.gpu_type,
            num_gpus=self.num_gpus,
            tp=self.tp,
            zero_stage=self.zero_stage,
            micro_batch_size=self.micro_batch_size,
            activation_checkpointing=self.activation_checkpointing,
            offload_optimizer=self.offload_optimizer,
        )

    @property
    def plan_id(self) -> str:
        """Readable and unique within a job: type x count and the settings."""
        return self.shape.plan_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """The choices of a plan, without its predictions: the key for 'never the same plan twice'."""

    gpu_type: str
    num_gpus: int
    tp: int
    zero_stage: int
    micro_batch_size: int
    activation_checkpointing: bool
    offload_optimizer: bool = False

    @property
    def plan_id(self) -> str:
        parts = [f"{self.num_gpus}x{self.gpu_type}", f"z{self.zero_stage}", f"mb{self.micro_batch_size}"]
        parts += [f"tp{self.tp}"] if self.tp > 1 else []
        parts += ["ckpt"] if self.activation_checkpointing else []
        parts += ["offload"] if self.offload_optimizer else []
        return "-".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan with its verdict: ``rank`` 1 is best; None means refused, for ``reason``."""

    plan: ResourcePlan
    rank: int | None
    reason: Reason

    @property
    def feasible(self) -> bool:
        return self.rank is not None


def short_hash(*parts: str, length: int = 12) -> str:
    """A stable lower-case hexadecimal digest of ``parts``."""
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:length]
