"""``frenzy jobs``: which jobs are stored, what starts them and how they stand; and to be rid of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from frenzy.adapters import airflow_calls as calls
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.render.console import out, print_json
from frenzy.cli.render.tables import Grid, grid, local_moment, state_text
from frenzy.core.runs.ledger import FINAL_STATES, JobState, RunRecord
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.job import JOB_DAG_PREFIX

_MOST_RUNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job that is stored, or was until now.

    schedule: what starts it, as Airflow says it; None where nothing does, or it is not known yet. run_key, state,
    began_s: of its newest training run, if one is known.
    """

    job: str
    deleted: bool
    schedule: str | None = None
    is_paused: bool = False
    run_key: str | None = None
    state: JobState | None = None
    began_s: float | None = None


def jobs(
    names: Annotated[list[str] | None, typer.Argument(help="Names or patterns, such as 'tiny-sweep-*'.")] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete those jobs and with them their DAGs; their runs and models stay.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """The stored jobs, or those of some names, with schedule and newest run; with --delete they are deleted."""
    if delete and not names:
        raise _refused("--delete is for named jobs alone.", "Name them, or: frenzy jobs 'mine-*' --delete")
    with connect() as api:
        stored = api.ask(endpoints.jobs())
        chosen = _chosen(stored, names or ["*"])
        if delete:
            _check_idle(api, chosen)
            for each in chosen:
                api.ask(endpoints.remove_job(each))
            found = [StoredJob(job=each, deleted=True) for each in chosen]
        else:
            found = _described(api, chosen) if chosen else []
    if as_json:
        print_json(found)
    elif delete:
        out().print("\n".join(f"{each} deleted" for each in chosen))
    else:
        out().print(_table(found) if found else "No job is stored.")
    return 0


def _described(api: Api, names: Sequence[str]) -> list[StoredJob]:
    """With what Airflow says of their DAGs, and their newest training runs."""
    dags = {each["dag_id"]: each for each in _dags(api)}
    newest_first = api.ask(endpoints.runs(_MOST_RUNS))
    runs = {view.run.identity.dag_id: view.run for view in reversed(newest_first)}
    return [_stored(each, dags.get(JOB_DAG_PREFIX + each, {}), runs.get(JOB_DAG_PREFIX + each)) for each in names]


def _dags(api: Api) -> Iterator[dict[str, Any]]:
    """None where Airflow refuses their list, as it may to whom single DAGs alone are shown."""
    offset = 0
    while True:
        try:
            page = api.ask(calls.dags(JOB_DAG_PREFIX, offset))
        except PermanentError:
            return
        yield from page["dags"]
        offset += len(page["dags"])
        if not page["dags"] or offset >= page["total_entries"]:
            return


def _stored(name: str, dag: Mapping[str, Any], run: RunRecord | None) -> StoredJob:
    known = StoredJob(
        job=name, deleted=False, schedule=dag.get("timetable_summary"), is_paused=bool(dag.get("is_paused"))
    )
    return known if run is None else replace(known, run_key=run.run_key, state=run.state, began_s=run.created_s)


def _table(found: Sequence[StoredJob]) -> Grid:
    rows = (
        (
            each.job,
            f"{each.schedule or '-'}{', paused' if each.is_paused else ''}",
            each.run_key or "-",
            "-" if each.state is None else state_text(each.state),
            local_moment(each.began_s),
        )
        for each in found
    )
    return grid("", ("job", "schedule", "newest_run", "state", "since"), rows)


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
