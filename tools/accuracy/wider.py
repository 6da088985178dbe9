"""What it would buy to require more memory than the model does, and which runs would be refused for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from frenzy.evaluation.margin import is_fitted
from frenzy.evaluation.published import Outcome
from frenzy.evaluation.score import ScoredRow
from tools.accuracy.public_reports import JudgedReport, Verdict

# Of the requirement, in addition to it.
MORE: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_NOT_COUNTED: Final = (Verdict.CONTRADICTED, Verdict.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderMargin:
    """Counts with a requirement that is larger by ``more``, a share of it.

    dangerous: reports that ran out of memory and are predicted to fit. reports_refused: reports that ran and are not.
    rows_refused: scored rows of the data sets that ran and are not, of ``rows_that_ran``.
    """

    more: float
    dangerous: int
    reports_refused: int
    rows_refused: int
    rows_that_ran: int


def wider_margins(reports: Sequence[JudgedReport], scored: Iterable[ScoredRow]) -> Sequence[WiderMargin]:
    """One for each share in ``MORE``."""
    counted = [each for each in reports if each.verdict not in _NOT_COUNTED]
    ran = [each for each in scored if each.row.outcome is Outcome.RAN and not is_fitted(each.row)]
    return tuple(_wider(more, counted, ran) for more in MORE)


def _wider(more: float, reports: Sequence[JudgedReport], ran: Sequence[ScoredRow]) -> WiderMargin:
    return WiderMargin(
        more=more,
        dangerous=sum(_fits(each, 1, more) for each in reports if each.outcome == Verdict.FAILS.value),
        reports_refused=sum(not _fits(each, 0, more) for each in reports if each.outcome == Verdict.FITS.value),
        rows_refused=sum(each.required_bytes * (1 + more) > each.row.capacity_bytes for each in ran),
        rows_that_ran=len(ran),
    )


def _fits(report: JudgedReport, end: int, more: float) -> bool:
    """Whether the ``end`` of its range (0: the lower one) fits."""
    return report.required_bytes[end] * (1 + more) <= report.capacity_bytes
