"""GPU time that runs had, from the leases they held, and what it cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Final

from frenzy.core.runs.ledger import RunRecord

_DAY_S: Final = 86400.0
_HOUR_S: Final = 3600.0
NOBODY: Final = "-"
OTHERS: Final = "(others)"
_MOST_NAMES: Final = 8


class UsageBy(StrEnum):
    """What usage is added up by; DAY: of UTC."""

    TEAM = "team"
    OWNER = "owner"
    JOB = "job"
    QUEUE = "queue"
    GPU_TYPE = "gpu_type"
    DAY = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSpan:
    """From when to when one attempt held how many GPUs; ended_s: None while it holds them."""

    run_key: str
    gpu_type: str
    num_gpus: int
    granted_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """cost: by the prices that the cluster's GPU types have now; None where one of them has none."""

    name: str
    gpu_hours: float
    cost: float | None
    num_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageView:
    """GPU time between two moments, the most first (days: in their order)."""

    since_s: float
    until_s: float
    by: UsageBy
    rows: tuple[UsageRow, ...]
    total: UsageRow


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSeries:
    """What one name had in each part of a time, in their order."""

    name: str
    gpu_hours: tuple[float, ...]
    cost: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageHistory:
    """GPU time in equal parts of a time. edges_s: where they begin, and the end.

    series: of the names that had the most, then of all others together (``OTHERS``), if there are any. whole: of the
    same names in the whole time.
    """

    edges_s: tuple[float, ...]
    series: tuple[UsageSeries, ...]
    whole: UsageView


@dataclass(slots=True)
class _Sum:
    gpu_hours: float = 0.0
    cost: float | None = 0.0

    def add(self, gpu_hours: float, price_per_hour: float | None) -> None:
        self.gpu_hours += gpu_hours
        known = self.cost is not None and price_per_hour is not None
        self.cost = (self.cost or 0.0) + gpu_hours * (price_per_hour or 0.0) if known else None


def gpu_usage(
    spans: Iterable[LeaseSpan],
    runs: Mapping[str, RunRecord],
    prices: Mapping[str, float | None],
    *,
    by: UsageBy,
    since_s: float,
    until_s: float,
) -> UsageView:
    """What of ``spans`` lies between the two moments. runs: those that count; prices: an hour of one GPU, by type."""
    sums: defaultdict[str, _Sum] = defaultdict(_Sum)
    who: defaultdict[str, set[str]] = defaultdict(set)
    total, every = _Sum(), set[str]()
    for span in spans:
        if span.run_key not in runs:
            continue
        ended_s = until_s if span.ended_s is None else span.ended_s
        start_s, end_s = max(span.granted_s, since_s), min(ended_s, until_s)
        for name, length_s in _parts(span, runs[span.run_key], by, start_s, end_s):
            hours, price = span.num_gpus * length_s / _HOUR_S, prices.get(span.gpu_type)
            sums[name].add(hours, price)
            total.add(hours, price)
            who[name].add(span.run_key)
            every.add(span.run_key)
    rows = [_row(name, each, len(who[name])) for name, each in sums.items()]
    rows.sort(key=lambda row: (row.name,) if by is UsageBy.DAY else (-row.gpu_hours, row.name))
    return UsageView(since_s=since_s, until_s=until_s, by=by, rows=tuple(rows), total=_row("all", total, len(every)))


def usage_history(
    spans: Iterable[LeaseSpan],
    runs: Mapping[str, RunRecord],
    prices: Mapping[str, float | None],
    *,
    by: UsageBy,
    since_s: float,
    until_s: float,
    num_parts: int,
) -> UsageHistory:
    """``gpu_usage`` of each of ``num_parts`` equal parts of the time between the two moments."""
    spans = tuple(spans)
    whole = gpu_usage(spans, runs, prices, by=by, since_s=since_s, until_s=until_s)
    edges_s = tuple(since_s + (until_s - since_s) * each / num_parts for each in range(num_parts + 1))
    parts = [
        gpu_usage(_within(spans, start_s, end_s), runs, prices, by=by, since_s=start_s, until_s=end_s)
        for start_s, end_s in pairwise(edges_s)
    ]
    named = [row.name for row in whole.rows if row.name != OTHERS]
    most = named if by is UsageBy.DAY else named[:_MOST_NAMES]
    cut = [_cut(each, most) for each in (whole, *parts)]
    series = tuple(_series(name, cut[1:]) for name in cut[0])
    return UsageHistory(edges_s=edges_s, series=series, whole=replace(whole, rows=tuple(cut[0].values())))


def _within(spans: tuple[LeaseSpan, ...], start_s: float, end_s: float) -> Iterator[LeaseSpan]:
    """Those that reach into the part; what has not ended goes on beyond it."""
    for each in spans:
        if each.granted_s < end_s and (each.ended_s is None or each.ended_s > start_s):
            yield each


def _cut(view: UsageView, names: list[str]) -> dict[str, UsageRow]:
    """The rows of ``names`` in that order, and all others as one."""
    found = {row.name: row for row in view.rows if row.name in names}
    rows = {name: found[name] for name in names if name in found}
    others = [row for row in view.rows if row.name not in found]
    if others:
        costs = [row.cost for row in others if row.cost is not None]
        rows[OTHERS] = UsageRow(
            name=OTHERS,
            gpu_hours=sum(row.gpu_hours for row in others),
            cost=sum(costs) if len(costs) == len(others) else None,
            num_runs=sum(row.num_runs for row in others),
        )
    return rows


def _series(name: str, parts: Iterable[Mapping[str, UsageRow]]) -> UsageSeries:
    rows = [part.get(name) for part in parts]
    return UsageSeries(
        name=name,
        gpu_hours=tuple(0.0 if row is None else row.gpu_hours for row in rows),
        cost=tuple(0.0 if row is None else row.cost for row in rows),
    )


def _row(name: str, found: _Sum, num_runs: int) -> UsageRow:
    return UsageRow(name=name, gpu_hours=found.gpu_hours, cost=found.cost, num_runs=num_runs)


def _parts(span: LeaseSpan, run: RunRecord, by: UsageBy, start_s: float, end_s: float) -> Iterator[tuple[str, float]]:
    """(to whom it counts, seconds); a span over midnight counts to each of its days."""
    if by is not UsageBy.DAY:
        if end_s > start_s:
            yield _name(span, run, by), end_s - start_s
        return
    while start_s < end_s:
        midnight_s = (start_s // _DAY_S + 1) * _DAY_S
        stop_s = min(midnight_s, end_s)
        yield datetime.fromtimestamp(start_s, UTC).strftime("%Y-%m-%d"), stop_s - start_s
        start_s = stop_s


def _name(span: LeaseSpan, run: RunRecord, by: UsageBy) -> str:
    names = {
        UsageBy.TEAM: run.job.team,
        UsageBy.OWNER: run.owner or NOBODY,
        UsageBy.JOB: run.job.name,
        UsageBy.QUEUE: run.job.queue,
        UsageBy.GPU_TYPE: span.gpu_type,
    }
    return names[by]
