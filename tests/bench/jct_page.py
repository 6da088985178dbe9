"""The tables of ``bench_jct``, and the page ``docs/how-we-compare.md`` around them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Final

from tests.bench.jct_figures import JCT, LEAST_CLAIMED, MAKESPAN, P99, Bar, Ratio, all_ratios, bars, paper_claims
from tests.bench.jct_picture import draw
from tests.bench.jct_runs import Run
from tests.bench.jct_words import PAGE, WHY

from frenzy.sim.reports.figures import by_policy
from frenzy.sim.reports.intervals import Interval
from frenzy.sim.summaries import Summary

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE_NAME: Final = "how-we-compare.md"
PICTURE: Final = "images/compare-jct.png"
_COLUMNS: Final = (
    "policy",
    "scenarios",
    "average JCT, h",
    "median, h",
    "p99, h",
    "wait, h",
    "makespan, h",
    "restarts per job",
    "most",
    "GPU-hours lost",
    "scheduler CPU, s",
)


def tables_as_text(summaries: Sequence[Summary]) -> str:
    """All tables with a line above each, for a terminal."""
    parts = {
        "Means over the scenarios (restarts: the most of any job; scheduler CPU: of all scenarios)": policies(
            summaries
        ),
        "Ratios, with 95 % intervals and geometric means": ratios(summaries),
        "Goals": goals(bars(summaries)),
        "What the paper of frenzy-paper claims": claims(paper_claims(summaries)),
    }
    return "\n\n".join(f"{title}\n\n{text}" for title, text in parts.items()) + "\n"


def write_page(runs: Sequence[Run], seeds: Sequence[int], folder: Path = DOCS) -> Path:
    """Write the page and its picture into ``folder``; the page."""
    summaries = [each.summary for each in runs]
    draw(runs, all_ratios(summaries), folder / PICTURE)
    text = PAGE.format(
        machine=machine(),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        num_scenarios=len({each.scenario for each in summaries}),
        seeds=", ".join(map(str, seeds)),
        policies=policies(summaries),
        ratios=ratios(summaries),
        goals=goals(bars(summaries)),
        misses=misses(bars(summaries)),
        claims=claims(paper_claims(summaries)),
        verdict=verdict(paper_claims(summaries)),
        picture=PICTURE,
    )
    page = folder / PAGE_NAME
    page.write_text(text, encoding="utf-8")
    return page


def machine() -> str:
    """Where the figures are from, without a name."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({platform.machine()}), {memory_gib:.0f} GiB, Python {platform.python_version()}"


def policies(summaries: Sequence[Summary]) -> str:
    """One row for each series: means over its scenarios, the most restarts of any job, CPU seconds of all."""
    rows = []
    for each in by_policy(summaries):
        own = [one for one in summaries if one.policy == each.policy]
        mean = {name: found.value for name, found in each.figures.items()}
        times = ("jct_mean_s", "jct_median_s", "jct_p99_s", "queue_mean_s", "makespan_s")
        rows.append(
            (
                f"`{each.policy}`",
                str(each.num_scenarios),
                *(f"{mean[name] / 3600:,.2f}" for name in times),
                f"{mean['restarts_mean']:.2f}",
                str(max(one.restarts_max for one in own)),
                f"{mean['gpu_hours_lost']:.1f}",
                f"{sum(one.scheduler_cpu_s for one in own):.1f}",
            )
        )
    return table(_COLUMNS, rows)


def ratios(summaries: Sequence[Summary]) -> str:
    """One row for each pair: average JCT, its geometric mean, p99 JCT, makespan."""
    of: dict[tuple[str, str], dict[str, Ratio]] = {}
    for each in all_ratios(summaries):
        of.setdefault((each.policy, each.rival), {})[each.field] = each
    rows = [
        (
            f"`{policy}` / `{rival}`",
            str(found[JCT].mean.num_scenarios),
            with_interval(found[JCT].mean),
            f"{found[JCT].geometric.value:.3f}",
            with_interval(found[P99].mean),
            with_interval(found[MAKESPAN].mean),
        )
        for (policy, rival), found in of.items()
    ]
    return table(("ratio of", "scenarios", "average JCT", "geometric mean", "p99 JCT", "makespan"), rows)


def goals(found: Sequence[Bar]) -> str:
    """One row for each goal; a figure without one has none to miss."""
    rows = [
        (
            each.name,
            shown(each),
            "" if each.goal is None else f"<= {each.goal:.3g}",
            "" if each.goal is None else "ok" if each.ok else "**missed**",
        )
        for each in found
    ]
    return table(("figure", "value", "goal", ""), rows)


def claims(found: Sequence[Bar]) -> str:
    return table(("figure", "value"), [(each.name, shown(each)) for each in found])


def verdict(found: Sequence[Bar]) -> str:
    """Whether the claims hold, against each variant of Sia."""
    return "\n".join(f"- {each.name}: {_holds(each)}" for each in found)


def _holds(claim: Bar) -> str:
    if claim.ratio is None:
        return (
            f"{1 / claim.value:,.0f} times less; the claim of ten times {'holds' if claim.value <= 0.1 else 'fails'}."
        )
    if claim.value > 1:
        return f"{claim.value - 1:.0%} longer; the claim is not reproduced."
    held = "holds" if claim.value <= LEAST_CLAIMED else "is not reproduced"
    return f"{1 - claim.value:.0%} shorter; the claim {held}."


def misses(found: Sequence[Bar]) -> str:
    """Each goal that was missed: by how much, and why if that is known; none is said too."""
    lines = [
        f"- {each.name}: {each.value:.4g} instead of {each.goal:.4g}, {_excess(each):.1%} too much. "
        f"{WHY.get(each.name, 'The reason has not been looked into.')}"
        for each in found
        if not each.ok
    ]
    wrapped = [fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return "\n".join(wrapped) or "No goal was missed."


def _excess(bar: Bar) -> float:
    return bar.value / bar.goal - 1 if bar.goal else bar.value


def shown(bar: Bar) -> str:
    """With its interval if there is one."""
    return f"{bar.value:.3g}" if bar.ratio is None else with_interval(bar.ratio.mean)


def with_interval(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown with aligned columns, which can be read as it is."""
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    ruled = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) + " |" for row in ruled
    )
