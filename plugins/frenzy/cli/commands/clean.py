"""``frenzy clean``: free the space of runs that ended long ago."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.references import find_run
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.render.console import err, out, print_json
from frenzy.cli.render.tables import Grid, grid, local_date, size, state_text
from frenzy.core.runs.protocol import CleanedRun, CleanRun, EndedRun
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.units import counted

_DAY_S: Final = 86400.0


def clean(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Only these: keys, DAG runs' ids or jobs' names; a job's name is its newest run."),
    ] = None,
    older_than: Annotated[
        int | None, typer.Option("--older-than", min=0, help="Days since a run ended; 0 also for runs of today.")
    ] = None,
    models: Annotated[bool, typer.Option("--models", help="Remove finished models, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Remove checkpoints, logs and telemetry of runs that ended long ago, or of those named; finished models stay.

    What has no checkpoint any more cannot be resumed. Exit status 1 when files of a run could not be removed.
    """
    if not runs and older_than is None:
        detail = "It is not said which runs to clean."
        remedy = "Name some, or give --older-than DAYS: frenzy clean --older-than 30"
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
    wish = CleanRun(older_than_s=(older_than or 0) * _DAY_S, models=models, dry_run=dry_run)
    with connect() as api:
        ended = _named(api, runs) if runs else api.ask(endpoints.ended_runs(wish.older_than_s))
        refusals: list[str] = []
        cleaned = tuple(_cleaned(api, ended, wish, refusals))
    found = {each.run_key: each for each in ended}
    if as_json:
        print_json(cleaned)
    elif cleaned:
        out().print(_table([(found[each.run_key], each) for each in cleaned], dry_run=dry_run))
    else:
        which = "those runs" if runs else f"runs that ended {older_than} days ago or earlier"
        out().print(f"Nothing to remove of {which}.")
    for refusal in refusals:
        err().print(refusal, style="yellow", soft_wrap=True)
    return 1 if refusals else 0


def _named(api: Api, names: list[str]) -> tuple[EndedRun, ...]:
    """Whether they have ended, and are the caller's, is for the server to say."""
    found = [find_run(api, each).run for each in names]
    return tuple(
        EndedRun(run_key=each.run_key, job_name=each.job.name, state=each.state, ended_s=each.updated_s)
        for each in found
    )


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
