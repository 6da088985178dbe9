"""One page with all figures and pictures, complete in itself: no script, nothing from outside."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined

from frenzy.sim.reports.figures import by_policy, ratios, shown_figures, time_unit_of
from frenzy.sim.summaries import Summary

_TEMPLATE: Final = Path(__file__).with_name("report.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A PNG file, and a sentence that says what it shows."""

    file: Path
    caption: str


def html_page(
    title: str,
    settings: Mapping[str, str],
    notes: Sequence[str],
    summaries: Sequence[Summary],
    pictures: Sequence[Picture],
    with_cpu_times: bool,
) -> str:
    """The page as text."""
    unit = time_unit_of(summaries)
    policies = by_policy(summaries, with_cpu_times=with_cpu_times)
    several = len({each.scenario for each in summaries}) > 1
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        settings=settings,
        notes=notes,
        unit=unit,
        figures=shown_figures(with_cpu_times=with_cpu_times),
        text_of=lambda figure: partial(figure.text, time_unit=unit),
        policies=policies,
        names=[each.policy for each in policies],
        heads=["over the scenarios", *(f"{each.policy} ({each.num_scenarios})" for each in policies)],
        ratios={(each.policy, each.baseline): each.of_means for each in ratios(summaries)},
        pictures=[(each.caption, base64.b64encode(each.file.read_bytes()).decode()) for each in pictures],
        scenarios=[asdict(each) for each in summaries] if several else (),
    )
