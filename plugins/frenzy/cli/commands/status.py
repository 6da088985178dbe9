"""``frenzy status``: all runs, or one of them with its attempts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from frenzy.api import endpoints
from frenzy.cli.commands.references import find_run
from frenzy.cli.commands.server import connect
from frenzy.cli.render.console import out, print_json
from frenzy.cli.render.tables import (
    attempts_table,
    grid,
    local_time,
    preparation_text,
    reason_text,
    runs_table,
    state_text,
    tracked_lines,
)
from frenzy.core.lifecycle.why import slow_steps
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.tracked_run import TrackedRun


def status(
    run: Annotated[str | None, typer.Argument(help="A run's key, a job's name, or a DAG run's id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Newest runs to list.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """How the runs stand; of one run also its attempts and history."""
    if not as_json:
        tell_troubles()
    with connect() as api:
        if run is None:
            views = api.ask(endpoints.runs(limit))
            if as_json:
                print_json(views)
            else:
                out().print(runs_table(views) if views else "No training has been submitted yet.")
            return 0
        view = find_run(api, run)
        tracked = api.ask(endpoints.trackers(view.run.run_key)) if view.attempts and not as_json else ()
    if as_json:
        print_json(view)
    else:
        show_run(view, tracked)
    return 0


def tell_troubles() -> None:
    """One line for each component of this home's Airflow that is dead or died; nothing for another server's."""
    from frenzy.cli.commands.up import restarts_of
    from frenzy.cli.embedded.stack import Stack
    from frenzy.settings import load_settings

    if os.environ.get("FRENZY_URL"):
        return
    for each in Stack(load_settings(os.environ)).troubles():
        state = ["not running"] if each.pid is None else []
        out().print(f"Airflow's {each.name}: {'; '.join(filter(None, [*state, restarts_of(each)]))}", style="yellow")


def show_run(view: RunView, tracked: Sequence[TrackedRun] = ()) -> None:
    """One run: state, reason, attempts, where trackers show it, events."""
    console, run = out(), view.run
    console.print(Text.assemble((run.job.name, "bold"), " ", run.run_key, " ", state_text(run.state)))
    console.print(f"DAG run {run.identity.dag_id} / {run.identity.run_id}", style="dim")
    console.print(f"Owner {run.owner or 'none (administrators)'}, team {run.job.team}", style="dim")
    if preparation_text(view.preparation):
        console.print(f"Preparing its data: {preparation_text(view.preparation)}")
    if run.reason is not None:
        console.print(reason_text(run.reason))
    if view.queue_entry is not None:
        entry = view.queue_entry
        place = f"Place {entry.position} in the queue, expected start {local_time(entry.expected_start_s)}: "
        console.print(Text.assemble(place, reason_text(entry.hold)))
    if view.attempts:
        console.print()
        console.print(attempts_table(view.attempts))
        slow = slow_steps(view.attempts[-1])
        if slow is not None:
            console.print(slow, style="yellow", soft_wrap=True)
    for name, text in tracked_lines(tracked):
        console.print(Text.assemble((f"{name}: ", "bold"), text), soft_wrap=True)
    console.print()
    rows = [(local_time(each.time_s), str(each.attempt or ""), each.kind, each.text) for each in view.events]
    console.print(grid("History", ("time", "attempt", "kind", "what"), rows, right="attempt"))
