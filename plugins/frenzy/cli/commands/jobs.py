"""``frenzy jobs``: which jobs are stored, and to be rid of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from frenzy.api import endpoints
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.render.console import out, print_json
from frenzy.core.runs.ledger import FINAL_STATES
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode

_MOST_RUNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job that is stored, or was until now."""

    job: str
    deleted: bool


def jobs(
    names: Annotated[list[str] | None, typer.Argument(help="Names or patterns, such as 'tiny-sweep-*'.")] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete those jobs and with them their DAGs; their runs and models stay.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """The stored jobs, or those of some names; with --delete they are deleted."""
    if delete and not names:
        raise _refused("--delete is for named jobs alone.", "Name them, or: frenzy jobs 'mine-*' --delete")
    with connect() as api:
        stored = api.ask(endpoints.jobs())
        chosen = _chosen(stored, names or ["*"])
        if delete:
            _check_idle(api, chosen)
            for each in chosen:
                api.ask(endpoints.remove_job(each))
    if as_json:
        print_json(tuple(StoredJob(job=each, deleted=delete) for each in chosen))
    elif chosen:
        out().print("\n".join(f"{each} deleted" if delete else each for each in chosen))
    else:
        out().print("No job is stored.")
    return 0


def _chosen(stored: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Of ``stored`` what ``names`` mean, in order; each of them means one at least, unless it means all."""
    for each in names:
        if each != "*" and not any(fnmatchcase(job, each) for job in stored):
            raise _refused(f"There is no stored job {each!r} that you may see.", "See: frenzy jobs")
    return tuple(sorted(job for job in stored if any(fnmatchcase(job, each) for each in names)))


def _check_idle(api: Api, chosen: Sequence[str]) -> None:
    """Raises PermanentError where a run of one of them has not ended: its DAG would be gone from under it."""
    active = sorted(set(_active(api)) & set(chosen))
    if active:
        remedy = "Wait for them, or: frenzy cancel RUN"
        raise _refused(f"Nothing was deleted: runs of {', '.join(active)} have not ended.", remedy)


def _active(api: Api) -> Iterator[str]:
    return (each.run.job.name for each in api.ask(endpoints.runs(_MOST_RUNS)) if each.run.state not in FINAL_STATES)


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
