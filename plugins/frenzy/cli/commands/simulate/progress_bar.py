"""Simulations in the terminal: a bar while they run, a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from frenzy.cli.render.tables import Grid, grid
from frenzy.sim.engine import simulate
from frenzy.sim.reports.figures import by_policy, shown_figures, time_unit_of
from frenzy.sim.results import SimResult
from frenzy.sim.scenario_jobs import Scenario
from frenzy.sim.schedulers import Scheduler
from frenzy.sim.summaries import Summary

_STEPS: Final = 200


class Runs:
    """Runs simulations one after the other: a bar on a terminal, in a pipe a line for each that has ended."""

    def __init__(self, console: Console, num_simulations: int) -> None:
        self._console, self._num_simulations = console, num_simulations
        self._num_run = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("jobs"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def run(self, scenario: Scenario, scheduler: Scheduler) -> SimResult:
        """``scenario`` under ``scheduler``, to its end."""
        self._num_run += 1
        num_jobs = len(scenario.jobs) + len(scenario.running)
        title = f"{self._num_run}/{self._num_simulations}  {scheduler.name}  {scenario.name}"
        task = self._bar.add_task(title, total=num_jobs)
        step, shown = max(1, num_jobs // _STEPS), 0

        def progress(num_ended: int) -> None:
            nonlocal shown
            if num_ended >= shown + step:
                shown = num_ended
                self._bar.update(task, completed=num_ended)

        result = simulate(scenario, scheduler, progress=progress)
        self._bar.remove_task(task)
        num_ended = sum(job.end_s is not None for job in result.jobs)
        self._console.print(f"{title}: {num_ended} of {num_jobs} jobs ended", style="dim", soft_wrap=True)
        return result


def figures_table(summaries: Sequence[Summary], *, with_cpu_times: bool) -> Grid:
    """A row for each figure, a column for each policy: means over the scenarios, with their 95 % interval."""
    rows = by_policy(summaries, with_cpu_times=with_cpu_times)
    unit = time_unit_of(summaries)
    body: list[list[str]] = []
    for figure in shown_figures(with_cpu_times=with_cpu_times):
        cells = []
        for row in rows:
            found = row.figures[figure.field]
            spread = f" ({figure.text(found.low, unit)} – {figure.text(found.high, unit)})"
            cells.append(figure.text(found.value, unit) + (spread if found.num_scenarios > 1 else ""))
        body.append([figure.heading(unit), *cells])
    headings = [_heading(row.policy, row.num_scenarios) for row in rows]
    return grid(_title(summaries), ["", *headings], body, right=" ".join(headings))


def _heading(policy: str, num_scenarios: int) -> str:
    return policy if num_scenarios == 1 else f"{policy}_({num_scenarios})"


def _title(summaries: Sequence[Summary]) -> str:
    names = list(dict.fromkeys(each.scenario for each in summaries))
    if len(names) == 1:
        return names[0]
    return f"Mean of {len(names)} scenarios, with its 95 % interval; behind a policy, how many it has run"
