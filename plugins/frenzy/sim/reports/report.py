"""What simulations leave in a folder: CSV, JSON, pictures, and one page that shows it all."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frenzy.core.values.codec import encode
from frenzy.sim.reports.figures import by_policy, ratios
from frenzy.sim.reports.html_report import Picture, html_page
from frenzy.sim.results import JobOutcome, SimResult
from frenzy.sim.summaries import CPU_TIMES, Summary, summarise

MOST_SCENARIOS_DRAWN: Final = 3
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is reported. settings: what was simulated, in words, by name.

    with_cpu_times: off, the same simulation gives the same bytes every time. notes: what a reader must know.
    """

    title: str
    settings: Mapping[str, str]
    results: Sequence[SimResult]
    with_cpu_times: bool = True
    notes: Sequence[str] = ()

    def summaries(self) -> list[Summary]:
        return [summarise(each) for each in self.results]


def write_report(report: Report, folder: Path) -> Path:
    """Write everything into ``folder``; the page to open."""
    folder.mkdir(parents=True, exist_ok=True)
    summaries = report.summaries()
    _write_csv(folder / "summary.csv", [_summary_row(each, report) for each in summaries])
    _write_csv(folder / "jobs.csv", _job_rows(report.results))
    document = report_document(report, summaries)
    (folder / "report.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    pictures = draw_pictures(report.results, folder)
    page = folder / "report.html"
    page.write_text(
        html_page(report.title, report.settings, report.notes, summaries, pictures, report.with_cpu_times),
        encoding="utf-8",
    )
    return page


def report_document(report: Report, summaries: Sequence[Summary]) -> dict[str, Any]:
    """All figures as JSON types: of each scenario, the means of each policy with intervals, and ratios."""
    return {
        "schema_version": SCHEMA_VERSION,
        "title": report.title,
        "settings": dict(report.settings),
        "notes": list(report.notes),
        "scenarios": [_summary_row(each, report) for each in summaries],
        "policies": encode(by_policy(summaries, with_cpu_times=report.with_cpu_times)),
        "jct_ratios": encode(ratios(summaries)),
    }


def draw_pictures(results: Sequence[SimResult], folder: Path) -> list[Picture]:
    """The PNG files; of many scenarios the first few have pictures of their own. Needs the extra ``plots``."""
    from frenzy.sim.reports.plots import draw_gantt, draw_gpus, draw_jct_cdf, draw_queue

    pictures = [_drawn(folder / "jct-cdf.png", "Completion times of all scenarios together.", draw_jct_cdf, results)]
    for scenario in list(dict.fromkeys(each.scenario for each in results))[:MOST_SCENARIOS_DRAWN]:
        own = [each for each in results if each.scenario == scenario]
        pictures.append(
            _drawn(folder / f"queue-{_slug(scenario)}.png", f"Queue over time, {scenario}.", draw_queue, own)
        )
        pictures.append(
            _drawn(folder / f"gpus-{_slug(scenario)}.png", f"GPUs in use by type, {scenario}.", draw_gpus, own)
        )
        for each in own:
            file = folder / f"gantt-{_slug(scenario)}-{_slug(each.policy)}.png"
            pictures.append(_drawn(file, f"Jobs on GPUs, {scenario} under {each.policy}.", draw_gantt, each))
    return pictures


def _drawn(file: Path, caption: str, draw: Callable[[Any, Path], None], what: object) -> Picture:
    draw(what, file)
    return Picture(file=file, caption=caption)


def _summary_row(summary: Summary, report: Report) -> dict[str, Any]:
    row: dict[str, Any] = encode(summary)
    return row if report.with_cpu_times else {name: value for name, value in row.items() if name not in CPU_TIMES}


def _job_rows(results: Sequence[SimResult]) -> Iterable[dict[str, Any]]:
    names = [each.name for each in dataclasses.fields(JobOutcome)]
    for result in results:
        for job in result.jobs:
            own = {name: getattr(job, name) for name in names}
            yield {"scenario": result.scenario, "policy": result.policy, **own, "jct_s": job.jct_s}


def _write_csv(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer: csv.DictWriter[str] | None = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(stream, fieldnames=list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)


def _slug(text: str) -> str:
    """``text`` as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.").lower() or "scenario"
