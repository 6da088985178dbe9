"""The picture of ``bench_jct``: completion times on one trace, and the ratios with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from tests.bench.jct_figures import JCT, P99, Ratio
from tests.bench.jct_runs import PAPER_ALL, Run

from frenzy.sim.reports.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NOT_DRAWN: Final = (PAPER_ALL, "srtf, wrong estimates", "sia-ilp-work")
_COLOURS: Final = (*COLOURS, "#8A8A8A")
_DASHES: Final = ("-", "--", "-.")
_MARKS: Final = {JCT: ("o", "average JCT"), P99: ("s", "p99 JCT")}


def draw(runs: Sequence[Run], ratios: Sequence[Ratio], file: Path) -> None:
    """Write the PNG; of the runs those of the first scenario are drawn."""
    first = runs[0].summary.scenario
    jcts = {each.summary.policy: each.jcts_s for each in runs if each.summary.scenario == first}
    figure = Figure(figsize=(13, 6), dpi=120, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    _draw_times(left, {name: times for name, times in jcts.items() if name not in _NOT_DRAWN}, first)
    _draw_ratios(right, [each for each in ratios if each.field in _MARKS])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#E6E6E6")
        axes.set_axisbelow(True)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Software": None})


def _draw_times(axes: Axes, jcts: Mapping[str, Sequence[float]], scenario: str) -> None:
    for index, (policy, times) in enumerate(jcts.items()):
        shares = [100 * number / len(times) for number in range(1, len(times) + 1)]
        axes.step(
            [time / 3600 for time in times],
            shares,
            where="post",
            label=policy,
            color=_COLOURS[index % len(_COLOURS)],
            linestyle=_DASHES[index % len(_DASHES)],
            linewidth=2.6 if index == 0 else 1.5,
        )
    axes.set(xscale="log", ylim=(0, 100), xlabel="job completion time, hours (logarithmic)")
    axes.set(ylabel="jobs that ended within it, %", title=f"Completion times, {scenario}")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _legend(axes, 3)


def _draw_ratios(axes: Axes, ratios: Sequence[Ratio]) -> None:
    pairs = list(dict.fromkeys((each.policy, each.rival) for each in ratios))
    for at, (field, (marker, label)) in enumerate(_MARKS.items()):
        own = [each for each in ratios if each.field == field]
        values = [each.mean.value for each in own]
        errors = [
            [each.mean.value - each.mean.low for each in own],
            [each.mean.high - each.mean.value for each in own],
        ]
        rows = [pairs.index((each.policy, each.rival)) + 0.24 * at - 0.12 for each in own]
        axes.errorbar(values, rows, xerr=errors, fmt=marker, color=COLOURS[at], label=label, capsize=3, markersize=5)
    axes.axvline(1.0, color="black", linewidth=0.9)
    axes.set_yticks(range(len(pairs)), [f"{policy} / {rival}" for policy, rival in pairs], fontsize=9)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.set(xscale="log", xlabel="mean ratio with 95 % interval; below 1 has is better")
    axes.set_title("has beside each rival")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _legend(axes, 2)


def _legend(axes: Axes, num_columns: int) -> None:
    """Below the axes, where it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=num_columns, frameon=False, fontsize=9)
