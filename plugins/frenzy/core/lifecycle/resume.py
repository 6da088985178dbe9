"""Which layout a run may resume on, given the layout its checkpoint was written on.

Checkpoints hold each parameter's state by position in the parameter, not by rank (see
``frenzy.trainer.checkpoint.save``), so world size, ZeRO stage and tensor-parallel degree are free to
change. What is refused here is what the trainer cannot run or save at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import ResourcePlan

RESUMABLE_STAGES: Final = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How a run's state is spread: ``world_size`` ranks = data parallel x ``tp``."""

    world_size: int
    zero_stage: int
    tp: int = 1

    @classmethod
    def of(cls, plan: ResourcePlan) -> ParallelLayout:
        return cls(plan.num_gpus, plan.zero_stage, plan.tp)

    @property
    def dp(self) -> int:
        """Ranks that hold different data for the same tensor-parallel shard."""
        return self.world_size // self.tp

    def __str__(self) -> str:
        tensor_parallel = f", tensor parallel {self.tp}" if self.tp > 1 else ""
        return f"{self.world_size} workers at ZeRO stage {self.zero_stage}{tensor_parallel}"


def can_resume(source: ParallelLayout, target: ParallelLayout) -> Reason | None:
    """Why a checkpoint written on ``source`` cannot go on on ``target``; None when it can."""
    return _not_checkpointable(source, "checkpoint") or _not_checkpointable(target, "plan")


def _not_checkpointable(layout: ParallelLayout, role: str) -> Reason | None:
    if layout.zero_stage not in RESUMABLE_STAGES:
        return Reason(
            code=ReasonCode.PREDICTED_NOT_LAUNCHABLE,
            detail=f"The {role} uses ZeRO stage {layout.zero_stage}; only stages 1, 2 and 3 can be moved.",
            remedy="Use ZeRO stage 1, which needs no more memory than stage 0.",
        )
    if layout.tp < 1 or layout.world_size < 1 or layout.world_size % layout.tp:
        return Reason(
            code=ReasonCode.PREDICTED_NOT_LAUNCHABLE,
            detail=f"The {role} has {layout.world_size} workers, which tensor parallel {layout.tp} does not divide.",
            remedy="Choose a number of workers that is a multiple of the tensor-parallel degree.",
        )
    return None
