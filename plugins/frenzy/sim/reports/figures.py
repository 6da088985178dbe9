"""What of a simulation's figures is shown, under which name and in which unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from frenzy.sim.reports.intervals import Interval, PairedRatio, interval_of_mean, paired_ratio
from frenzy.sim.summaries import CPU_TIMES, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUnit:
    """name: as it stands beside a number. seconds: how many make one."""

    name: str
    seconds: float


UNITS: Final = (
    TimeUnit(name="s", seconds=1),
    TimeUnit(name="min", seconds=60),
    TimeUnit(name="h", seconds=3600),
    TimeUnit(name="days", seconds=86400),
)
_MOST_OF_A_UNIT: Final = 120
_LEAST_SHOWN: Final = 12


def unit_for(seconds: float) -> TimeUnit:
    """The smallest unit in which ``seconds`` is a number that can be read at a glance."""
    return next((unit for unit in UNITS if seconds <= _MOST_OF_A_UNIT * unit.seconds), UNITS[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One field of a Summary as a column. unit: None for a time that is shown in the table's own unit."""

    field: str
    label: str
    unit: str | None = ""
    factor: float = 1.0
    digits: int = 2

    def heading(self, time_unit: TimeUnit) -> str:
        unit = time_unit.name if self.unit is None else self.unit
        return f"{self.label}, {unit}" if unit else self.label

    def text(self, value: float, time_unit: TimeUnit) -> str:
        shown = value / time_unit.seconds if self.unit is None else value * self.factor
        # The mean of counts over several scenarios is seldom whole: a quarter of a restart is not none.
        digits = self.digits if self.digits or shown == int(shown) else 1
        return f"{shown:,.{digits}f}"


FIGURES: Final = (
    Figure(field="jct_mean_s", label="average JCT", unit=None),
    Figure(field="jct_median_s", label="median JCT", unit=None),
    Figure(field="jct_p99_s", label="p99 JCT", unit=None),
    Figure(field="queue_mean_s", label="average wait", unit=None),
    Figure(field="makespan_s", label="makespan", unit=None, digits=1),
    Figure(field="slowdown_mean", label="average slowdown"),
    Figure(field="slowdown_max", label="largest slowdown", digits=1),
    Figure(field="utilisation", label="GPUs used", unit="%", factor=100, digits=1),
    Figure(field="fragmentation", label="idle though wanted", unit="% of idle", factor=100, digits=1),
    Figure(field="gpu_hours_used", label="GPU-hours used", digits=1),
    Figure(field="gpu_hours_lost", label="GPU-hours lost", digits=1),
    Figure(field="restarts_mean", label="restarts per job"),
    Figure(field="restarts_max", label="most restarts", digits=0),
    Figure(field="num_ooms", label="out of memory", digits=0),
    Figure(field="num_never_ended", label="never ended", digits=0),
    Figure(field="scheduler_cpu_s", label="scheduler CPU", unit="s"),
    Figure(field="decision_mean_s", label="CPU per decision", unit="ms", factor=1000, digits=3),
    Figure(field="decision_p99_s", label="p99 of decisions", unit="ms", factor=1000, digits=3),
)
"""All that is reported, in the order of the tables. CPU times come last: they differ from run to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures:
    """The mean of each figure over the scenarios of one policy. figures: by field of ``Summary``."""

    policy: str
    num_scenarios: int
    figures: dict[str, Interval]


def shown_figures(*, with_cpu_times: bool) -> tuple[Figure, ...]:
    return tuple(each for each in FIGURES if with_cpu_times or each.field not in CPU_TIMES)


def by_policy(summaries: Sequence[Summary], *, with_cpu_times: bool = True) -> tuple[PolicyFigures, ...]:
    """One row for each policy, in the order in which they were run."""
    rows = []
    for policy in dict.fromkeys(each.policy for each in summaries):
        own = [each for each in summaries if each.policy == policy]
        figures = {
            figure.field: interval_of_mean([float(getattr(each, figure.field)) for each in own])
            for figure in shown_figures(with_cpu_times=with_cpu_times)
        }
        rows.append(PolicyFigures(policy=policy, num_scenarios=len(own), figures=figures))
    return tuple(rows)


def ratios(summaries: Sequence[Summary]) -> tuple[PairedRatio, ...]:
    """The average JCT of each policy over that of each other, where both have run a scenario."""
    ran = {policy: {each.scenario for each in summaries if each.policy == policy} for policy in _policies(summaries)}
    return tuple(
        paired_ratio(summaries, policy, baseline)
        for policy in ran
        for baseline in ran
        if policy != baseline and ran[policy] & ran[baseline]
    )


def time_unit_of(summaries: Sequence[Summary]) -> TimeUnit:
    """One unit for all times of a table, in which the shortest average JCT can still be read."""
    means = [each.jct_mean_s for each in summaries if each.jct_mean_s > 0]
    return unit_for(_LEAST_SHOWN * min(means, default=0.0))


def _policies(summaries: Sequence[Summary]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.policy for each in summaries))
