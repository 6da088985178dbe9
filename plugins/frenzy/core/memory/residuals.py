"""What finished runs teach: by how much a group's peaks, and its steps on a GPU type, differ from the prediction.

A residual is the logarithm of measured over predicted peak. Runs are grouped by device kind, model
family, GPU type, ZeRO stage and checkpointing; a group's parents drop the last of these, one by one.

- **Expected factor**: the median residual of the group, drawn towards its parent's, with weight
  (n - 1) / (n - 1 + 0.5) for n runs; the parent of all is 1. One run alone moves nothing.
- **Bound factor**: covers a high quantile. With n runs the order statistic ceil((n + 1) c) covers
  the next run with probability c if runs are exchangeable (split conformal prediction, Vovk et al.
  2005); it needs 19 runs for c = 0.95, and is taken from the nearest parent that has as many. Below
  that the bound covers all runs of the group but the highest, and never less than the configured margin.
- **Out of memory** is a censored run: its peak is only known to lie above the card. It counts as
  higher than every measured one, and the group's bound is above that card until so many other runs
  fitted that the quantile does not reach it. It is kept to its own group.
- **Pace**: the median ratio of measured to predicted step times of a GPU type's family, drawn towards that of all
  families on the type as above. One type says nothing of another.

Nothing depends on the order of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.units import MIB

# The image of a user's script, whose launcher knows the ledger's types, may lack numpy.
if TYPE_CHECKING:
    from frenzy.core.memory.model_inputs import Array, PlanGrid

# Another one whenever the peak is predicted otherwise: what an older one got wrong is forgotten.
# 2: whole scores of attention on cards before Ampere.
MEMORY_MODEL: Final = "2"
COVERAGE: Final = 0.95
_SHRINKAGE_RUNS: Final = 0.5
# How far above the card the bound is put after an out-of-memory.
_ABOVE_CARD: Final = 0.01
# How far a measured peak may be off: a virtual GPU is a process, and Python's own objects and the
# sampling of short steps come to about two MiB (`frenzy marp measure`). torch counts a card's bytes exactly.
_RESOLUTION_BYTES: Final = {DeviceKind.VIRTUAL: 2 * MIB, DeviceKind.CUDA: 0}

# ZeRO stage 0 to 3, checkpointing or not, offload or not.
_NUM_CODES: Final = 16

_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualGroup:
    """Runs whose memory errs alike. offload: the optimizer is in host memory."""

    kind: DeviceKind
    family: str
    gpu_type: str
    zero_stage: int
    checkpointing: bool
    offload: bool = False

    @property
    def key(self) -> _Key:
        """From the most general to the most specific."""
        stage = f"{self.zero_stage}{'-offload' if self.offload else ''}"
        return (self.kind.value, self.family, self.gpu_type, stage, str(self.checkpointing))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One ended attempt. predicted_bytes: by the model alone, without what was learned.

    measured_bytes: the peak, or the card's memory for an out-of-memory (``censored``). step_ratio: measured over
    predicted step time; None where it teaches nothing.
    """

    group: ResidualGroup
    predicted_bytes: int
    measured_bytes: int
    censored: bool = False
    step_ratio: float | None = None

    @property
    def log_ratio(self) -> float:
        """What the measurement proves of it: a difference within its resolution is none."""
        difference = self.measured_bytes - self.predicted_bytes
        unsure = 0 if self.censored else min(_RESOLUTION_BYTES[self.group.kind], abs(difference))
        return math.log1p((difference - math.copysign(unsure, difference)) / self.predicted_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors on the model's peak. bound is 0 where nothing beyond the configured margin is known to be needed.

    coverage: probability that the next run stays below the bound; None while there are too few runs
    to state it. num_runs: of the group itself.
    """

    expected: float = 1.0
    bound: float = 0.0
    coverage: float | None = None
    num_runs: int = 0


@dataclass(frozen=True, slots=True)
class _Runs:
    """Ascending log ratios of the measured runs, and those of the censored ones."""

    measured: tuple[float, ...] = ()
    censored: tuple[float, ...] = ()


@dataclass(frozen=True)
class Residuals:
    """All that was learned."""

    residuals: tuple[Residual, ...] = ()

    @cached_property
    def _runs(self) -> Mapping[_Key, _Runs]:
        """The runs of every group and of all its parents."""
        measured: dict[_Key, list[float]] = {}
        censored: dict[_Key, list[float]] = {}
        for each in self.residuals:
            if each.predicted_bytes <= 0 or each.measured_bytes <= 0:
                continue
            key = each.group.key
            if each.censored:
                censored.setdefault(key, []).append(each.log_ratio)
                continue
            for length in range(1, len(key) + 1):
                measured.setdefault(key[:length], []).append(each.log_ratio)
        keys = measured.keys() | censored.keys()
        return {key: _Runs(tuple(sorted(measured.get(key, ()))), tuple(sorted(censored.get(key, ())))) for key in keys}

    @cached_property
    def _corrections(self) -> dict[ResidualGroup, Correction]:
        return {}

    @cached_property
    def _steps(self) -> Mapping[_Key, Sequence[float]]:
        """Ascending log ratios of step times, by GPU type, and by GPU type and family."""
        found: dict[_Key, list[float]] = {}
        for each in self.residuals:
            if each.step_ratio is not None and each.step_ratio > 0:
                kind, family, gpu_type = each.group.key[:3]
                for key in ((kind, gpu_type), (kind, gpu_type, family)):
                    found.setdefault(key, []).append(math.log(each.step_ratio))
        return {key: sorted(ratios) for key, ratios in found.items()}

    def pace(self, kind: DeviceKind, family: str, gpu_type: str) -> float:
        """How many times the predicted step time the next run of ``family`` on ``gpu_type`` will take."""
        keys: tuple[_Key, ...] = ((kind.value, gpu_type), (kind.value, gpu_type, family))
        return math.exp(_shrunken_median([self._steps.get(key, ()) for key in keys]))

    def correction(self, group: ResidualGroup) -> Correction:
        """The factors for the next run of ``group``."""
        if group not in self._corrections:
            self._corrections[group] = self._correct(group.key)
        return self._corrections[group]

    def factors(self, kind: DeviceKind, family: str, gpu_type: str, grid: PlanGrid) -> tuple[Array, Array] | None:
        """Expected and bound factors of each plan in ``grid``; None when no run of this kind is known."""
        if not any(key[0] == kind.value for key in self._runs):
            return None
        import numpy as np

        codes = 4 * grid.zero_stage + 2 * grid.checkpointing + grid.offload
        expected, bound = np.ones(_NUM_CODES), np.zeros(_NUM_CODES)
        for code in np.flatnonzero(np.bincount(codes, minlength=_NUM_CODES)).tolist():
            group = ResidualGroup(
                kind=kind,
                family=family,
                gpu_type=gpu_type,
                zero_stage=code // 4,
                checkpointing=bool(code & 2),
                offload=bool(code & 1),
            )
            found = self.correction(group)
            expected[code], bound[code] = found.expected, found.bound
        return expected[codes], bound[codes]

    def _correct(self, key: _Key) -> Correction:
        own = self._of(key)
        location = self._location(key)
        excess, coverage = self._excess(key)
        bound = 0.0 if excess is None else math.exp(location + excess)
        if own.censored and coverage is None:
            bound = max(bound, math.exp(max(own.censored) + _ABOVE_CARD))
        return Correction(
            expected=math.exp(location),
            bound=bound,
            coverage=coverage,
            num_runs=len(own.measured) + len(own.censored),
        )

    def _of(self, key: _Key) -> _Runs:
        return self._runs.get(key, _Runs())

    def _location(self, key: _Key) -> float:
        return _shrunken_median([self._of(key[:length]).measured for length in range(1, len(key) + 1)])

    def _excess(self, key: _Key) -> tuple[float | None, float | None]:
        """How far above its location a group's runs reach, and the coverage where it can be stated."""
        own = self._of(key)
        for length in range(len(key), 0, -1):
            nearest = key[:length]
            measured = self._of(nearest).measured
            num_runs = len(measured) + len(own.censored)
            rank = math.ceil((num_runs + 1) * COVERAGE)
            if rank <= len(measured):
                return measured[rank - 1] - self._location(nearest), rank / (num_runs + 1)
        if len(own.measured) < 2:
            return None, None
        return own.measured[-2] - self._location(key), None


NOTHING_LEARNED: Final = Residuals()


def residual_family(model_type: str, *, adapters: bool) -> str:
    """The family of a run: its model type, apart for adapters."""
    return f"{model_type}+lora" if adapters else model_type


def _shrunken_median(nested: Sequence[Sequence[float]]) -> float:
    """Of ascending values in groups from the most general to the most specific; 0 where nothing is known.

    A group with just its parent's runs is its parent.
    """
    location, num_above = 0.0, -1
    for ascending in nested:
        num_runs = len(ascending)
        if num_runs >= 2 and num_runs != num_above:
            weight = (num_runs - 1) / (num_runs - 1 + _SHRINKAGE_RUNS)
            location = weight * _median_towards(ascending, location) + (1 - weight) * location
        num_above = num_runs
    return location


def _median_towards(ascending: Sequence[float], target: float) -> float:
    """The median; of the two middle values of an even number the one nearer to ``target``."""
    low, high = ascending[(len(ascending) - 1) // 2], ascending[len(ascending) // 2]
    return min((low, high), key=lambda value: (abs(value - target), value))
