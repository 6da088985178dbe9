"""``frenzy logs``: what a worker wrote."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.references import find_run
from frenzy.cli.commands.server import connect


def logs(
    run: Annotated[str, typer.Argument(help="A run's key, a job's name, or a DAG run's id.")],
    attempt: Annotated[int | None, typer.Option(min=1, help="Which attempt; the newest by default.")] = None,
    rank: Annotated[int, typer.Option(min=0, help="Which worker.")] = 0,
) -> int:
    """The end of one worker's log."""
    with connect() as api:
        text = api.ask(endpoints.logs(find_run(api, run).run.run_key, attempt=attempt, rank=rank))
    sys.stdout.write(text if text.endswith("\n") or not text else f"{text}\n")
    return 0
