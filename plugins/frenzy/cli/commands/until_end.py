"""A DAG run followed to its end in the terminal, and what it left."""

from __future__ import annotations

from rich.text import Text

from frenzy.cli.commands.follow import StatusSnapshot, follow, task_errors
from frenzy.cli.commands.outputs import outcome_of, show_outcome
from frenzy.cli.commands.progress import ProgressView
from frenzy.cli.commands.server import Api
from frenzy.cli.commands.status import show_run
from frenzy.cli.render.console import err, out
from frenzy.cli.render.error_text import FAILED
from frenzy.core.runs.ledger import JobState


def until_end(api: Api, dag_id: str, run_id: str, *, as_json: bool) -> int:
    """Follow the DAG run, then show its runs and their models; with ``as_json`` on stderr. The exit status."""
    console = err() if as_json else out()
    with ProgressView(console) as view:
        for snapshot in follow(api, dag_id, run_id):
            view.show(snapshot)
    if not as_json:
        for each in snapshot.views:
            show_run(each)
    if snapshot.dag_state != "success":
        _tell_errors(api, dag_id, run_id, snapshot)
        return FAILED
    for each in (view for view in snapshot.views if view.run.state is JobState.SUCCEEDED):
        show_outcome(console, outcome_of(api, each.run.run_key))
    return 0


def _tell_errors(api: Api, dag_id: str, run_id: str, snapshot: StatusSnapshot) -> None:
    for line in () if snapshot.views else task_errors(api, dag_id, run_id):
        err().print(Text(line), soft_wrap=True)
