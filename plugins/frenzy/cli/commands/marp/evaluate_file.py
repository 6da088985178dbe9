"""``frenzy marp evaluate``: predictions held to measured training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frenzy.cli.render.console import err, out, print_json


def evaluate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV files of runs, known by their columns.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Predict the training runs in these files and compare: errors, fit or no fit, coverage.

    A file has the columns of fms-acceleration's benchmark, of which every second row is scored, or those of a table of
    your own runs (model, framework, micro_batch, sequence_length and what was measured; docs/accuracy.md lists all), of
    which every row is. Exit status 1 when a goal is missed, or no row of a file is judged.
    """
    from frenzy.cli.accuracy_tables import accuracy_tables, bars_table, verdicts
    from frenzy.evaluation.accuracy import accuracy_report
    from frenzy.evaluation.datasets import release_calibrations, unread_columns

    report = accuracy_report(files, release_calibrations())
    for file in files:
        if unread := unread_columns(file):
            err().print(
                f"Note: {file}: columns that nothing reads: {', '.join(unread)}.", style="yellow", soft_wrap=True
            )
    if as_json:
        print_json({"datasets": report.datasets, "margin": report.margin, "goals": report.bars})
    else:
        judged = [each for each in report.bars if each.is_met is not None]
        for table in (*accuracy_tables(report, with_lines=True), *([bars_table(judged)] if judged else [])):
            out().print(table)
        for line in verdicts(report):
            out().print(line, soft_wrap=True)
    return 0 if report.is_good and all(each.fits.num_judged for each in report.datasets) else 1
