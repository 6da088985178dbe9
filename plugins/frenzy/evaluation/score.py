"""How predictions and published measurements agree: errors, fit or no fit, coverage, and the worst rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy.stats import binomtest

from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.evaluation.margin import Margin, is_fitted
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import WIDEST_RANGE, Grade, Outcome, PublishedRow

_NUM_WORST: Final = 5
_CONFIDENCE: Final = 0.95
PEAKS: Final = "peak of tensors"


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row with its prediction. required_bytes: what the card must have.

    least_bytes: the lowest peak of what may have run, where not all was recorded.
    """

    row: PublishedRow
    prediction: MemoryPrediction
    required_bytes: int
    least_bytes: int | None = None

    @property
    def measured_bytes(self) -> int | None:
        """The peak of tensors, or what was reserved where only that was recorded."""
        return self.row.peak_bytes if self.row.peak_bytes is not None else self.row.reserved_bytes

    @property
    def error(self) -> float | None:
        """Relative error, positive when predicted too high; None for a run that failed.

        Where the prediction is a range: the distance to it. What was reserved has the allocator's cache in it, and
        perhaps the context, which nobody recorded: the requirement is the upper end then, as far as a range may reach.
        """
        peak = self.prediction.peak_allocated_bytes
        widest = round(peak * (1.0 + WIDEST_RANGE))
        return self._distance(peak if self.row.peak_bytes is not None else min(max(peak, self.required_bytes), widest))

    @property
    def error_of_peak(self) -> float | None:
        """The same where the peak is held for all that was reserved."""
        return self._distance(self.prediction.peak_allocated_bytes)

    def _distance(self, most: int) -> float | None:
        if not self.measured_bytes or self.row.outcome is not Outcome.RAN:
            return None
        least = self.prediction.peak_allocated_bytes if self.least_bytes is None else self.least_bytes
        return min(max(self.measured_bytes, least), most) / self.measured_bytes - 1.0

    @property
    def fits(self) -> bool:
        return self.required_bytes <= self.row.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors of a set of rows: median, 95th percentile and worst absolute one, median signed one."""

    count: int
    median: float | None = None
    p95: float | None = None
    worst: float | None = None
    signed: float | None = None

    @classmethod
    def of(cls, errors: Sequence[float]) -> Errors:
        if not errors:
            return cls(count=0)
        absolute = np.abs(np.asarray(errors))
        return cls(
            count=len(errors),
            median=float(np.median(absolute)),
            p95=float(np.quantile(absolute, 0.95)),
            worst=float(absolute.max()),
            signed=float(np.median(np.asarray(errors))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCells:
    """Rows by what was predicted and what happened; the first and third cost the user something."""

    fit_and_failed: int = 0
    fit_and_ran: int = 0
    no_fit_and_ran: int = 0
    no_fit_and_failed: int = 0

    @property
    def num_judged(self) -> int:
        """All of them."""
        return self.fit_and_failed + self.fit_and_ran + self.no_fit_and_ran + self.no_fit_and_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of rows whose requirement was at least the measured one, with its 95 % interval (Clopper, Pearson)."""

    covered: int
    count: int
    low: float | None = None
    high: float | None = None

    @property
    def share(self) -> float | None:
        return self.covered / self.count if self.count else None

    @classmethod
    def of(cls, outcomes: Sequence[bool]) -> Coverage:
        if not outcomes:
            return cls(covered=0, count=0)
        interval = binomtest(sum(outcomes), len(outcomes)).proportion_ci(_CONFIDENCE)
        return cls(covered=sum(outcomes), count=len(outcomes), low=float(interval.low), high=float(interval.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetScore:
    """What the scored half of one data set says.

    rows, refused: of the whole set; the latter by reason. fitted: errors of the other half, which no goal
    counts. needed, reserved: coverage of what tensors and the CUDA context took, and of what the
    allocator or the driver showed as taken. release: of transformers, and who says so. refused_lines: lines of the
    file, by reason. num_assumed: scored rows that failed, and nobody recorded that memory was why.
    """

    name: str
    grade: Grade
    measured: str
    rows: int
    refused: dict[str, int]
    errors: Errors
    fitted: Errors
    fits: FitCells
    needed: Coverage
    reserved: Coverage
    worst: tuple[ScoredRow, ...] = ()
    release: str = ""
    refused_lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    num_assumed: int = 0


def scored_rows(rows: Iterable[PublishedRow], margin: Margin) -> tuple[ScoredRow, ...]:
    """The rows that can be predicted, with their predictions."""
    found = []
    for row in rows:
        if row.run is not None:
            prediction = predict(row.run)
            least = min((predict(each).peak_allocated_bytes for each in row.alternatives), default=None)
            found.append(ScoredRow(row, prediction, margin.required_bytes(row.run, prediction), least))
    return tuple(found)


def score_dataset(rows: Sequence[PublishedRow], margin: Margin) -> DatasetScore:
    """Score one data set: its scored half, beside the errors of the other."""
    predicted, refused = scored_rows(rows, margin), _refused_lines(rows)
    scored = [each for each in predicted if not is_fitted(each.row)]
    measured = [each for each in scored if each.error is not None]
    has_peaks = any(each.peak_bytes is not None for each in rows)
    has_reserved = any(each.reserved_bytes is not None for each in rows)
    return DatasetScore(
        name=rows[0].dataset,
        grade=rows[0].grade,
        measured=PEAKS if has_peaks else "reserved" if has_reserved else "ran or not",
        rows=len(rows),
        refused={reason: len(lines) for reason, lines in refused.items()},
        errors=_errors(scored),
        fitted=_errors([each for each in predicted if is_fitted(each.row)]),
        fits=fit_cells(scored),
        needed=_needed_coverage(scored, margin),
        reserved=_reserved_coverage(scored),
        worst=tuple(sorted(measured, key=lambda each: -abs(each.error or 0.0))[:_NUM_WORST]),
        release=", ".join(sorted({each.release for each in rows if each.release})),
        refused_lines=refused,
        num_assumed=sum(each.row.outcome_is_assumed for each in scored),
    )


def _refused_lines(rows: Iterable[PublishedRow]) -> dict[str, tuple[int, ...]]:
    """Lines of the rows that cannot be predicted, by reason, the commonest first."""
    refused = [each for each in rows if each.run is None]
    reasons = Counter(each.refusal for each in refused).most_common()
    return {reason: tuple(each.line for each in refused if each.refusal == reason) for reason, _ in reasons}


def _errors(rows: Iterable[ScoredRow]) -> Errors:
    return Errors.of([each.error for each in rows if each.error is not None])


def fit_cells(scored: Sequence[ScoredRow]) -> FitCells:
    """Predicted against what happened."""
    cells = Counter((each.fits, each.row.outcome) for each in scored)
    return FitCells(
        fit_and_failed=cells[True, Outcome.OUT_OF_MEMORY],
        fit_and_ran=cells[True, Outcome.RAN],
        no_fit_and_ran=cells[False, Outcome.RAN],
        no_fit_and_failed=cells[False, Outcome.OUT_OF_MEMORY],
    )


def _needed_coverage(scored: Sequence[ScoredRow], margin: Margin) -> Coverage:
    known = [each for each in scored if each.row.peak_bytes is not None]
    return Coverage.of([each.required_bytes >= (each.row.peak_bytes or 0) + margin.context_bytes for each in known])


def _reserved_coverage(scored: Sequence[ScoredRow]) -> Coverage:
    known = [each for each in scored if each.row.reserved_bytes is not None and each.row.outcome is Outcome.RAN]
    return Coverage.of([each.required_bytes >= (each.row.reserved_bytes or 0) for each in known])
