"""One page with all figures and pictures, complete in itself: no script, nothing from outside."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from frenzy.sim.reports.figures import Figure, PolicyFigures, TimeUnit, by_policy, ratios, shown_figures, time_unit_of
from frenzy.sim.reports.intervals import Interval
from frenzy.sim.summaries import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A PNG file, and a sentence that says what it shows."""

    file: Path
    caption: str


_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th { background: #f5f5f5; } th:first-child, td:first-child { text-align: left; }
td small { color: #555; display: block; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; } dt { color: #555; } dd { margin: 0; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; } figcaption { color: #555; }
"""
_DEFINITIONS: Final = (
    ("JCT", "Job completion time: from submission to end. Jobs that never ended are left out of it and counted apart."),
    ("wait", "Time without GPUs, from submission on, and after every stop."),
    ("makespan", "From the first submission, or the start of the simulation, to the last end."),
    ("slowdown", "Completion time over the run time of the job's fastest plan (at least 10 s), at least 1."),
    (
        "idle though wanted",
        "Of the time in which GPUs were idle, the share in which a job waited that has a plan for no more GPUs "
        "of the type than were idle.",
    ),
    (
        "GPU-hours lost",
        "Spent on starting again and on steps that were lost with a node or for lack of memory; part of those used.",
    ),
    (
        "intervals",
        "95 %, by drawing the scenarios again, with replacement (10,000 times, seeded). One scenario has none.",
    ),
)


def html_page(
    title: str,
    settings: Mapping[str, str],
    notes: Sequence[str],
    summaries: Sequence[Summary],
    pictures: Sequence[Picture],
    with_cpu_times: bool,
) -> str:
    """The page as text."""
    figures = shown_figures(with_cpu_times=with_cpu_times)
    unit = time_unit_of(summaries)
    rows = by_policy(summaries, with_cpu_times=with_cpu_times)
    parts = [
        f"<h1>{escape(title)}</h1>",
        _definitions(settings.items()),
        *(f"<p>{escape(note)}</p>" for note in notes),
        "<h2>Policies</h2>",
        _policy_table(rows, figures, unit),
        *_ratio_part(summaries),
        "<h2>Pictures</h2>",
        *(_figure(each) for each in pictures),
        *_scenario_part(summaries, figures, unit),
        "<h2>What the words mean</h2>",
        _definitions(_DEFINITIONS),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _policy_table(rows: Sequence[PolicyFigures], figures: Sequence[Figure], unit: TimeUnit) -> str:
    """A row for each figure and a column for each policy: many figures, few policies."""
    heads = ["over the scenarios", *(f"{row.policy} ({row.num_scenarios})" for row in rows)]
    body = [
        [escape(figure.heading(unit)), *(_with_interval(row.figures[figure.field], figure, unit) for row in rows)]
        for figure in figures
    ]
    return _table(heads, body)


def _with_interval(found: Interval, figure: Figure, unit: TimeUnit) -> str:
    text = figure.text(found.value, unit)
    if found.num_scenarios < 2:
        return text
    return f"{text}<small>{figure.text(found.low, unit)} – {figure.text(found.high, unit)}</small>"


def _ratio_part(summaries: Sequence[Summary]) -> Iterable[str]:
    found = {(each.policy, each.baseline): each for each in ratios(summaries)}
    policies = list(dict.fromkeys(each.policy for each in summaries))
    if not found:
        return
    yield "<h2>Average JCT, row over column</h2>"
    yield "<p>The mean over the shared scenarios, pairs kept together; below 1 the row's policy is faster.</p>"
    yield _table(
        ["", *policies],
        [
            [
                escape(row),
                *(_ratio(found[row, column].of_means) if (row, column) in found else "" for column in policies),
            ]
            for row in policies
        ],
    )


def _ratio(found: Interval) -> str:
    spread = "" if found.num_scenarios < 2 else f"<small>{found.low:.3f} – {found.high:.3f}</small>"
    return f"{found.value:.3f}{spread}"


def _scenario_part(summaries: Sequence[Summary], figures: Sequence[Figure], unit: TimeUnit) -> Iterable[str]:
    if len({each.scenario for each in summaries}) < 2:
        return
    yield "<h2>Every scenario</h2>"
    heads = ["scenario", "policy", *(figure.heading(unit) for figure in figures)]
    values = [dataclasses.asdict(each) for each in summaries]
    yield _table(
        heads,
        [
            [
                escape(row["scenario"]),
                escape(row["policy"]),
                *(figure.text(row[figure.field], unit) for figure in figures),
            ]
            for row in values
        ],
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Heads are escaped here; cells are HTML already."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.file.read_bytes()).decode()
    caption = escape(picture.caption)
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
    )


def _definitions(items: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in items)}</dl>"
