"""Pictures of simulations: completion times, queue, GPUs in use, and who was where."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from frenzy.sim.reports.figures import TimeUnit, unit_for
from frenzy.sim.results import SimResult, Stay

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart with every common form of colour blindness.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#8C7A00")
_DASHES: Final = ("-", "--", "-.", ":")
_GREY: Final = "#D9D9D9"
_BINS: Final = 300
_DPI: Final = 130
_MOST_ROWS: Final = 60
# Pictures over time end when this share of the jobs has ended, and not before so many times the span of the
# arrivals: one long job would hide the rest.
_JOBS_SHOWN: Final = 0.9
_SPANS_SHOWN: Final = 3
# Characters on a line of a title; a scenario's name has no spaces and may be longer than a picture is wide.
_TITLE_WIDTH: Final = 60
_STYLE: Final[dict[Any, Any]] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "legend.frameon": False,
}


def draw_jct_cdf(results: Sequence[SimResult], file: Path) -> None:
    """Share of jobs that ended within a time, one line for each policy, all its scenarios together."""
    jcts = {
        policy: np.sort([job.jct_s for each in own for job in each.jobs if job.jct_s is not None])
        for policy, own in _by_policy(results).items()
    }
    unit = unit_for(max((float(np.median(values)) for values in jcts.values() if len(values)), default=0.0) * 4)
    with mpl.rc_context(_STYLE):
        figure, axes = _one_panel(8, 4.6)
        for index, (policy, values) in enumerate(jcts.items()):
            if len(values):
                shares = np.arange(1, len(values) + 1) / len(values)
                axes.step(
                    np.maximum(values, 1.0) / unit.seconds, 100 * shares, where="post", label=policy, **_line(index)
                )
        axes.set(xscale="log", ylim=(0, 100), xlabel=f"job completion time, {unit.name} (logarithmic)")
        axes.set(ylabel="jobs that ended within it, %", title="Job completion times")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.legend(loc="upper left")
        _save(figure, file)


def draw_queue(results: Sequence[SimResult], file: Path) -> None:
    """Waiting jobs over time in one scenario, one line for each policy."""
    shown_s = span_shown_s(results)
    unit = unit_for(shown_s)
    with mpl.rc_context(_STYLE):
        figure, axes = _one_panel(8, 4.2)
        for index, each in enumerate(results):
            edges = _edges(each, shown_s)
            times = np.asarray([when for when, _ in each.queue])
            means = time_means(times, np.asarray([float(count) for _, count in each.queue]), edges)
            axes.stairs(means, (edges - each.began_s) / unit.seconds, label=each.policy, baseline=None, **_line(index))
        axes.set(
            xlabel=_time_label(results, shown_s, unit),
            ylabel="jobs that wait",
            title=_title(f"Queue: {results[0].scenario}"),
        )
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, shown_s / unit.seconds)
        axes.legend()
        _save(figure, file)


def draw_gpus(results: Sequence[SimResult], file: Path) -> None:
    """GPUs in use over time in one scenario, stacked by type, one panel for each policy."""
    num_gpus = {name: count for each in results for name, count in each.num_gpus.items()}
    types = list(num_gpus)
    shown_s = span_shown_s(results)
    unit = unit_for(shown_s)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 1.2 + 1.9 * len(results)), dpi=_DPI, layout="constrained")
        panels = figure.subplots(len(results), 1, sharex=True, squeeze=False)
        for axes, each in zip(panels[:, 0], results, strict=True):
            edges = _edges(each, shown_s)
            in_use = [_in_use(each.stays, gpu_type, edges) for gpu_type in types]
            hours = (np.repeat(edges, 2)[1:-1] - each.began_s) / unit.seconds
            axes.stackplot(hours, *[np.repeat(used, 2) for used in in_use], colors=_colours(types), linewidth=0)
            total = sum(each.num_gpus.values())
            axes.axhline(total, color="black", linewidth=0.8, linestyle="--")
            axes.set(ylim=(0, total * 1.06), ylabel="GPUs")
            axes.set_title(each.policy, loc="left", fontsize=10)
            axes.set_xlim(0, shown_s / unit.seconds)
        panels[-1, 0].set_xlabel(_time_label(results, shown_s, unit))
        handles: list[Artist] = [
            Patch(color=colour, label=f"{name} ({num_gpus[name]})")
            for name, colour in zip(types, _colours(types), strict=True)
        ]
        handles.append(Line2D([], [], color="black", linewidth=0.8, linestyle="--", label="all GPUs"))
        figure.legend(handles=handles, loc="outside right upper", title="GPU type")
        # On the left, for the legend is on the right.
        figure.suptitle(_title(f"GPUs in use: {results[0].scenario}"), fontsize=12, x=0.01, ha="left")
        _save(figure, file)


def draw_gantt(result: SimResult, file: Path) -> None:
    """Who ran where and when: a row for each job, as many jobs as can be read, evenly over the submissions."""
    jobs = sorted(result.jobs, key=lambda job: (job.submitted_s, job.run_key))
    picked = [jobs[round(at)] for at in np.linspace(0, len(jobs) - 1, min(len(jobs), _MOST_ROWS))]
    types = list(result.num_gpus)
    colours = dict(zip(types, _colours(types), strict=True))
    began_s = result.began_s
    shown_s = span_shown_s([result])
    unit = unit_for(shown_s)
    row_of = {job.run_key: row for row, job in enumerate(picked)}
    with mpl.rc_context(_STYLE):
        figure, axes = _one_panel(9, 1.6 + 0.17 * max(6, len(picked)))
        for row, job in enumerate(picked):
            submitted_s = max(began_s, job.submitted_s)
            end_s = _last_s(result) if job.end_s is None else job.end_s
            axes.barh(
                row,
                (end_s - submitted_s) / unit.seconds,
                left=(submitted_s - began_s) / unit.seconds,
                height=0.34,
                color=_GREY,
            )
        for stay in result.stays:
            if stay.run_key in row_of:
                _draw_stay(axes, stay, row_of[stay.run_key], began_s, unit, colours)
        _name_rows(axes, [job.job_name for job in picked])
        shown = "" if len(picked) == len(jobs) else f" ({len(picked)} of {len(jobs)} jobs)"
        axes.set(xlabel=_time_label([result], shown_s, unit))
        axes.set_title(_title(f"{result.policy}: {result.scenario}{shown}"))
        axes.set_xlim(0, shown_s / unit.seconds)
        axes.grid(axis="y", visible=False)
        handles = [
            Patch(color=colours[name], label=name)
            for name in types
            if any(stay.gpu_type == name for stay in result.stays)
        ]
        handles += [
            Patch(color=_GREY, label="waits"),
            Patch(facecolor="white", edgecolor="black", hatch="////", label="restarts"),
        ]
        figure.legend(handles=handles, loc="outside right upper")
        _save(figure, file)


def time_means(
    times: NDArray[np.float64], levels: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean between each two ``edges`` of what is ``levels[i]`` from ``times[i]`` on, and 0 before the first."""
    if not len(times):
        return np.zeros(len(edges) - 1)
    last = max(float(times[-1]), float(edges[-1]))
    ends = np.append(times[1:], last)
    totals = np.concatenate([[0.0], np.cumsum(levels * (ends - times))])
    means: NDArray[np.float64] = np.diff(np.interp(edges, np.append(times, last), totals)) / np.diff(edges)
    return means


def _in_use(stays: Sequence[Stay], gpu_type: str, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    changes = [(stay.start_s, stay.num_gpus) for stay in stays if stay.gpu_type == gpu_type]
    changes += [(stay.end_s, -stay.num_gpus) for stay in stays if stay.gpu_type == gpu_type]
    changes.sort()
    times = np.asarray([when for when, _ in changes])
    return time_means(times, np.cumsum([float(count) for _, count in changes]), edges)


def _draw_stay(axes: Axes, stay: Stay, row: int, began_s: float, unit: TimeUnit, colours: Mapping[str, str]) -> None:
    start_s = max(began_s, stay.start_s)
    colour = colours.get(stay.gpu_type, COLOURS[-1])
    axes.barh(
        row, (stay.end_s - start_s) / unit.seconds, left=(start_s - began_s) / unit.seconds, height=0.8, color=colour
    )
    restart_s = min(stay.busy_from_s, stay.end_s) - start_s
    if restart_s > 0:
        left = (start_s - began_s) / unit.seconds
        axes.barh(
            row,
            restart_s / unit.seconds,
            left=left,
            height=0.8,
            color=colour,
            hatch="//////",
            edgecolor="white",
            linewidth=0,
        )


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [name if len(name) <= 28 else f"{name[:27]}…" for name in names], fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _by_policy(results: Sequence[SimResult]) -> dict[str, list[SimResult]]:
    found: dict[str, list[SimResult]] = {}
    for each in results:
        found.setdefault(each.policy, []).append(each)
    return found


def _last_s(result: SimResult) -> float:
    return max([*(stay.end_s for stay in result.stays), *(when for when, _ in result.queue)], default=result.start_s)


def span_shown_s(results: Sequence[SimResult]) -> float:
    """How much time a picture shows, from the beginning: all, or until most jobs have come and ended."""
    longest_s = max((_last_s(each) - each.began_s for each in results), default=0.0)
    span_s = max((job.submitted_s - each.began_s for each in results for job in each.jobs), default=0.0)
    most_ended_s = max((_most_ended_s(each) for each in results), default=0.0)
    return max(1.0, min(longest_s, max(_SPANS_SHOWN * span_s, most_ended_s)) if span_s > 0 else longest_s)


def _most_ended_s(result: SimResult) -> float:
    """After how long all but the few last jobs have ended."""
    ends_s = [_last_s(result) if job.end_s is None else job.end_s for job in result.jobs]
    return float(np.quantile(ends_s, _JOBS_SHOWN, method="higher")) - result.began_s if ends_s else 0.0


def _time_label(results: Sequence[SimResult], shown_s: float, unit: TimeUnit) -> str:
    longest_s = max((_last_s(each) - each.began_s for each in results), default=0.0)
    if longest_s <= shown_s + 1:
        return f"time, {unit.name}"
    end = unit_for(longest_s)
    return f"time, {unit.name}\n(cut; the last job ends after {longest_s / end.seconds:.1f} {end.name})"


def _title(text: str) -> str:
    """``text`` on as many lines as it needs."""
    return "\n".join(textwrap.wrap(text, _TITLE_WIDTH, break_on_hyphens=False))


def _edges(result: SimResult, shown_s: float) -> NDArray[np.float64]:
    began_s = result.began_s
    return np.linspace(began_s, began_s + shown_s, _BINS + 1)


def _colours(types: Sequence[str]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(types))]


def _line(index: int) -> dict[str, Any]:
    dashes = _DASHES[(index // len(COLOURS) + index) % len(_DASHES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": dashes, "linewidth": 1.6}


def _one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    return figure, figure.subplots()


def _save(figure: Figure, file: Path) -> None:
    """Without what differs from machine to machine, so that the same figures give the same bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Software": None})
