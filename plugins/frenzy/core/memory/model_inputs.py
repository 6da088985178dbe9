"""What the memory model is asked: the workload the user fixed, and the plans as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from frenzy.core.memory.activation_coefficients import ActivationSetting, AdapterSetting, Attention, Loss
from frenzy.core.models.flops import checkpointed_layers
from frenzy.core.models.parameters import ModelShape
from frenzy.core.models.trainable import TrainedPart
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.recipe import is_fused, is_summed_in_fp32
from frenzy.core.values.workload import Task
from frenzy.core.values.zero_buckets import ZeroBuckets

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_WEIGHT_BYTES: Final = {Precision.FP32: 4, Precision.AUTOCAST_BF16: 4, Precision.BF16: 2, Precision.FP16: 2}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained, whatever the plan: everything the user fixed.

    overlap_comm: stages 1 and 2 reduce one bucket while the next one fills (stage 3 always does, with
    one), where there are several ranks and nothing is offloaded. pin_memory: offloaded tensors are
    page-locked. storage: of the frozen weights, beside which adapters are trained. adapter_dropout:
    whether adapters drop out. document_masks: whether the documents of a
    packed sequence are kept apart. copies_checkpoints: whether a rank's partition is copied to host memory,
    to be written while training goes on. largest_shard_bytes: of the files that the weights are read
    from; 0 for random ones, None where nobody knows. checkpoint_every: one of so many layers is
    checkpointed in plans that do.

    Runs that the trainer did not make may differ from its recipe; None is the trainer's own.
    accumulation_bytes: of an element of the gradients that ZeRO keeps, summed or not. buckets: sizes of ZeRO's
    buffers other than those that go with bucket_elements. updates_in_place: whether AdamW makes
    no temporaries (DeepSpeed's own, torch's fused). overlaps_offloaded: reductions overlap where the optimizer
    is offloaded, too.

    gathers_model: a script saves its model whole at stage 3: rank 0 has all that is trained in host memory.
    task: what a script trains for. divides_states: whether ZeRO holds the states; else torch's own optimizer does,
    all of them on each rank. lengths_vary: from step to step. segments_grow: those of torch's allocator.
    reentrant: activation checkpointing by nested backward passes, the default of transformers before 5.
    whole_scores: torch's own attention has no kernel on the card that avoids them (``whole_scores``).
    """

    shape: ModelShape
    trained: TrainedPart
    precision: Precision
    optimizer: str
    sequence_length: int
    kind: DeviceKind
    bucket_elements: int
    overlap_comm: bool = False
    pin_memory: bool = False
    storage: WeightStorage = WeightStorage.PLAIN
    attention: Attention = Attention.SDPA
    loss: Loss = Loss.TORCH
    document_masks: bool = False
    adapter_dropout: bool = False
    largest_shard_bytes: int | None = None
    checkpoint_every: int = 1
    copies_checkpoints: bool = True
    gathers_model: bool = False
    accumulation_bytes: int | None = None
    buckets: ZeroBuckets | None = None
    updates_in_place: bool | None = None
    overlaps_offloaded: bool = False
    task: Task = Task.LANGUAGE_MODEL
    divides_states: bool = True
    lengths_vary: bool = False
    segments_grow: bool = True
    reentrant: bool = False
    whole_scores: bool = False

    def activation_setting(self, *, checkpointing: bool) -> ActivationSetting:
        """What the activations' coefficients depend on."""
        adapters = None
        if not self.trained.is_everything:
            adapters = AdapterSetting(targets=self.trained.adapted, dropout=self.adapter_dropout, frozen=self.precision)
        return ActivationSetting(
            precision=self.precision,
            checkpointing=checkpointing,
            kind=self.kind,
            attention=self.attention,
            loss=self.loss,
            adapters=adapters,
        )

    def gradient_bytes(self, grid: PlanGrid) -> Array:
        """Bytes of an element of the gradients that each plan sums over micro-batches."""
        if self.accumulation_bytes is not None:
            return np.full(len(grid), float(self.accumulation_bytes))
        summed = is_summed_in_fp32(self.precision, 2, offload=False) & (grid.accumulation > 1) & ~grid.offload
        return np.where(summed, 4.0, float(self.weight_bytes))

    @property
    def checkpointed_share(self) -> float:
        """Of the layers, in plans with checkpointing."""
        return checkpointed_layers(self.shape.num_layers, self.checkpoint_every) / self.shape.num_layers

    @property
    def is_fused(self) -> bool:
        """Whether the optimizer updates in place, without temporaries."""
        return is_fused(self.optimizer, self.kind) if self.updates_in_place is None else self.updates_in_place

    @property
    def weight_bytes(self) -> int:
        return _WEIGHT_BYTES[self.precision]


class PlanRow(NamedTuple):
    """One plan: dp * micro_batch * accumulation is the global batch, dp * tp the number of GPUs."""

    dp: int
    tp: int
    zero_stage: int
    micro_batch: int
    accumulation: int
    checkpointing: bool
    offload: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanGrid:
    """Plans as columns; all arrays have one entry for each plan.

    offload: master weights, optimizer states and the gradient partition are in host memory.
    """

    dp: Integers
    tp: Integers
    zero_stage: Integers
    micro_batch: Integers
    accumulation: Integers
    checkpointing: NDArray[np.bool_]
    offload: NDArray[np.bool_]

    def take(self, indices: Integers) -> PlanGrid:
        """The plans at ``indices``."""
        return PlanGrid(**{each.name: getattr(self, each.name)[indices] for each in fields(self)})

    def rows(self) -> tuple[PlanRow, ...]:
        """The plans one by one."""
        columns = (getattr(self, name).tolist() for name in PlanRow._fields)
        return tuple(PlanRow(*row) for row in zip(*columns, strict=True))

    def by_setting(self, of: Callable[[int, int, bool], float]) -> Array:
        """What ``of`` says of each plan's (ZeRO stage, tensor-parallel degree, offload), asked once for each triple."""
        codes = (self.tp * 4 + self.zero_stage) * 2 + self.offload
        return _by_code(codes, lambda code: of(code // 2 % 4, code // 8, bool(code % 2)))

    def by_degree(self, of: Callable[[int], float]) -> Array:
        """What ``of`` says of each plan's tensor-parallel degree, asked once for each degree."""
        return _by_code(self.tp, of)

    def __len__(self) -> int:
        return len(self.dp)


def _by_code(codes: Integers, of: Callable[[int], float]) -> Array:
    answers = np.zeros(int(codes.max(initial=0)) + 1)
    for code in np.flatnonzero(np.bincount(codes)).tolist():
        answers[code] = of(code)
    found: Array = answers[codes]
    return found
