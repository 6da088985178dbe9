"""``python -m tools.accuracy [--docs]``: every published data set, scored; exit status 1 when a goal is missed.

Prints the tables of ``frenzy marp evaluate`` and writes the goals into ``build/bench/marp.json``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from datetime import UTC, datetime
from typing import Final

from frenzy.cli.accuracy_tables import accuracy_tables, bars_table
from frenzy.cli.render.console import out
from frenzy.evaluation.score import scored_rows
from frenzy.settings import CHECKOUT
from tools.accuracy.page import accuracy_page
from tools.accuracy.report import PublishedReport, published_report
from tools.accuracy.scatter import draw_scatter

_BARS_FILE: Final = CHECKOUT / "build/bench/marp.json"
_PAGE: Final = CHECKOUT / "docs/accuracy.md"
_PICTURE: Final = CHECKOUT / "docs/images/marp-accuracy.png"


def main() -> int:
    """Score, print, write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="also write docs/accuracy.md and its picture")
    arguments = parser.parse_args()
    report = published_report()
    rows = [
        {"name": each.name, "value": each.value, "unit": each.unit, "goal": each.goal, "ok": each.is_met}
        for each in report.bars
    ]
    _BARS_FILE.parent.mkdir(parents=True, exist_ok=True)
    _BARS_FILE.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if arguments.docs:
        _write_docs(report)
    judged = [each for each in report.reports if each.is_judged]
    out().print(
        f"Public reports: {sum(each.agrees for each in judged)} of {len(judged)} agree; "
        f"out of memory but predicted to fit: {sum(each.is_dangerous for each in judged)}; "
        f"the planner does what the thread did: {sum(each.does_the_same for each in report.remedies)} "
        f"of {len(report.remedies)}"
    )
    for table in (*accuracy_tables(report.memory), bars_table(report.bars)):
        out().print(table)
    return int(any(each.is_met is False for each in report.bars))


def _write_docs(report: PublishedReport) -> None:
    dated = f"{datetime.now(tz=UTC):%Y-%m-%d} with Python {platform.python_version()}"
    _PAGE.write_text(accuracy_page(report, dated=dated), encoding="utf-8")
    draw_scatter(scored_rows(report.memory.rows, report.memory.margin), _PICTURE)


if __name__ == "__main__":
    sys.exit(main())
