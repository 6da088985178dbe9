"""``frenzy usage``: who had how many GPUs for how long, and what that cost."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.server import connect
from frenzy.cli.render.console import out, print_json
from frenzy.cli.render.tables import Grid, grid, local_date
from frenzy.core.runs.usage import UsageBy, UsageRow, UsageView

_DAY_S: Final = 86400.0


def usage(
    days: Annotated[float, typer.Option(min=0, help="So many days back from now.")] = 30.0,
    by: Annotated[UsageBy, typer.Option(help="What to add up by.")] = UsageBy.TEAM,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """GPU-hours and cost of the runs you may see, by team, owner, job, queue, GPU type or day."""
    with connect() as api:
        found = api.ask(endpoints.usage(max(0.0, time.time() - days * _DAY_S), by=by))
    if as_json:
        print_json(found)
    else:
        _show(found)
    return 0


def _show(found: UsageView) -> None:
    if not found.rows:
        out().print("No run held a GPU in that time.")
        return
    out().print(_table(found))
    out().print("cost: GPU-hours at each type's price_per_hour in the cluster file as it is now, in its currency")


def _table(found: UsageView) -> Grid:
    title = f"GPU time since {local_date(found.since_s)}"
    rows = (_row(each) for each in (*found.rows, found.total))
    return grid(title, (found.by.value, "runs", "GPU-hours", "cost"), rows, right="runs GPU-hours cost")


def _row(row: UsageRow) -> tuple[str, str, str, str]:
    return row.name, str(row.num_runs), f"{row.gpu_hours:.2f}", "-" if row.cost is None else f"{row.cost:.2f}"
