"""``frenzy submit``: a specification becomes a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frenzy.adapters.spec.spec_file import checked_spec
from frenzy.cli.commands.server import connect
from frenzy.cli.commands.submission import Started, submit_spec
from frenzy.cli.commands.until_end import until_end
from frenzy.cli.render.console import err, out, print_json, show_note
from frenzy.cli.render.error_text import FAILED, show_reason
from frenzy.core.runs.protocol import SubmittedJob
from frenzy.core.values.job import TrainingJob


def submit(
    spec: Annotated[Path, typer.Argument(help="The job's YAML file; - reads it from standard input.")],
    trigger: Annotated[
        bool, typer.Option("--trigger/--no-trigger", help="Start a run now; a new job's cron starts one in any case.")
    ] = True,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the DAG run has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Store a job as a DAG of its own and start a run of it; exit status 1 where no plan fits, and none is started."""
    checked = checked_spec(spec)
    told = (lambda job: None) if as_json else _show_stored
    with connect() as api:
        started = submit_spec(api, checked, trigger=trigger or wait, plans_first=True, stored=told, tell=err().print)
        if as_json:
            print_json(started)
        else:
            _show(started, checked.job)
        if started.run_id is None:
            return FAILED if started.refusal is not None and (trigger or wait) else 0
        if not wait:
            return 0
        return until_end(api, started.job.dag_id, started.run_id, as_json=as_json)


def _show_stored(job: SubmittedJob) -> None:
    change = "stored" if job.changed else "unchanged"
    out().print(f"Job {job.name}: spec {change}, DAG {job.dag_id}.")


def _show(started: Started, spec: TrainingJob) -> None:
    for each in started.model_notes:
        show_note(each)
    if started.model is not None:
        out().print(f"Model: {started.model}", soft_wrap=True)
    if started.refusal is not None:
        out().print("No plan fits now, and no run was started.")
        show_reason(err(), started.refusal)
        out().print(
            f"What would fit cards of yours: frenzy plan FILE --fit 1xCARD. The job stays stored, until: "
            f"frenzy jobs {started.job.name} --delete",
            soft_wrap=True,
        )
    if started.run_id is not None:
        out().print(f"Run {started.run_id} started. Follow it: frenzy status {started.job.name}", soft_wrap=True)
    which = "its runs" if started.run_id is None else "further runs"
    if spec.trigger.assets:
        when = f"each time that all of these Assets were updated: {', '.join(spec.trigger.assets)}"
        out().print(f"Airflow starts {which} {when}.", soft_wrap=True)
    if spec.trigger.cron is not None:
        when = f"{spec.trigger.cron} (UTC); of a new job also one at once, for the time that passed last"
        out().print(f"Airflow starts {which}: {when}.", soft_wrap=True)
