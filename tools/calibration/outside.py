"""Memory outside tensors, from measured peaks of real runs and the model's own predictions."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from frenzy.core.memory.calibration import Calibration, OutsideBytes
from frenzy.core.values.hardware import DeviceKind
from frenzy.trainer.measure.record import Measurement, replayed


def with_outside(calibration: Calibration, measured: list[Path]) -> Calibration:
    """``calibration`` with what ``measured`` runs held beyond its own prediction of tensors."""
    bare = replace(calibration, outside=(), tensor_parallel_bytes=0)
    found = replace(bare, outside=outside_tensors(measured, bare))
    return replace(found, tensor_parallel_bytes=_tensor_parallel_bytes(measured, found))


def _tensor_parallel_bytes(measured: list[Path], calibration: Calibration) -> int:
    """Median of what tensor-parallel ranks measured beyond the prediction."""
    beyond = [num_bytes for each, num_bytes in _beyond(measured, calibration) if each.case.tp > 1]
    return max(0, round(statistics.median(beyond))) if beyond else 0


def _beyond(measured: list[Path], calibration: Calibration) -> Iterator[tuple[Measurement, int]]:
    """Every case that ran and that is predicted, and what was measured beyond its predicted peak."""
    for each in itertools.chain.from_iterable(replayed(file, calibration) for file in measured):
        if each.measured_bytes is not None and each.prediction is not None:
            yield each, each.measured_bytes - each.prediction.peak_allocated_bytes


def outside_tensors(measured: list[Path], calibration: Calibration) -> tuple[OutsideBytes, ...]:
    """What was measured beyond all tensors, by ZeRO stage, as a constant and a part for each tensor.

    Stages 1 and 2 share one engine in DeepSpeed and are fitted together. Least absolute deviations
    over all pairs of measurements (Theil and Sen), so that one odd measurement changes nothing.
    """
    points: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for each, num_bytes in _beyond(measured, calibration):
        if each.case.tp == 1:
            points[each.case.zero_stage == 3].append((each.case.shape.num_tensors, num_bytes))
    found = []
    for stage in (1, 2, 3):
        constant, slope = _line(points[stage == 3])
        found.append(
            OutsideBytes(kind=DeviceKind.VIRTUAL, zero_stage=stage, num_bytes=constant, bytes_per_tensor=slope)
        )
    return tuple(found)


def _line(points: list[tuple[int, int]]) -> tuple[int, int]:
    """(value at 0, slope) through ``points``, neither below zero."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2) if x1 != x2]
    slope = max(0.0, statistics.median(slopes)) if slopes else 0.0
    constant = statistics.median([y - slope * x for x, y in points]) if points else 0.0
    return max(0, round(constant)), round(slope)
