"""``frenzy sweep``: every combination of some values as a job and run of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from frenzy.adapters.spec.combinations import MOST_RUNS, Combination, combined, settings_of
from frenzy.adapters.spec.job_spec import job_from_document
from frenzy.adapters.spec.refusals import refused, shown
from frenzy.adapters.spec.spec_file import SpecFile, checked_text, read_text
from frenzy.adapters.spec.yaml_core import dump_yaml, load_yaml
from frenzy.api import endpoints
from frenzy.cli.commands.outputs import outcome_of
from frenzy.cli.commands.server import Api, connect
from frenzy.cli.commands.submission import SILENCE_S, dag_run_state, trigger_run, wait_for_dag
from frenzy.cli.render.console import err, out, print_json
from frenzy.cli.render.error_text import FAILED
from frenzy.cli.render.tables import Grid, grid
from frenzy.cli.render.trials import setting_text, trials_table
from frenzy.core.runs.comparison import Trial, compared
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import SubmitJob
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.units import counted

_POLL_S: Final = 1.0
_ENDED: Final = frozenset({"success", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep; ``run_id`` is None where nothing was submitted."""

    job: str
    values: dict[str, object]
    dag_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome:
    """What was submitted and, after ``--wait``, the comparison, best first."""

    runs: tuple[SweepRun, ...]
    trials: tuple[Trial, ...]


def sweep(
    spec: Annotated[Path, typer.Argument(help="What all runs have in common: a job's YAML file; - is standard input.")],
    settings: Annotated[
        list[str], typer.Option("--set", help="A field and its values: training.learning_rate=1e-4,3e-4. Repeat it.")
    ],
    max_runs: Annotated[int, typer.Option(min=1, max=1000, help="Refuse a sweep of more runs.")] = MOST_RUNS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, submit nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all have ended, then compare them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Submit every combination of some values as a job of its own, and start them all."""
    chosen = _chosen(spec, settings_of(settings), max_runs)
    if dry_run:
        listed = tuple(SweepRun(job=each.name, values=dict(each.values)) for each, _ in chosen)
        _show(SweepOutcome(runs=listed, trials=()), as_json=as_json)
        return 0
    with connect() as api:
        runs = _started(api, chosen)
        if not wait:
            _show(SweepOutcome(runs=runs, trials=()), as_json=as_json)
            return 0
        (err() if as_json else out()).print(_runs_table(runs))
        _await_all(api, runs, err().print)
        trials = _compared(api, runs)
    if as_json:
        print_json(SweepOutcome(runs=runs, trials=trials))
    else:
        out().print(trials_table(trials))
    return 0 if len(trials) == len(runs) and all(each.state is JobState.SUCCEEDED for each in trials) else FAILED


def _chosen(spec: Path, settings: dict[str, list[object]], max_runs: int) -> tuple[tuple[Combination, SpecFile], ...]:
    """Every combination with what is submitted of it, all checked. Raises SpecError with every violation."""
    document = load_yaml(read_text(spec))
    if not isinstance(document, dict):
        job_from_document(document)
    if document.get("trigger") is not None:
        raise refused("trigger", shown(document["trigger"]), "a sweep runs once: leave it out")
    found = combined(document, settings, max_runs=max_runs)
    return tuple((each, checked_text(dump_yaml(each.document), spec)) for each in found)


def _started(api: Api, chosen: Sequence[tuple[Combination, SpecFile]]) -> tuple[SweepRun, ...]:
    """All are stored before the first one starts, so that a refusal by the server starts none.

    Whatever goes wrong later, those that were started are told.
    """
    jobs = [api.ask(endpoints.submit(SubmitJob(yaml_text=spec.text))) for _, spec in chosen]
    runs: list[SweepRun] = []
    try:
        for (combination, spec), job in zip(chosen, jobs, strict=True):
            wait_for_dag(api, job.dag_id, spec.job, tell=err().print)
            run_id = trigger_run(api, job.dag_id, {})
            runs.append(SweepRun(job=job.name, values=dict(combination.values), dag_id=job.dag_id, run_id=run_id))
    except (FrenzyError, KeyboardInterrupt):
        err().print(_runs_table(runs) if runs else "No run was started.")
        raise
    return tuple(runs)


def _await_all(api: Api, runs: Sequence[SweepRun], tell: Callable[[str], None]) -> None:
    """Until the DAG run of each has ended, with a line at every end and after some seconds of silence."""
    open_runs, told_s = list(runs), time.monotonic()
    while open_runs:
        ended = [each for each in open_runs if dag_run_state(api, each.dag_id or "", each.run_id or "") in _ENDED]
        open_runs = [each for each in open_runs if each not in ended]
        if ended or time.monotonic() - told_s >= SILENCE_S:
            told_s = time.monotonic()
            tell(progress_line(len(runs), [each.job for each in ended], _states(api, open_runs)))
        if open_runs:
            time.sleep(_POLL_S)


def _states(api: Api, runs: Sequence[SweepRun]) -> list[JobState | None]:
    """Of each of ``runs``, None for one that is still being planned."""
    views = [view for each in runs for view in api.ask(endpoints.runs_of_dag_run(each.dag_id or "", each.run_id or ""))]
    return [*(each.run.state for each in views), *[None] * (len(runs) - len(views))]


def progress_line(num_runs: int, ended: Sequence[str], states: Sequence[JobState | None]) -> str:
    """How far a sweep is. ended: names of those that have just ended. states: of those that have not."""
    numbers = Counter("starting" if state is None else state.value for state in states)
    names = f" Ended: {', '.join(ended)}." if ended else ""
    now = f" Now {', '.join(f'{number} {state}' for state, number in sorted(numbers.items()))}." if numbers else ""
    return f"{num_runs - len(states)} of {counted(num_runs, 'run')} have ended.{names}{now}"


def _compared(api: Api, runs: Sequence[SweepRun]) -> tuple[Trial, ...]:
    views = [view for each in runs for view in api.ask(endpoints.runs_of_dag_run(each.dag_id or "", each.run_id or ""))]
    finished = [each for each in views if each.run.state is JobState.SUCCEEDED]
    outcomes = {each.run.run_key: outcome_of(api, each.run.run_key) for each in finished}
    evaluations = {key: found for key, each in outcomes.items() for found in each.evaluations.values()}
    return compared(views, evaluations, {key: each.model.path for key, each in outcomes.items()})


def _show(outcome: SweepOutcome, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome)
        return
    out().print(_runs_table(outcome.runs))
    if any(each.run_id for each in outcome.runs):
        out().print("Follow all: frenzy status. One of them: frenzy status JOB. Order and reasons: frenzy queue.")


def _runs_table(runs: Sequence[SweepRun]) -> Grid:
    paths = list(runs[0].values)
    rows = ((each.job, *(setting_text(each.values[path]) for path in paths), each.run_id or "-") for each in runs)
    headings = ("job", *(path.rpartition(".")[2] for path in paths), "run")
    return grid(f"{counted(len(runs), 'run')}", headings, rows, right=" ".join(headings[1:-1]))
