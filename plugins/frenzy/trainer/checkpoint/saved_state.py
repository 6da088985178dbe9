"""What a checkpoint holds beside tensors: counters, scalars, and how shards make up parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from deepspeed.checkpoint.constants import DS_AUTOTP_UC_META

from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values.codec import OMITTED_IF_EMPTY
from frenzy.core.values.errors import ContractError
from frenzy.trainer.best_so_far import BestSoFar
from frenzy.trainer.checkpoint import zero_fragments

_COUNTERS: Final = ("global_steps", "global_samples", "skipped_steps")


@dataclass(frozen=True, slots=True)
class TrainState:
    """The trainer's own state. Optimizer steps done, tokens seen, and what callbacks want kept.

    ``callback_states`` holds plain JSON values only. Random number generators are saved beside it.
    kept_step: an earlier checkpoint that stays, whatever else is removed. kept_before: those that were to stay before
    it, newest first: the first that is there stays where the save of ``kept_step`` failed. without_frozen: what is not
    trained is left out, and whoever goes on has it.
    """

    step: int
    tokens_seen: int = 0
    callback_states: Mapping[str, Any] = field(default_factory=dict)
    best: BestSoFar = BestSoFar()
    kept_step: int | None = None
    kept_before: tuple[int, ...] = ()
    without_frozen: bool = field(default=False, metadata=OMITTED_IF_EMPTY)

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """Checkpoints of which the first that is there stays."""
        return () if self.kept_step is None else (self.kept_step, *self.kept_before)

    def kept_after(self, step: int) -> tuple[int, ...]:
        """What may still be needed of them once the checkpoint of ``step``, with this state, is there."""
        return (step,) if step == self.kept_step else self.kept_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarState:
    """A state the optimizer keeps once for a whole flat tensor, such as Adam's step."""

    value: float
    is_tensor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """Everything that is not a tensor; the same for all ranks.

    tensor_parallel_maps: how shards make up each split parameter (empty without tensor parallel).
    """

    train: TrainState
    counters: Mapping[str, int]
    loss_scaler: Mapping[str, Any]
    scalars: Mapping[str, ScalarState]
    tensor_parallel_maps: Mapping[str, Any] = field(default_factory=dict)


def capture_state(engine: Any, train: TrainState, layout: ParallelLayout) -> SavedState:
    """The engine's state beside its tensors. Raises ContractError for a split that cannot be described."""
    return SavedState(
        train=train,
        counters={name: int(getattr(engine, name)) for name in _COUNTERS},
        loss_scaler=_plain_attributes(getattr(engine.optimizer, "loss_scaler", None)),
        scalars=_scalar_states(engine),
        tensor_parallel_maps=tensor_parallel_maps(engine, layout),
    )


def restore_state(engine: Any, saved: SavedState) -> None:
    """Set the engine's counters, the optimizer's scalars and the loss scaler's position."""
    for name in _COUNTERS:
        setattr(engine, name, saved.counters[name])
    # DeepSpeed steps its optimizer where this count is a multiple of the accumulation, which is the
    # present plan's: another plan's count would step in the middle of a batch.
    engine.micro_steps = engine.global_steps * engine.gradient_accumulation_steps()
    for partition in zero_fragments.partitions(engine):
        # A rank of which all is padding has no moments yet, and the optimizer makes them with a step of its own.
        for key, scalar in saved.scalars.items() if partition.shards else ():
            partition.state[key] = _scalar(scalar, partition)
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    for name in _plain_attributes(scaler).keys() & saved.loss_scaler.keys():
        setattr(scaler, name, saved.loss_scaler[name])


def _scalar(scalar: ScalarState, partition: zero_fragments.Partition) -> torch.Tensor | float | int:
    """torch keeps an optimizer's step on the host unless its kernel reads it on the device."""
    if partition.eight_bit:
        return int(scalar.value)  # its kernels take a whole number
    if not scalar.is_tensor:
        return scalar.value
    on_device = partition.group.get("fused") or partition.group.get("capturable")
    return torch.tensor(scalar.value, device=partition.weights.device if on_device else "cpu")


def _scalar_states(engine: Any) -> dict[str, ScalarState]:
    """Scalar optimizer states; every flat tensor has taken the same steps, so the first speaks for all."""
    for partition in zero_fragments.partitions(engine):
        if partition.state:
            return {
                key: ScalarState(value=float(value), is_tensor=torch.is_tensor(value))
                for key, value in partition.scalar_states().items()
            }
    return {}


def _plain_attributes(value: Any) -> dict[str, Any]:
    """Attributes with plain values: all that a loss scaler's position consists of."""
    attributes = {} if value is None else vars(value)
    return {key: item for key, item in attributes.items() if type(item) in (bool, int, float)}


def tensor_parallel_maps(engine: Any, layout: ParallelLayout) -> dict[str, Any]:
    """For each split parameter, which elements of the whole each tensor-parallel rank holds."""
    if layout.tp == 1:
        return {}
    found = {}
    for name, parameter in engine.module.named_parameters():
        meta = (getattr(parameter, DS_AUTOTP_UC_META, None) or {}).get("conversion", {})
        if meta.get("unsupported_reason"):
            raise ContractError(f"{name} cannot be saved under tensor parallelism: {meta['unsupported_reason']}")
        if meta.get("affine_map") is not None:
            found[name] = meta["affine_map"]
    return found
