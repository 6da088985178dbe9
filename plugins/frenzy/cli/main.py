"""The ``frenzy`` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Annotated

import typer

from frenzy import __version__
from frenzy.cli.render.error_text import guarded
from frenzy.cli.verbs import GROUP, VERBS


def make_cli(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command with all its verbs; where ``arguments`` begin with one, with no other."""
    asked = arguments[0] if arguments and arguments[0] in (*VERBS, GROUP) else None
    cli = typer.Typer(
        name="frenzy",
        help="Train language models on mixed GPU clusters: hand over a model and data, never a GPU type or count.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    cli.callback()(_root)
    for verb in VERBS:
        if asked in (None, verb):
            cli.command(verb)(_exiting(_imported(verb)))
    if asked in (None, GROUP):
        cli.add_typer(_marp(), name=GROUP)
    return cli


def _imported(verb: str) -> Callable[..., int]:
    found: Callable[..., int] = getattr(import_module(f"frenzy.cli.{VERBS[verb]}"), verb)
    return found


def _marp() -> typer.Typer:
    from frenzy.cli.commands.marp.group import HELP, VERBS

    group = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    for verb in VERBS:
        group.command(verb.__name__)(_exiting(verb))
    return group


def app() -> None:
    """Entry point of the installed command."""
    make_cli(sys.argv[1:])()


def run(arguments: Sequence[str]) -> int:
    """The exit status of ``frenzy`` with ``arguments``."""
    try:
        make_cli(arguments)(args=list(arguments))
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
