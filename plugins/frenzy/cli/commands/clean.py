"""``frenzy clean``: free the space of runs that ended long ago."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.render.console import err, out, print_json
from frenzy.cli.render.tables import Grid, grid, local_date, size, state_text
from frenzy.core.runs.protocol import CleanedRun, CleanRun, EndedRun
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.units import counted

_DAY_S: Final = 86400.0


def clean(
    older_than: Annotated[int, typer.Option("--older-than", min=1, help="Days since a run ended.")],
    models: Annotated[bool, typer.Option("--models", help="Remove finished models, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Remove checkpoints, logs and telemetry of runs that ended long ago; finished models stay unless asked for.

    Exit status 1 when a run's files could not be removed; the others' are.
    """
    wish = CleanRun(older_than_s=older_than * _DAY_S, models=models, dry_run=dry_run)
    with connect() as api:
        ended = api.ask(endpoints.ended_runs(wish.older_than_s))
        refusals: list[str] = []
        cleaned = tuple(_cleaned(api, ended, wish, refusals))
    found = {each.run_key: each for each in ended}
    if as_json:
        print_json(cleaned)
    elif cleaned:
        out().print(_table([(found[each.run_key], each) for each in cleaned], dry_run=dry_run))
    else:
        out().print(f"Nothing to remove of runs that ended {older_than} days ago or earlier.")
    for refusal in refusals:
        err().print(refusal, style="yellow", soft_wrap=True)
    return 1 if refusals else 0


def _cleaned(api: Api, ended: tuple[EndedRun, ...], wish: CleanRun, refusals: list[str]) -> Iterator[CleanedRun]:
    """What was removed of each run that had something; why one stays goes to ``refusals``."""
    for each in ended:
        try:
            cleaned = api.ask(endpoints.clean_run(each.run_key, wish))
        except PermanentError as error:
            refusals.append(str(error))
            continue
        if cleaned.num_bytes:
            yield cleaned


def _table(rows: list[tuple[EndedRun, CleanedRun]], *, dry_run: bool) -> Grid:
    total = size(sum(cleaned.num_bytes for _, cleaned in rows))
    title = f"{'Would remove' if dry_run else 'Removed'} {total} of {counted(len(rows), 'run')}"
    cells = (
        (ended.run_key, ended.job_name, state_text(ended.state), local_date(ended.ended_s), size(cleaned.num_bytes))
        for ended, cleaned in rows
    )
    return grid(title, ("run", "job", "state", "ended", "size"), cells, right="size")
