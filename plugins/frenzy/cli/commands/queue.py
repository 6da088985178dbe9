"""``frenzy queue``: who waits and why, who runs where; or all of it in a file, to be simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.server import connect
from frenzy.cli.render.console import err, out, print_json
from frenzy.cli.render.tables import queue_tables
from frenzy.core.values.codec import dumps
from frenzy.core.values.errors import SpecError, Violation


def queue(
    snapshot: Annotated[
        Path | None,
        typer.Option(help="Write all that the scheduler sees into this file instead, for 'frenzy simulate'."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """The queue in its order, each job with the reason it waits; and what runs."""
    with connect() as api:
        if snapshot is not None:
            taken = api.ask(endpoints.queue_snapshot())
            write_text(snapshot, dumps(taken, indent=2) + "\n")
            err().print(f"{snapshot}: {len(taken.facts.queued)} waiting, {len(taken.facts.running)} running.")
            return 0
        view = api.ask(endpoints.queue())
    if as_json:
        print_json(view)
    else:
        out().print(queue_tables(view))
    return 0


def write_text(path: Path, text: str) -> None:
    """Raises SpecError where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise SpecError([Violation(path="--snapshot", value=repr(str(path)), allowed=allowed)]) from error
