"""``frenzy marp evaluate``: predictions held to published measurements."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from frenzy.cli.render.console import out, print_json
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode

if TYPE_CHECKING:
    from frenzy.evaluation.accuracy import AccuracyReport

_BARS_FILE: Final = Path("build/bench/marp.json")
_PAGE: Final = Path("docs/accuracy.md")
_PICTURE: Final = Path("docs/images/marp-accuracy.png")


def evaluate(
    datasets: Annotated[
        list[str] | None, typer.Argument(help="CSV files, or names of files in tests/data/memory; all by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
    docs: Annotated[bool, typer.Option("--docs", help="Also write docs/accuracy.md and its picture.")] = False,
) -> int:
    """Predict published training runs and compare: errors, fit or no fit, coverage, and the estimates of others.

    Exit status 1 when a goal is missed.
    """
    from frenzy.evaluation.accuracy import accuracy_report
    from frenzy.evaluation.datasets import release_calibrations

    files = _files(datasets or [])
    report = accuracy_report(files, release_calibrations(), None if datasets else files[0].parent)
    if not datasets:
        _write_bars(report)
    if docs:
        _write_docs(report)
    if as_json:
        parts = {"datasets": report.datasets, "margin": report.margin, "goals": report.bars}
        print_json({**parts, "learning": report.learning, "speed": report.speed})
    else:
        _show(report)
    return 0 if all(each.is_met is not False for each in report.bars) else 1


def _files(names: list[str]) -> tuple[Path, ...]:
    from frenzy.evaluation.datasets import dataset_files
    from frenzy.settings import CHECKOUT

    folder = CHECKOUT / "tests/data/memory"
    if not names:
        return dataset_files(folder)
    return tuple(_file(name, folder) for name in names)


def _file(name: str, folder: Path) -> Path:
    from frenzy.evaluation.datasets import dataset_files

    if Path(name).is_file():
        return Path(name)
    matching = [each for each in dataset_files(folder) if name.replace("-", "").lower() in each.stem.replace("_", "")]
    if len(matching) != 1:
        known = ", ".join(each.stem for each in dataset_files(folder))
        raise PermanentError(
            Reason(
                code=ReasonCode.BAD_CONFIG_OR_DATA,
                detail=f"{name!r} is neither a file nor one data set of {folder}.",
                remedy=f"Name a file, or one of {known}.",
            )
        )
    return matching[0]


def _write_bars(report: AccuracyReport) -> None:
    _BARS_FILE.parent.mkdir(parents=True, exist_ok=True)
    _BARS_FILE.write_text(json.dumps([each.as_json() for each in report.bars], indent=2) + "\n", encoding="utf-8")


def _write_docs(report: AccuracyReport) -> None:
    from frenzy.evaluation.accuracy_page import accuracy_page
    from frenzy.evaluation.scatter import draw_scatter
    from frenzy.evaluation.score import scored_rows

    dated = f"{datetime.now(tz=UTC):%Y-%m-%d} with Python {platform.python_version()}"
    _PAGE.write_text(accuracy_page(report, dated=dated), encoding="utf-8")
    draw_scatter(scored_rows(report.rows, report.margin), _PICTURE)


def _show(report: AccuracyReport) -> None:
    from frenzy.cli.accuracy_tables import accuracy_tables

    for table in accuracy_tables(report):
        out().print(table)
