"""``frenzy explain``: why a run is where it is, in sentences."""

from __future__ import annotations

from typing import Annotated

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.references import find_run
from frenzy.cli.commands.server import connect
from frenzy.cli.render.console import out, print_json


def explain(
    run: Annotated[str, typer.Argument(help="A run's key, a job's name, or a DAG run's id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Why this plan, why it waits, why it moved: sentence by sentence."""
    with connect() as api:
        record = find_run(api, run).run
        explanation = api.ask(endpoints.explain(record.run_key))
    if as_json:
        print_json(explanation)
    else:
        identity = record.identity
        out().print(f"Run {record.run_key}, DAG run {identity.dag_id} / {identity.run_id}", style="dim", soft_wrap=True)
        for line in explanation.lines:
            out().print(line)
    return 0
