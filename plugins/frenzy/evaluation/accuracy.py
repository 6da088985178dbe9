"""The accuracy report: every data set scored, the margin's two parts apart, in one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.evaluation.datasets import FORMATS, DatasetFormat, read_dataset
from frenzy.evaluation.margin import Margin, is_fitted
from frenzy.evaluation.published import Grade, PublishedRow
from frenzy.evaluation.score import (
    PEAKS,
    Coverage,
    DatasetScore,
    FitCells,
    fit_cells,
    score_dataset,
    scored_rows,
)

_MEDIAN_BAR: Final = 0.01
_WORST_BAR: Final = 0.03
_NO_FIT_BAR: Final = 0.02
_COVERAGE_BAR: Final = 0.99
_FIT_DATASETS: Final = ("fms", "llm-foundry")
_NO_FAILURE: Final = "fms"
_DEEPSPEED: Final = "deepspeed"
_DEEPSPEED_BAR: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One goal of the predictions; ``is_met`` None: nothing to judge it by."""

    name: str
    value: float | None
    unit: str
    goal: float
    is_met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyReport:
    """Scores of all data sets.

    fitted, scored: predicted fit against what happened on both parts.
    """

    datasets: tuple[DatasetScore, ...]
    rows: tuple[PublishedRow, ...]
    margin: Margin
    fitted: FitCells
    scored: FitCells
    bars: tuple[Bar, ...]

    @property
    def is_good(self) -> bool:
        """Whether no goal is missed."""
        return all(each.is_met is not False for each in self.bars)


def accuracy_report(
    files: Iterable[Path], calibrations: Mapping[str, Calibration], formats: Sequence[DatasetFormat] = FORMATS
) -> AccuracyReport:
    """Read and score ``files``. Raises PermanentError for a file that is no known data set."""
    by_dataset = [rows for file in files if (rows := read_dataset(file, calibrations, formats))]
    everything = tuple(row for rows in by_dataset for row in rows)
    margin = Margin()
    scores = tuple(score_dataset(rows, margin) for rows in by_dataset)
    all_scored = scored_rows(everything, margin)
    return AccuracyReport(
        datasets=scores,
        rows=everything,
        margin=margin,
        fitted=fit_cells([each for each in all_scored if is_fitted(each.row)]),
        scored=fit_cells([each for each in all_scored if not is_fitted(each.row)]),
        bars=_bars(scores),
    )


def _bars(scores: Sequence[DatasetScore]) -> tuple[Bar, ...]:
    graded = [each for each in scores if each.grade is Grade.A and each.errors.count]
    of_fit = [each for each in scores if each.name.startswith(_FIT_DATASETS)]
    fms = [each for each in of_fit if each.name.startswith(_NO_FAILURE)]
    # what an allocator reserved is more than tensors took, by an unknown part: no goal counts it
    deepspeed = [each for each in scores if each.name.startswith(_DEEPSPEED) and each.measured == PEAKS]
    deepspeed_medians = [each.errors.median for each in deepspeed if each.errors.median is not None]
    beyond = float(sum(each.needed.count - each.needed.covered for each in deepspeed)) if deepspeed else None
    medians = [each.errors.median for each in graded if each.errors.median is not None]
    worst = [each.errors.worst for each in graded if each.errors.worst is not None]
    failed = float(sum(each.fits.fit_and_failed for each in fms)) if any(each.fits.num_judged for each in fms) else None
    ran = sum(each.fits.no_fit_and_ran + each.fits.fit_and_ran for each in of_fit)
    refused = sum(each.fits.no_fit_and_ran for each in of_fit) / ran if ran else None
    coverage = _all(each.needed for each in graded)
    return (
        at_most("grade A, median error of the peak", max(medians, default=None), "share", _MEDIAN_BAR),
        at_most("grade A, worst error of the peak", max(worst, default=None), "share", _WORST_BAR),
        at_most("fms, predicted fit and failed", failed, "rows", 0.0),
        at_most("llm-foundry and fms, predicted no fit and ran", refused, "share", _NO_FIT_BAR),
        _least("grade A, required bytes cover what was needed", coverage.share, "share", _COVERAGE_BAR),
        at_most("DeepSpeed on GPUs, median error", max(deepspeed_medians, default=None), "share", _DEEPSPEED_BAR),
        at_most("DeepSpeed on GPUs, needed more than the requirement", beyond, "rows", 0.0),
    )


def _all(parts: Iterable[Coverage]) -> Coverage:
    parts = tuple(parts)
    return Coverage(covered=sum(each.covered for each in parts), count=sum(each.count for each in parts))


def at_most(name: str, value: float | None, unit: str, goal: float) -> Bar:
    return Bar(name=name, value=value, unit=unit, goal=goal, is_met=None if value is None else value <= goal)


def _least(name: str, value: float | None, unit: str, goal: float) -> Bar:
    return Bar(name=name, value=value, unit=unit, goal=goal, is_met=None if value is None else value >= goal)
