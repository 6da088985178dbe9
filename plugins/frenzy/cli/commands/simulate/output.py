"""Where ``frenzy simulate`` puts its figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from frenzy.cli.render.console import err, out, print_json
from frenzy.core.values.errors import SpecError, Violation

if TYPE_CHECKING:
    from frenzy.sim.reports.report import Report


def tell(report: Report, output: Path | None, *, as_json: bool) -> None:
    """The figures on stdout, as a table or as JSON; everything in the folder ``output``."""
    from frenzy.cli.commands.simulate.progress_bar import figures_table
    from frenzy.sim.reports.report import report_document, write_report

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
    """Make the folder before anything is simulated.

    Raises SpecError for one that cannot be written to, and where what draws the pictures is not installed.
    """
    if output is None:
        return
    try:
        import matplotlib  # noqa: F401  # asked for now, not after the simulation
    except ImportError as error:
        raise _refused(output, "only with matplotlib: pip install 'frenzy-airflow[plots]'") from error
    try:
        if output.exists() and not output.is_dir():
            raise _refused(output, "a folder")
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(output, f"a folder that can be made ({error.strerror})") from error
    if not os.access(output, os.W_OK | os.X_OK):
        raise _refused(output, "a folder that can be written to")


def _refused(output: Path, allowed: str) -> SpecError:
    return SpecError([Violation(path="--output", value=repr(str(output)), allowed=allowed)])
