"""``frenzy cancel``: end a run."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.references import find_run
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.render.console import out, print_json
from frenzy.core.runs.ledger import FINAL_STATES
from frenzy.core.runs.protocol import CancelRun, RunView
from frenzy.core.values.errors import FrenzyError, Reason, ReasonCode


def cancel(
    run: Annotated[str, typer.Argument(help="A run's key, a job's name, or a DAG run's id.")],
    why: Annotated[str, typer.Option(help="What the history shall say.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Take a run out of the queue, or stop its workers and free its GPUs."""
    with connect() as api:
        found = find_run(api, run).run
        reason = Reason(code=ReasonCode.CANCELLED_BY_USER, detail=why)
        view = api.ask(endpoints.cancel(found.run_key, CancelRun(reason=reason)))
        if as_json:
            print_json(view)
        elif found.state in FINAL_STATES:
            out().print(f"{found.job.name} {found.run_key} had ended before: {found.state}.")
        else:
            out().print(f"{found.job.name} {found.run_key}: {view.run.state}; its workers are being stopped.")
            with suppress(FrenzyError):  # it is cancelled, even if the store of its checkpoints does not answer
                _tell_what_is_not_saved(api, view)
    return 0


def _tell_what_is_not_saved(api: Api, view: RunView) -> None:
    reached = view.attempts[-1].last_step if view.attempts and view.run.job.workload is None else 0
    saved = max((each.step for each in api.ask(endpoints.checkpoints(view.run.run_key))), default=0) if reached else 0
    if reached > saved:
        steps = f"Steps {saved + 1} to {reached} are in no checkpoint yet"
        out().print(f"{steps}: a resume makes them again, unless the workers still save as they stop.")
