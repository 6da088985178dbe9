"""What runs of a script took, and what that says of its other plans. No model: bounds that hold for any of them.

From a measured peak to another plan's, one factor for each difference, none where nothing is known:

- a larger micro-batch takes at most as many times more; a smaller one no more;
- activation checkpointing, a higher ZeRO stage, offload: no more, and nothing is known of the way back;
- where states are divided, fewer ranks take at most as many times more, and more ranks no more;
- where they are not, any number takes the same, but the second rank brings a copy of the gradients
  (DistributedDataParallel's buckets): a quarter of weights, gradients and Adam's moments, half where moments are less.

A run that ran out of memory bounds from below: what needs at least as much needs more than its card had. Tensors are
as large on any card of a kind, so runs on other types count, with twice the margin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.resource_plan import PlanShape

_ABOVE_CARD: Final = 1.01
GRADIENT_COPY: Final = 1.25
GRADIENT_COPY_OF_SMALL_STATES: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One ended attempt of a script. peak_bytes: of tensors; of one that ran out of memory, the card's.

    is_whole: it came to its end, and so saw the longest batch.
    """

    kind: DeviceKind
    shape: PlanShape
    peak_bytes: int
    ran_out: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntPeak:
    """What a plan takes at most. num_runs: that say so. is_own: it was run itself, is_whole: to its end."""

    peak_bytes: int
    num_runs: int
    is_own: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """All that is known of one script. divides_states: over its ranks. gradient_copy: of the second rank."""

    runs: tuple[MeasuredRun, ...] = ()
    divides_states: bool = False
    gradient_copy: float = GRADIENT_COPY

    def learnt(self, kind: DeviceKind, shape: PlanShape) -> LearntPeak | None:
        """The peak of ``shape``; None where no run bounds it."""
        measured = [each for each in self._of(kind) if not each.ran_out]
        same = [each for each in measured if each.shape == shape]
        if same:
            peak = max(each.peak_bytes for each in same)
            whole = any(each.is_whole for each in same)
            found = LearntPeak(peak_bytes=peak, num_runs=len(same), is_own=True, is_whole=whole)
        else:
            bounds = [bound for each in {one.shape for one in measured} for bound in self._bound(measured, each, shape)]
            if not bounds:
                return None
            found = min(bounds, key=lambda each: (each.peak_bytes, -each.num_runs))
        least = self.least_bytes(kind, shape)
        return found if least <= found.peak_bytes else LearntPeak(peak_bytes=least, num_runs=found.num_runs)

    def least_bytes(self, kind: DeviceKind, shape: PlanShape) -> int:
        """What ``shape`` takes at least, for what needs no more has taken as much; 0 where nothing is known."""
        lesser = [each for each in self._of(kind) if self._factor(shape, each.shape) == 1.0]
        return max((round(each.peak_bytes * (_ABOVE_CARD if each.ran_out else 1)) for each in lesser), default=0)

    def _of(self, kind: DeviceKind) -> Iterable[MeasuredRun]:
        return (each for each in self.runs if each.kind is kind)

    def _bound(self, measured: list[MeasuredRun], known: PlanShape, shape: PlanShape) -> list[LearntPeak]:
        factor = self._factor(known, shape)
        if factor is None:
            return []
        peaks = [each.peak_bytes for each in measured if each.shape == known]
        return [LearntPeak(peak_bytes=round(factor * max(peaks)), num_runs=len(peaks))]

    def _factor(self, known: PlanShape, shape: PlanShape) -> float | None:
        """How many times as much as ``known`` the plan ``shape`` takes at most."""
        keeps_more = known.activation_checkpointing and not shape.activation_checkpointing
        if keeps_more or (known.offload_optimizer and not shape.offload_optimizer) or known.tp != shape.tp:
            return None
        of_batch = max(1.0, shape.micro_batch_size / known.micro_batch_size)
        if not self.divides_states:
            return of_batch * (self.gradient_copy if known.num_gpus == 1 < shape.num_gpus else 1.0)
        if min(known.num_gpus, shape.num_gpus) > 1 and shape.zero_stage < known.zero_stage:
            return None
        return of_batch * max(1.0, known.num_gpus / shape.num_gpus)


NOTHING_MEASURED: Final = MeasuredRuns()
