"""What a wider margin buys and costs."""

from __future__ import annotations

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.values.units import GIB
from frenzy.evaluation.accuracy import accuracy_report
from frenzy.evaluation.datasets import release_calibrations
from frenzy.evaluation.margin import Margin
from frenzy.evaluation.score import scored_rows
from tools.accuracy.datasets.formats import ALL_FORMATS
from tools.accuracy.public_reports import JudgedReport, Verdict, read_reports
from tools.accuracy.report import DATA
from tools.accuracy.wider import wider_margins


def a_report(outcome: str, required_gib: float, verdict: Verdict = Verdict.FITS) -> JudgedReport:
    required = round(required_gib * GIB)
    return JudgedReport(
        source="a thread",
        label="a run",
        outcome=outcome,
        verdict=verdict,
        capacity_bytes=100 * GIB,
        required_bytes=(required, required),
    )


def test_a_wider_margin_refuses_failed_runs_and_others_that_ran() -> None:
    reports = [
        a_report("out of memory", 97),
        a_report("out of memory", 75),
        a_report("ran", 93),
        a_report("out of memory", 50, Verdict.CONTRADICTED),
    ]

    found = {each.more: (each.dangerous, each.reports_refused) for each in wider_margins(reports, [])}

    assert found == {0.0: (2, 0), 0.02: (2, 0), 0.05: (1, 0), 0.1: (1, 1), 0.2: (1, 1), 0.4: (0, 1)}


def test_without_more_the_counts_are_those_of_the_page() -> None:
    reports = read_reports(DATA / "reports/public_reports.csv", default_calibration(), Margin())
    memory = accuracy_report(sorted(DATA.glob("*.csv")), release_calibrations(), ALL_FORMATS)

    found = wider_margins(reports, scored_rows(memory.rows, memory.margin))

    assert found[0].dangerous == sum(each.is_dangerous for each in reports)
    assert found[0].rows_refused == memory.scored.no_fit_and_ran
    assert found[0].rows_that_ran == memory.scored.no_fit_and_ran + memory.scored.fit_and_ran
