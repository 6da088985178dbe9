"""Where ``frenzy simulate`` puts its figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from frenzy.cli.console import err, out, print_json
from frenzy.core.errors import SpecError, Violation

if TYPE_CHECKING:
    from frenzy.sim.report import Report


def tell(report: Report, output: Path | None, *, as_json: bool) -> None:
    """The figures on stdout, as a table or as JSON; everything in the folder ``output``."""
    from frenzy.cli.simulation import figures_table
    from frenzy.sim.report import report_document, write_report

    summaries = report.summaries()
    if as_json:
        print_json(report_document(report, summaries))
    else:
        out().print(figures_table(summaries, with_cpu_times=report.with_cpu_times))
        for note in report.notes:
            out().print(note, style="yellow", soft_wrap=True)
    if output is not None:
        page = write_report(report, output)
        err().print(f"Report: {page}", soft_wrap=True)


def check_folder(output: Path | None) -> None:
    """Raises SpecError for what is no folder, before anything is simulated."""
    if output is not None and output.exists() and not output.is_dir():
        raise SpecError([Violation(path="--output", value=repr(str(output)), allowed="a folder")])
