"""The verb: everything is looked at, and each finding says what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Final

import typer
from rich.text import Text

from frenzy.cli.commands.doctor import airflow_server, pod_rights, this_machine
from frenzy.cli.commands.doctor.findings import Finding, Level, checked, problem
from frenzy.cli.commands.server import connect
from frenzy.cli.render.console import out, print_json
from frenzy.cli.render.error_text import FAILED
from frenzy.core.values.errors import FrenzyError
from frenzy.settings import LauncherKind, load_settings

_STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> int:
    """Look at installation, settings, storage, driver, server, clock, pools and rights; say what to mend.

    Exit status 1 when there is a problem.
    """
    found = []
    for each in findings():
        found.append(each)
        if not as_json:
            _show(each)
    if as_json:
        print_json(found)
    return FAILED if any(each.level is Level.PROBLEM for each in found) else 0


def findings() -> Iterator[Finding]:
    """This machine's, unless a server elsewhere is named and nothing of an installation here; then the server's."""
    if "FRENZY_HOME" in os.environ or "FRENZY_URL" not in os.environ:
        yield from checked("settings", _of_this_machine, "Correct the variable.")
    else:
        yield from this_machine.install()
    yield from _of_server()


def _of_this_machine() -> Iterator[Finding]:
    settings = load_settings(os.environ)
    yield from this_machine.findings(settings)
    if settings.launcher is LauncherKind.KUBERNETES:
        yield from pod_rights.findings(settings)


def _of_server() -> Iterator[Finding]:
    try:
        api = connect()
    except FrenzyError as error:
        remedy = error.reason.remedy or "Set FRENZY_URL, FRENZY_USER and FRENZY_PASSWORD."
        yield problem("connection", error.reason.sentence, remedy)
        return
    with api:
        yield from airflow_server.findings(api)


def _show(finding: Finding) -> None:
    level = (f"{finding.level:<8}", _STYLES[finding.level])
    out().print(Text.assemble(level, (f"{finding.check:<11}", "bold"), finding.detail), soft_wrap=True)
    if finding.remedy:
        out().print(Text.assemble(" " * 19, ("Remedy: ", "bold"), finding.remedy), soft_wrap=True)
