"""``frenzy gpus``: what the cluster has and what is free."""

from __future__ import annotations

from typing import Annotated

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.server import connect
from frenzy.cli.render.console import out, print_json
from frenzy.cli.render.tables import gpus_tables


def gpus(
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """GPUs by type and by node: memory, free, suspect, and which runs hold them."""
    with connect() as api:
        view = api.ask(endpoints.gpus())
    if as_json:
        print_json(view)
    else:
        out().print(gpus_tables(view))
    return 0
