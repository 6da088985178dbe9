"""What ``bench_jct`` concludes from its runs: ratios with intervals, and the bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.bench.jct_runs import HAS, HAS_WRONG, PAPER, PAPER_ALL, SIA, SIA_RIGID, SIA_WORK
from tests.bench.report import figure

from frenzy.sim.reports.intervals import Interval, interval_of_mean, paired_ratio
from frenzy.sim.summaries import Summary

JCT: Final = "jct_mean_s"
P99: Final = "jct_p99_s"
MAKESPAN: Final = "makespan_s"
RIVALS: Final = (SIA, SIA_WORK, SIA_RIGID, "srtf", "gavel-lp", "backfill", PAPER, PAPER_ALL, "fifo")
WITHOUT_ESTIMATES: Final = (SIA, SIA_RIGID, "srtf, wrong estimates", "gavel-lp", PAPER, "fifo")
"""Rivals of ``has`` with wrong estimates: they use none, or the same wrong ones."""
LEAST_CLAIMED: Final = 0.88
"""The paper of ``frenzy-paper``: average JCT 12 to 18 % shorter than Sia's."""
_WORDS: Final = {JCT: "average JCT", P99: "p99 JCT", MAKESPAN: "makespan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One figure of ``policy`` over that of ``rival``; below 1 is less.

    mean: of the ratios of the scenarios. geometric: the same as a geometric mean.
    """

    policy: str
    rival: str
    field: str
    mean: Interval
    geometric: Interval

    @property
    def name(self) -> str:
        return f"{_WORDS[self.field]}, {self.policy} / {self.rival}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One figure with its goal, an upper bound; None for one that has none. ratio: what the value is the mean of."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    ratio: Ratio | None = None

    @property
    def ok(self) -> bool:
        return self.goal is None or self.value <= self.goal


def ratio(summaries: Sequence[Summary], policy: str, rival: str, field: str = JCT) -> Ratio:
    """Over the scenarios that both have run. Raises ValueError if there is none."""
    of = {(each.policy, each.scenario): float(getattr(each, field)) for each in summaries}
    paired = [of[policy, name] / of[rival, name] for who, name in of if who == policy and (rival, name) in of]
    geometric = paired_ratio(summaries, policy, rival, field).per_scenario
    return Ratio(policy=policy, rival=rival, field=field, mean=interval_of_mean(paired), geometric=geometric)


def all_ratios(summaries: Sequence[Summary]) -> list[Ratio]:
    """``has`` against every rival that was run: average JCT, p99 JCT, makespan."""
    ran = {each.policy for each in summaries}
    pairs = [(HAS, each) for each in RIVALS] + [(HAS_WRONG, each) for each in WITHOUT_ESTIMATES]
    return [
        ratio(summaries, policy, rival, field)
        for policy, rival in pairs
        if {policy, rival} <= ran
        for field in (JCT, P99, MAKESPAN)
    ]


def bars(summaries: Sequence[Summary]) -> list[Bar]:
    """The goals, each an upper bound."""
    return [
        _of_ratio(ratio(summaries, HAS, SIA), goal=0.75),
        _of_ratio(ratio(summaries, HAS_WRONG, SIA), goal=0.85),
        _of_ratio(ratio(summaries, HAS, PAPER), goal=0.5),
        *(
            _of_ratio(ratio(summaries, policy, SIA, field), goal=1.0)
            for field in (P99, MAKESPAN)
            for policy in (HAS, HAS_WRONG)
        ),
        *(bar for policy in (HAS, HAS_WRONG) for bar in _of_jobs(summaries, policy)),
        *(_of_cpu(summaries, policy, goal=1 / 50) for policy in (HAS, HAS_WRONG)),
    ]


def paper_claims(summaries: Sequence[Summary]) -> list[Bar]:
    """What the published algorithm's paper claims against Sia: a ratio of 0.82 to 0.88, a tenth of the overhead."""
    return [
        *(_of_ratio(ratio(summaries, PAPER, rival)) for rival in (SIA, SIA_RIGID)),
        _of_ratio(ratio(summaries, PAPER_ALL, SIA)),
        *(_of_cpu(summaries, PAPER, rival) for rival in (SIA, SIA_RIGID)),
    ]


def json_rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Everything for the file: the goals, the paper's claims, then the ratios without goal."""
    found = [*bars(summaries), *paper_claims(summaries)]
    named = {each.name for each in found}
    others = [_of_ratio(each) for each in all_ratios(summaries)]
    return [row for each in [*found, *(bar for bar in others if bar.name not in named)] for row in _rows(each)]


def _rows(bar: Bar) -> list[dict[str, Any]]:
    rows = [figure(bar.name, bar.value, bar.unit, bar.goal)]
    if bar.ratio is not None:
        rows += [
            figure(f"{bar.name}, 95 % from", bar.ratio.mean.low, "ratio"),
            figure(f"{bar.name}, 95 % to", bar.ratio.mean.high, "ratio"),
            figure(f"{bar.name}, geometric mean", bar.ratio.geometric.value, "ratio"),
        ]
    return rows


def _of_ratio(found: Ratio, *, goal: float | None = None) -> Bar:
    return Bar(name=found.name, value=found.mean.value, unit="ratio", goal=goal, ratio=found)


def _of_jobs(summaries: Sequence[Summary], policy: str) -> list[Bar]:
    own = [each for each in summaries if each.policy == policy]
    of_sia = max(each.slowdown_max for each in summaries if each.policy == SIA)
    restarts = sum(each.restarts_mean for each in own) / len(own)
    never_ended = sum(each.num_never_ended for each in own)
    slowdown = max(each.slowdown_max for each in own)
    return [
        Bar(name=f"restarts per job, {policy}", value=restarts, unit="restarts", goal=3.0),
        Bar(name=f"most restarts of a job, {policy}", value=max(each.restarts_max for each in own), unit="restarts"),
        Bar(name=f"jobs that never ended, {policy}", value=never_ended, unit="jobs", goal=0.0),
        Bar(name=f"largest bounded slowdown of a job, {policy}", value=slowdown, unit="times", goal=of_sia),
    ]


def _of_cpu(summaries: Sequence[Summary], policy: str, rival: str = SIA, *, goal: float | None = None) -> Bar:
    """Of the CPU seconds of all scenarios together, so that one with next to none counts for little."""
    total = {name: sum(each.scheduler_cpu_s for each in summaries if each.policy == name) for name in (policy, rival)}
    name = f"scheduler CPU over whole traces, {policy} / {rival}"
    return Bar(name=name, value=total[policy] / total[rival], unit="ratio", goal=goal)
