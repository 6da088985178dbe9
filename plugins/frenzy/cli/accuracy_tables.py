"""Tables of ``frenzy marp evaluate``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from frenzy.cli.render.tables import Grid, grid, size
from frenzy.core.values.units import counted
from frenzy.evaluation.accuracy import AccuracyReport, Bar
from frenzy.evaluation.score import Coverage, Errors

_SHOWN_LINES: Final = 5


def accuracy_tables(report: AccuracyReport, *, with_lines: bool = False) -> Iterator[Grid]:
    """What the command prints above its goals, in order.

    with_lines: of the file, beside the reasons why rows were left out.
    """
    yield _errors_table(report)
    yield _left_out_table(report, with_lines=with_lines)
    yield _fit_table(report)
    yield _worst_table(report)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _error_cells(errors: Errors) -> tuple[str, ...]:
    return (str(errors.count), *(_percent(each) for each in (errors.median, errors.p95, errors.worst, errors.signed)))


def _errors_table(report: AccuracyReport) -> Grid:
    headings = ("data set", "grade", "compared with", "rows", "scored", "median", "95th", "worst", "signed", "release")
    rows = [
        (s.name, str(s.grade), s.measured, str(s.rows), *_error_cells(s.errors), s.release) for s in report.datasets
    ]
    return grid("Errors of the predicted peak", headings, rows)


def _left_out_table(report: AccuracyReport, *, with_lines: bool) -> Grid:
    headings = ("data set", "rows", *(["lines"] if with_lines else []), "reason")
    rows = [
        (s.name, str(len(lines)), *([_first_of(lines)] if with_lines else []), reason)
        for s in report.datasets
        for reason, lines in s.refused_lines.items()
    ]
    return grid("Rows left out", headings, rows)


def _first_of(lines: Sequence[int]) -> str:
    """The first few: ``3, 7, 9 and 12 more``."""
    *most, last = map(str, lines[:_SHOWN_LINES])
    if len(lines) > _SHOWN_LINES:
        return f"{', '.join((*most, last))} and {len(lines) - _SHOWN_LINES} more"
    return f"{', '.join(most)} and {last}" if most else last


def _coverage(coverage: Coverage) -> str:
    if coverage.share is None:
        return ""
    return f"{coverage.covered}/{coverage.count} ({_percent(coverage.low)} to {_percent(coverage.high)})"


def _fit_table(report: AccuracyReport) -> Grid:
    headings = (
        "data set",
        "fit, FAILED",
        "fit, ran",
        "no fit, RAN",
        "no fit, failed",
        "covers need",
        "covers reserved",
    )
    rows = []
    for score in report.datasets:
        cells = score.fits
        counts = (cells.fit_and_failed, cells.fit_and_ran, cells.no_fit_and_ran, cells.no_fit_and_failed)
        rows.append((score.name, *(str(each) for each in counts), _coverage(score.needed), _coverage(score.reserved)))
    for name, cells in (("fitted part", report.fitted), ("scored part", report.scored)):
        counts = (cells.fit_and_failed, cells.fit_and_ran, cells.no_fit_and_ran, cells.no_fit_and_failed)
        rows.append((name, *(str(each) for each in counts), "", ""))
    return grid("Predicted to fit, and what happened", headings, rows)


def _worst_table(report: AccuracyReport) -> Grid:
    rows = [
        (
            score.name,
            str(each.row.number),
            each.row.label,
            size(each.prediction.peak_allocated_bytes),
            size(each.measured_bytes),
            _percent(each.error),
            each.prediction.at,
        )
        for score in report.datasets
        for each in score.worst[:3]
    ]
    return grid("Worst rows", ("data set", "row", "run", "predicted", "measured", "error", "peak at"), rows)


def verdicts(report: AccuracyReport) -> Iterator[str]:
    """What each data set says, in a line."""
    for score in report.datasets:
        cells, errors = score.fits, score.errors
        ran, failed = cells.fit_and_ran + cells.no_fit_and_ran, cells.no_fit_and_failed + cells.fit_and_failed
        parts = [f"{cells.num_judged} of {counted(score.rows, 'row')} judged"]
        if errors.count:
            off = f"median {_percent(errors.median)}, worst {_percent(errors.worst)}"
            parts.append(f"error of the peak in {errors.count}: {off}")
        if ran:
            parts.append(f"{cells.fit_and_ran} of {ran} that ran predicted to fit")
        if failed:
            parts.append(f"{cells.no_fit_and_failed} of {failed} that ran out of memory predicted not to fit")
        if score.num_assumed:
            parts.append(f"of these {score.num_assumed} without error_messages, taken for it by their empty results")
        yield f"{score.name}: {'; '.join(parts)}."


def bars_table(bars: Iterable[Bar]) -> Grid:
    """Goals, and whether they are met."""

    def value(bar: Bar, number: float | None) -> str:
        return _percent(number) if bar.unit == "share" else "" if number is None else f"{number:g} {bar.unit}"

    def verdict(bar: Bar) -> str:
        return "no rows" if bar.is_met is None else "met" if bar.is_met else "MISSED"

    rows = [(bar.name, value(bar, bar.value), value(bar, bar.goal), verdict(bar)) for bar in bars]
    return grid("Goals", ("what", "found", "goal", ""), rows)
