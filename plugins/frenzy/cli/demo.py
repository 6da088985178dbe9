"""``frenzy demo``: the whole walk on this machine, checked by what the ledger recorded.

Starts Airflow in a home of its own, submits the job, shows it, and checks its run. Exit status 0 only when
all checks passed. What it started is stopped at the end, and on Ctrl-C, unless ``--keep`` leaves Airflow up.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from frenzy.adapters.spec.spec_file import SpecFile, checked_spec
from frenzy.cli.commands.up import told_while
from frenzy.cli.embedded.stack_processes import interrupted_by
from frenzy.cli.render.console import out
from frenzy.cli.render.error_text import FAILED
from frenzy.core.planning.selection import fitting
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, Violation
from frenzy.core.values.units import counted, format_duration
from frenzy.settings import CHECKOUT, ElasticMoves, Settings, load_settings

if TYPE_CHECKING:
    from frenzy.cli.commands.follow import StatusSnapshot
    from frenzy.cli.commands.server import Api
    from frenzy.cli.commands.submission import Started
    from frenzy.cli.demo_checks import Check
    from frenzy.cli.embedded.stack import Stack
    from frenzy.core.runs.ledger import Attempt
    from frenzy.core.runs.protocol import RunView

DEFAULT_JOB: Final = CHECKOUT / "include/jobs/tiny-shakespeare.yaml"
_SHOWN_PLANS: Final = 8
_API_PATIENCE_S: Final = 60.0
_ELASTIC_MIN_RUN_S: Final = 5.0
_ELASTIC_RESTART_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The last view of the run, and the verdict."""

    view: RunView
    checks: tuple[Check, ...]


Walk = Callable[["Stack"], Outcome]


def demo(
    job: Annotated[Path, typer.Option(help="The job's YAML file.")] = DEFAULT_JOB,
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; the settings' by default.")] = None,
    keep: Annotated[bool, typer.Option("--keep", envvar="KEEP", help="Leave Airflow up at the end.")] = False,
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="Three jobs: a long one makes room for a short one and grows back."),
    ] = False,
    swap: Annotated[
        bool,
        typer.Option("--swap", help="Two jobs: one outgrows its GPU and gets a larger one from the other."),
    ] = False,
) -> int:
    """Train a job through Airflow on this machine, show every step, and check what happened."""
    return run_demo(_chosen_walk(job, elastic=elastic, swap=swap), cluster, keep=keep, elastic=elastic or swap)


def run_demo(walk: Walk, cluster: Path | None = None, *, keep: bool = False, elastic: bool = False) -> int:
    """A new Airflow, the walk on it, and the verdict; the exit status."""
    started_s = time.monotonic()
    settings = demo_settings(load_settings(os.environ), cluster, elastic=elastic)
    with interrupted_by(signal.SIGTERM, signal.SIGHUP), own_home(settings.home):
        stack = _fresh_stack(settings)
        leave_up = False
        try:
            say(f"Starting Airflow in {settings.home} ...")
            with told_while(stack, "Airflow starts"):
                stack.start()
            say(f"Airflow answers at {stack.base_url} after {format_duration(time.monotonic() - started_s)}.")
            outcome = walk(stack)
            leave_up = keep
        finally:
            if not leave_up:
                say("Stopping all that was started ...")
                with told_while(stack, "Airflow stops"):
                    stack.stop()
        return _conclude(stack, outcome, kept_up=leave_up, seconds=time.monotonic() - started_s)


def demo_settings(settings: Settings, cluster: Path | None, *, elastic: bool = False) -> Settings:
    """The demo's own home below the usual one; its cluster file checked before anything starts.

    Its jobs last seconds, so what is minutes elsewhere is seconds here. One job alone is moved for its
    memory only.
    """
    from frenzy.adapters.spec.cluster_file import load_cluster

    home = settings.home / "demo"
    chosen = (cluster or settings.cluster_file).absolute()
    load_cluster(chosen)
    return replace(
        settings,
        home=home,
        run_root=str(home / "runs"),
        cluster_file=chosen,
        elastic=ElasticMoves.AUTO if elastic else ElasticMoves.OFF,
        min_run_s=_ELASTIC_MIN_RUN_S,
        restart_s=_ELASTIC_RESTART_S,
    )


@contextmanager
def own_home(home: Path) -> Iterator[None]:
    """One demo at a time in a home. Raises PermanentError when another one is on."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            detail = f"A demo is running in {home} already."
            remedy = "Wait for its end, or give this one a home of its own: FRENZY_HOME=/some/folder make demo"
            raise PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy)) from error
        yield


def _fresh_stack(settings: Settings) -> Stack:
    """A stack in an empty home; one that an earlier demo left up is stopped first."""
    from frenzy.cli.embedded.airflow_env import CONNECTION_VARIABLE
    from frenzy.cli.embedded.stack import Stack

    # The demo is the same wherever it runs: a Connection's settings are those of another Airflow.
    ours = {name: value for name, value in os.environ.items() if name != CONNECTION_VARIABLE}
    stack = Stack(settings, ours)
    stack.stop()
    if settings.home.exists():
        shutil.rmtree(settings.home)
    return stack


def _chosen_walk(job: Path, *, elastic: bool, swap: bool) -> Walk:
    """The one demo that was asked for; its files are checked first. Raises SpecError."""
    if elastic and swap:
        raise SpecError([Violation(path="--swap", value="with --elastic", allowed="give one of the two")])
    if elastic or swap:
        return _migrations_walk("swap" if swap else "elastic")
    return partial(_walk, spec=checked_spec(job))


def _migrations_walk(scene: str) -> Walk:
    """The demo with jobs that move for one another; their files are checked first."""
    from frenzy.cli.demo_checks import judge_migrations
    from frenzy.cli.demo_migrations import play, specs_of

    specs = specs_of(scene)

    def walk(stack: Stack) -> Outcome:
        with api_of(stack) as api:
            ending = play(api, scene, specs, say)
        shown = max(ending.views, key=lambda each: len(each.attempts))
        return Outcome(view=shown, checks=judge_migrations(ending.views, ending.num_held_gpus))

    return walk


def api_of(stack: Stack) -> Api:
    from frenzy.adapters.api_client import ApiAddress
    from frenzy.cli.commands.server import Api
    from frenzy.cli.embedded.airflow_env import ADMIN

    address = ApiAddress(base_url=stack.base_url, login=ADMIN, password=stack.password(ADMIN))
    return Api(address, patience_s=_API_PATIENCE_S)


def _walk(stack: Stack, spec: SpecFile) -> Outcome:
    """Submit the job, follow it to its end and judge."""
    from frenzy.cli.demo_checks import judge

    with api_of(stack) as api:
        last = trained(api, spec)
    view = last.views[0]
    return Outcome(view=view, checks=judge(last.dag_state, view))


def trained(api: Api, spec: SpecFile, seen: Callable[[RunView], None] = lambda view: None) -> StatusSnapshot:
    """Submit the job and show its run to the end; the last snapshot of it. seen: called with every view of the run."""
    from frenzy.cli.commands.submission import submit_spec

    started = submit_spec(api, spec, trigger=True)
    say(f"Job {started.job.name} became DAG {started.job.dag_id}; run {started.run_id} started.")
    return _follow(api, started, seen)


def _follow(api: Api, started: Started, seen: Callable[[RunView], None]) -> StatusSnapshot:
    """Show the run to its end."""
    from frenzy.cli.commands.follow import follow
    from frenzy.cli.commands.progress import ProgressView

    assert started.run_id is not None
    shown_plans = False
    shown_attempts = 0
    console = out()
    with ProgressView(console) as progress:
        for snapshot in follow(api, started.job.dag_id, started.run_id):
            progress.show(snapshot)
            if not snapshot.views:
                continue
            view = snapshot.views[0]
            if view.candidates and not shown_plans:
                shown_plans = True
                _show_plans(console, view)
            for attempt in view.attempts[shown_attempts:]:
                _show_placement(console, attempt)
            shown_attempts = len(view.attempts)
            seen(view)
    if not snapshot.views:
        detail = f"The DAG run ended ({snapshot.dag_state}) before a training run was registered."
        remedy = f"Read the task logs in {os.environ.get('FRENZY_HOME', '.frenzy')}/demo/airflow/logs."
        raise PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))
    return snapshot


def _show_plans(console: Console, view: RunView) -> None:
    from frenzy.cli.render.plan_tables import candidates_table

    fits = [each for each in view.candidates if each.feasible]
    refused = [each for each in view.candidates if not each.feasible]
    console.print()
    console.print(candidates_table(f"MARP: {fitting(len(fits))}, best first", fits[:_SHOWN_PLANS]))
    console.print()
    console.print(candidates_table(f"MARP: {len(refused)} refusals, some of them", refused[:_SHOWN_PLANS]))
    console.print()


def _show_placement(console: Console, attempt: Attempt) -> None:
    from frenzy.cli.render.plan_tables import memory_breakdown
    from frenzy.cli.render.tables import placement_text

    plan = attempt.plan
    console.print(
        Text.assemble(
            (f"HAS placed attempt {attempt.attempt}: ", "bold"),
            f"{plan.plan_id} as {placement_text(attempt)}; {counted(plan.dp, 'worker')} x "
            f"{counted(plan.micro_batch_size, 'sequence')} x "
            f"{counted(plan.accumulation_steps, 'accumulation step')}. Because: {attempt.next_attempt.reason.sentence}",
        )
    )
    console.print(memory_breakdown(plan))


def _conclude(stack: Stack, outcome: Outcome, *, kept_up: bool, seconds: float) -> int:
    from frenzy.cli.commands.status import show_run
    from frenzy.cli.commands.up import show_address
    from frenzy.cli.render.tables import grid

    console = out()
    console.print()
    show_run(outcome.view)
    console.print()
    rows = [
        (Text("yes", style="green") if each.passed else Text("NO", style="bold red"), each.name, each.evidence)
        for each in outcome.checks
    ]
    console.print(grid("What was checked", ("passed", "check", "evidence"), rows))
    console.print()
    if kept_up:
        show_address(stack)
        console.print(f"Stop it with: FRENZY_HOME={stack.settings.home} frenzy down", soft_wrap=True)
    failed = [each.name for each in outcome.checks if not each.passed]
    took = format_duration(seconds)
    if failed:
        console.print(f"{len(failed)} of {len(rows)} checks failed, in {took}:", style="bold red")
        for name in failed:
            console.print(f"  {name}")
        return FAILED
    console.print(f"All {len(rows)} checks passed, in {took}.", style="bold green")
    return 0


def say(text: str) -> None:
    out().print(text, style="dim", soft_wrap=True)
