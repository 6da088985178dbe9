"""Recorded arrivals: when jobs came, how many GPUs they asked for and, where known, how long they ran.

A trace is a CSV file, compressed or not, whose columns are recognised by their names (capital
letters do not matter; ``COLUMNS``): those of the public traces that the project has, and any
of a user's own with the same names. Times are seconds or dates; dates count from the first arrival.

Left out, and counted by reason, are rows without a time of arrival, rows that ask for no GPU, and, in
a trace that records durations, rows without one or with none above 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.values.errors import SpecError, Violation
from frenzy.settings import CHECKOUT
from frenzy.sim.input_tables import Row, read_table

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "arrival": ("submit_s", "arrival_s", "submit_time", "creation_time", "timestamp", "time"),
    "gpus": ("gpus", "num_gpus", "num_gpu", "num_replicas"),
    "duration": ("duration_s", "duration"),
    "start": ("start_time", "scheduled_time"),
    "end": ("end_time", "deletion_time"),
    "gpu_seconds": ("gpu_s", "gpu_seconds", "gpu_time"),
    "name": ("job", "job_name", "name"),
    "application": ("application",),
    "queue": ("queue", "partition"),
    "team": ("team", "cluster", "user"),
    "gpu_types": ("gpu_type", "gpu_spec"),
}
_DURATION_COLUMNS: Final = ("duration", "end", "gpu_seconds")
# One trace comes with the package; a checkout has the other published ones beside the rivals.
_FOLDERS: Final = (CHECKOUT / "include/data/traces", CHECKOUT / "tools/policy_bench/traces")
TRACES: Final[Mapping[str, Path]] = {
    file.name.partition(".")[0]: file for folder in _FOLDERS for file in sorted(folder.glob("*.csv*"))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One job of a trace.

    submit_s: since the trace's beginning. duration_s: how long it ran on the GPUs it asked for, if
    known. gpu_types: the only ones it may use, in the words of the trace; empty: any.
    """

    name: str
    submit_s: float
    num_gpus: int
    duration_s: float | None = None
    application: str | None = None
    queue: str | None = None
    team: str | None = None
    gpu_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Arrivals in order of time. left_out: rows that are none, counted by reason."""

    name: str
    arrivals: tuple[Arrival, ...]
    left_out: Mapping[str, int]


def load_trace(name: str) -> Trace:
    """The trace called ``name``, or the one in the CSV file of that path. Raises SpecError."""
    if name in TRACES:
        return read_trace(TRACES[name], name=name)
    path = Path(name)
    if not path.is_file():
        allowed = f"one of {', '.join(TRACES)}, or a CSV file; there is no file {absent(path)}"
        raise SpecError([Violation(path="trace", value=repr(name), allowed=allowed)])
    return read_trace(path)


def read_trace(path: Path, *, name: str | None = None) -> Trace:
    """The trace in the CSV file at ``path``, called ``name`` or else as the file is.

    Raises SpecError naming file, line and column of a value that cannot be read.
    """
    rows = list(read_table(path, COLUMNS, required=("arrival", "gpus")))
    times_s = [row.time_s("arrival") for row in rows]
    origin_s = _origin_s(rows, times_s)
    found: list[Arrival] = []
    left_out: Counter[str] = Counter()
    for row, time_s in zip(rows, times_s, strict=True):
        arrival = _arrival(row, time_s, origin_s)
        if isinstance(arrival, Arrival):
            found.append(arrival)
        else:
            left_out[arrival] += 1
    found.sort(key=lambda each: (each.submit_s, each.name))
    return Trace(name=name or stem(path), arrivals=tuple(found), left_out=dict(left_out))


def absent(path: Path) -> str:
    """Where a file was looked for: a relative path counts from the folder of the command."""
    return str(path.absolute())


def stem(path: Path) -> str:
    """The file's name without its endings."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def _origin_s(rows: Iterable[Row], times_s: Iterable[float | None]) -> float:
    """What times are counted from: 0, or the first of them where they are dates."""
    dates = [time_s for row, time_s in zip(rows, times_s, strict=True) if time_s is not None and row.is_date("arrival")]
    return min(dates, default=0.0)


def _arrival(row: Row, time_s: float | None, origin_s: float) -> Arrival | str:
    """The job on ``row``, or why it is left out."""
    num_gpus, gpu_types = row.whole("gpus"), row.text("gpu_types")
    if time_s is None:
        return "no time of arrival"
    if not num_gpus:
        return "asks for no GPU"
    duration_s = _duration_s(row, time_s, num_gpus)
    if any(each in row.columns for each in _DURATION_COLUMNS) and not (duration_s and duration_s > 0):
        return "no duration"
    if time_s < origin_s:
        raise row.refusal("arrival", "all arrivals in seconds, or all as dates")
    return Arrival(
        name=row.text("name") or f"line-{row.line}",
        submit_s=time_s - origin_s,
        num_gpus=num_gpus,
        duration_s=duration_s,
        application=row.text("application"),
        queue=row.text("queue"),
        team=row.text("team"),
        gpu_types=tuple(dict.fromkeys(gpu_types.split("|"))) if gpu_types else (),
    )


def _duration_s(row: Row, arrival_s: float, num_gpus: int) -> float | None:
    """As recorded; else from start (or arrival) to end; else GPU-seconds over GPUs."""
    duration_s, end_s, gpu_s = row.number("duration"), row.time_s("end"), row.number("gpu_seconds")
    if duration_s is not None:
        return duration_s
    if end_s is not None:
        start_s = row.time_s("start")
        return end_s - (arrival_s if start_s is None else start_s)
    return None if gpu_s is None else gpu_s / num_gpus
