"""``frenzy models`` and ``frenzy checkpoints``: what runs left, and where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.text import Text

from frenzy.adapters import airflow_calls as calls
from frenzy.api import endpoints
from frenzy.cli.commands.model_files import fetch_model
from frenzy.cli.commands.references import find_run
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.render.console import out, print_json
from frenzy.cli.render.tables import grid, local_moment, size, tracked_lines
from frenzy.core.runs.ledger import JobState, RunIdentity
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.runs.views import FinishedModel
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, Violation
from frenzy.core.values.telemetry import printable
from frenzy.core.values.units import counted, format_duration

_EVALUATION: str = "EvaluateOperator"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """A model, its scores by evaluating task (perplexity, sample and more), Airflow's page of the run, its trackers.

    evaluating: where there are no scores, Airflow's state of each evaluating task that was to give some.
    """

    model: FinishedModel
    evaluations: Mapping[str, Mapping[str, Any]]
    url: str
    tracked: tuple[TrackedRun, ...] = ()
    evaluating: Mapping[str, str] = field(default_factory=dict)


def models(
    run: Annotated[str | None, typer.Argument(help="A run's key, a job's name, or a DAG run's id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Newest models to list.")] = 20,
    download: Annotated[Path | None, typer.Option(help="Fetch the model's files into this new folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Finished models, newest first; of one run its path, perplexity, sample and metrics, or its files."""
    if download is not None and run is None:
        raise SpecError([Violation(path="RUN", value="missing", allowed="name the run whose model is to be fetched")])
    with connect() as api:
        if run is not None:
            outcome = outcome_of(api, _finished_run(api, run).run.run_key)
            if download is not None:
                fetch_model(api, outcome.model.run_key, download)
            if as_json:
                print_json(outcome)
            else:
                show_outcome(out(), outcome)
            return 0
        found = api.ask(endpoints.models(limit))
    if as_json:
        print_json(found)
    elif found:
        rows = (
            (each.job_name, each.run_key, local_moment(each.ended_s), str(each.steps), _number(each.loss), _where(each))
            for each in found
        )
        headings = ("job", "run", "ended", "steps", "training_loss", "model")
        out().print(grid(f"{counted(len(found), 'model')}", headings, rows, right="steps training_loss"))
    else:
        out().print("No run has finished a model yet.")
    return 0


def checkpoints(
    run: Annotated[str, typer.Argument(help="A run's key, a job's name, or a DAG run's id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """A run's complete checkpoints, oldest first; it resumes from the newest."""
    with connect() as api:
        view = find_run(api, run)
        found = api.ask(endpoints.checkpoints(view.run.run_key))
    if as_json:
        print_json(found)
    elif found:
        rows = ((str(each.step), each.path) for each in found)
        out().print(grid(f"{view.run.job.name} {view.run.run_key}", ("step", "path"), rows, right="step"))
    else:
        out().print(f"{view.run.job.name} {view.run.run_key} has no complete checkpoint.")
    return 0


_NO_MODEL: Final = "none is kept: frenzy clean removed it, or the script wrote none into FRENZY_MODEL_DIR"


def outcome_of(api: Api, run_key: str) -> RunOutcome:
    """What the run left. Raises PermanentError where it left no model that is known."""
    view = api.ask(endpoints.run_view(run_key))
    found = api.ask(endpoints.models(run_key=run_key))
    if not found:
        raise _no_model(view)
    model = found[0]
    url = calls.dag_page(api.base_url, model.dag_id, model.run_id)
    tracked = api.ask(endpoints.trackers(run_key))
    evaluations = _evaluations(api, view.run.identity)
    evaluating = {} if evaluations else _evaluating(api, view.run.identity)
    return RunOutcome(model=model, evaluations=evaluations, url=url, tracked=tracked, evaluating=evaluating)


def _finished_run(api: Api, reference: str) -> RunView:
    """The run of that name; for a job's name its newest run with a model."""
    for each in api.ask(endpoints.runs(1000)):
        run = each.run
        if run.state is JobState.SUCCEEDED and reference in (run.job.name, run.identity.dag_id):
            return each
    return find_run(api, reference)


def _no_model(view: RunView) -> PermanentError:
    detail = f"The run {view.run.run_key} of {view.run.job.name} is {view.run.state}: it has left no model."
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy="See: frenzy models"))


def _evaluations(api: Api, run: RunIdentity) -> dict[str, Mapping[str, Any]]:
    """What its DAG run's evaluations returned, by task, of the same map index; nothing that Airflow does not show."""
    dag_id, run_id = run.dag_id, run.run_id
    try:
        found = {
            each["task_id"]: api.ask(calls.returned(dag_id, run_id, each["task_id"], each["map_index"]))["value"]
            for each in _evaluation_tasks(api, run, "success")
        }
    except PermanentError:
        return {}
    return {task: json.loads(value) if isinstance(value, str) else value for task, value in found.items()}


def _evaluating(api: Api, run: RunIdentity) -> dict[str, str]:
    try:
        return {each["task_id"]: each["state"] or "not begun" for each in _evaluation_tasks(api, run)}
    except PermanentError:
        return {}


def _evaluation_tasks(api: Api, run: RunIdentity, state: str | None = None) -> list[Any]:
    tasks = api.ask(calls.tasks_of(run.dag_id, run.run_id, state, run.map_index))["task_instances"]
    return [each for each in tasks if each.get("operator") == _EVALUATION]


def show_outcome(console: Console, outcome: RunOutcome) -> None:
    """Path, size, scores, sample and page."""
    model = outcome.model
    lines = [
        ("Model", model.path or _NO_MODEL),
        ("Size", size(model.num_bytes)),
        ("Trained", f"{counted(model.steps, 'step')} in {format_duration(model.run_s)} on {model.plan_id}"),
        ("Training loss", f"{_number(model.loss)} in the last step"),
    ]
    for task, found in outcome.evaluations.items():
        whose = f" ({task})" if len(outcome.evaluations) > 1 else ""
        held_out = "held-out text" if found.get("held_out") else "training text"
        score = f"{_number(found.get('perplexity'))} on {held_out} (loss {_number(found.get('loss'))})"
        lines.append((f"Perplexity{whose}", score))
        lines.append((f"Prompt{whose}", printable(found.get("prompt", "")).strip() or "none"))
        lines.append((f"Sample{whose}", printable(found.get("sample", "")).strip()))
    lines += [("Evaluation", f"no scores: the task {task} is {state}") for task, state in outcome.evaluating.items()]
    lines.append(("Page", outcome.url))
    lines += tracked_lines(outcome.tracked)
    for name, text in lines:
        # In a group, so that no command in a prompt or sample is changed.
        console.print(Group(Text.assemble((f"{name:<14}", "bold"), text)), soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _where(model: FinishedModel) -> str:
    return model.path or "none is kept"
