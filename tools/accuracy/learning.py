"""Whether learning from a group's first runs brings the predictions of its other runs nearer."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.residuals import Residual, ResidualGroup, Residuals
from frenzy.core.values.hardware import DeviceKind

Triple = tuple[str, int, int]

_MOST_LEARNED: Final = 5
# Below this many other runs a group says little about what was learned from the first five.
_LEAST_OTHERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningPoint:
    """After ``num_learned`` runs of each group: errors on the same other runs, as shares.

    share_above_bound: of other runs that used more than the bound allowed (the larger of the learned
    bound and the expected peak with ``margin``).
    """

    num_learned: int
    median_error: float
    p90_error: float
    share_above_bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """num_groups: with enough runs; num_others: runs judged; margin: the configured one, as a share."""

    num_groups: int
    num_left_out: int
    num_others: int
    margin: float
    points: tuple[LearningPoint, ...]


def learning_curve(triples: Iterable[Triple], *, margin: float = Calibration.headroom_share) -> LearningCurve | None:
    """Errors after none to five runs of each group of (group, predicted bytes, measured bytes).

    The first five by the hash of (group, predicted, measured) are learned from, all others judged; each
    group learns from its own runs only. None when no group has seven runs.
    """
    groups: dict[str, list[Triple]] = defaultdict(list)
    for each in triples:
        groups[each[0]].append(each)
    split = {name: _split(rows) for name, rows in sorted(groups.items())}
    kept = {name: parts for name, parts in split.items() if len(parts[1]) >= _LEAST_OTHERS}
    if not kept:
        return None
    return LearningCurve(
        num_groups=len(kept),
        num_left_out=len(split) - len(kept),
        num_others=sum(len(others) for _, others in kept.values()),
        margin=margin,
        points=tuple(_point(list(kept.values()), number, margin) for number in range(_MOST_LEARNED + 1)),
    )


_Split = tuple[list[Triple], list[Triple]]


def _split(rows: list[Triple]) -> _Split:
    ordered = sorted(rows, key=lambda row: (hashlib.sha256(repr(row).encode()).hexdigest(), row))
    return ordered[:_MOST_LEARNED], ordered[_MOST_LEARNED:]


def _point(splits: list[_Split], num_learned: int, margin: float) -> LearningPoint:
    errors: list[float] = []
    above: list[bool] = []
    for first, others in splits:
        learned = Residuals(tuple(_residual(row) for row in first[:num_learned]))
        correction = learned.correction(_group(others[0][0]))
        bound = max(correction.bound, correction.expected * (1 + margin))
        errors += [abs(correction.expected * predicted / measured - 1) for _, predicted, measured in others]
        above += [measured > bound * predicted for _, predicted, measured in others]
    return LearningPoint(
        num_learned=num_learned,
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        share_above_bound=float(np.mean(above)),
    )


def _residual(row: Triple) -> Residual:
    group, predicted, measured = row
    return Residual(group=_group(group), predicted_bytes=predicted, measured_bytes=measured)


def _group(name: str) -> ResidualGroup:
    return ResidualGroup(kind=DeviceKind.CUDA, family=name, gpu_type="", zero_stage=0, checkpointing=False)
