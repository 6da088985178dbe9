"""``frenzy queue``: who waits and why, who runs where."""

from __future__ import annotations

from typing import Annotated

import typer

from frenzy.adapters import api_calls
from frenzy.cli.connection import connect
from frenzy.cli.console import out, print_json
from frenzy.cli.tables import queue_tables


def queue(
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """The queue in its order, each job with the reason it waits; and what runs."""
    with connect() as api:
        view = api.ask(api_calls.queue())
    if as_json:
        print_json(view)
    else:
        out().print(queue_tables(view))
    return 0
