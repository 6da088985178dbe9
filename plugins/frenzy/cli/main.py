"""The ``frenzy`` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Annotated, Final

import typer

from frenzy import __version__
from frenzy.cli.commands.again import resume, retry
from frenzy.cli.commands.cancel import cancel
from frenzy.cli.commands.clean import clean
from frenzy.cli.commands.doctor.command import doctor
from frenzy.cli.commands.down import down
from frenzy.cli.commands.explain import explain
from frenzy.cli.commands.gpus import gpus
from frenzy.cli.commands.init import init
from frenzy.cli.commands.jobs import jobs
from frenzy.cli.commands.logs import logs
from frenzy.cli.commands.marp.group import HELP as MARP_HELP
from frenzy.cli.commands.marp.group import VERBS as MARP_VERBS
from frenzy.cli.commands.metrics import metrics
from frenzy.cli.commands.outputs import checkpoints, models
from frenzy.cli.commands.plan.command import plan
from frenzy.cli.commands.queue import queue
from frenzy.cli.commands.simulate.command import simulate
from frenzy.cli.commands.status import status
from frenzy.cli.commands.submit import submit
from frenzy.cli.commands.sweep import sweep
from frenzy.cli.commands.up import up
from frenzy.cli.commands.usage import usage
from frenzy.cli.demo import demo
from frenzy.cli.render.error_text import guarded

_VERBS: Final[tuple[Callable[..., int], ...]] = (
    submit,
    sweep,
    jobs,
    plan,
    status,
    logs,
    models,
    checkpoints,
    cancel,
    resume,
    retry,
    clean,
    queue,
    gpus,
    explain,
    usage,
    metrics,
    simulate,
    init,
    up,
    down,
    doctor,
    demo,
)


def make_cli() -> typer.Typer:
    """The command with all its verbs."""
    cli = typer.Typer(
        name="frenzy",
        help="Train language models on mixed GPU clusters: hand over a model and data, never a GPU type or count.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    cli.callback()(_root)
    for verb in _VERBS:
        cli.command(verb.__name__)(_exiting(verb))
    cli.add_typer(_marp(), name="marp")
    return cli


def _marp() -> typer.Typer:
    group = typer.Typer(help=MARP_HELP, no_args_is_help=True, rich_markup_mode=None)
    for verb in MARP_VERBS:
        group.command(verb.__name__)(_exiting(verb))
    return group


def app() -> None:
    """Entry point of the installed command."""
    make_cli()()


def run(arguments: Sequence[str]) -> int:
    """The exit status of ``frenzy`` with ``arguments``."""
    try:
        make_cli()(args=list(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"frenzy {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train language models on mixed GPU clusters: hand over a model and data, never a GPU type or count."""


def _exiting(verb: Callable[..., int]) -> Callable[..., None]:
    """``verb`` as a typer command: what it returns is the exit status, what it raises is shown in words."""

    @wraps(verb)
    def command(**arguments: object) -> None:
        raise typer.Exit(guarded(lambda: verb(**arguments)))

    return command


if __name__ == "__main__":
    app()
