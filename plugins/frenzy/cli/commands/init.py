"""``frenzy init``: what a new installation needs, in a folder of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from frenzy.cli.render.console import out
from frenzy.settings import CONN_ID, LauncherKind, variable_names

if TYPE_CHECKING:
    from frenzy.api.declaration import Call
    from frenzy.cli.commands.server import Api
    from frenzy.cli.embedded.installation import Installation

_STEPS: Final = """
Next, in each shell and for each component of Airflow:
  set -a; . {env}; set +a
All on this machine, Airflow included:
  frenzy up
  frenzy submit {job} --wait
With an Airflow of your own, {folder} as its home:
  airflow db migrate
  FRENZY_URL=... FRENZY_USER=... FRENZY_PASSWORD=... frenzy init {folder} --connect
Describe your GPUs in {cluster}."""


def init(
    folder: Annotated[Path, typer.Argument(help="The new installation's folder.")] = Path(),
    launcher: Annotated[LauncherKind, typer.Option(help="Where workers run.")] = LauncherKind.LOCAL,
    run_root: Annotated[str | None, typer.Option(help="Folder or fsspec URL of the run directories.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Ask for each file that differs whether to replace it.")
    ] = False,
    connect: Annotated[
        bool,
        typer.Option("--connect", help="Make the Connection frenzy_default in the Airflow of FRENZY_URL."),
    ] = False,
    share_settings: Annotated[
        bool, typer.Option("--share-settings", help="As --connect, with the settings in the Connection.")
    ] = False,
) -> int:
    """Make settings, cluster file, DAGs and a jobs folder; say what comes next. Overwrites nothing."""
    from frenzy.cli.embedded.installation import new_installation

    made = new_installation(folder.expanduser().absolute(), launcher, run_root)
    write(made, force=force)
    if connect or share_settings:
        connect_airflow(extras=shared_settings(made) if share_settings else {})
    else:
        _show_steps(made)
    return 0


def write(made: Installation, *, force: bool) -> None:
    """Write what is not there; with ``force``, also what differs and a person wants replaced."""
    for name, text in made.files.items():
        path = made.folder / name
        known = path.read_text(encoding="utf-8") if path.is_file() else None
        if known == text:
            _say("same", name)
        elif known is not None and not (force and typer.confirm(f"Replace {path}?")):
            _say("kept", name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            _say("made" if known is None else "new", name)
    made.settings.jobs_folder.mkdir(parents=True, exist_ok=True)


def shared_settings(made: Installation) -> dict[str, str]:
    """What the installation's ``frenzy.env`` says, as far as the Connection may say it."""
    from frenzy.cli.embedded.installation import chosen

    names = variable_names(shared_only=True)
    return {name: value for name, value in chosen(made.settings).items() if name in names}


def connect_airflow(*, extras: Mapping[str, str]) -> None:
    """The Connection in the Airflow that FRENZY_URL names, unless it has one; the ledger makes the pools.

    Raises SpecError when a variable is bad, PermanentError when Airflow refuses.
    """
    from frenzy.adapters.airflow_calls import airflow_call
    from frenzy.cli.commands.server import connect

    wanted = {"connection_id": CONN_ID, **({"extra": json.dumps(extras)} if extras else {})}
    with connect(_named_server()) as api:
        is_new = not _is_there(api, airflow_call("GET", f"/connections/{CONN_ID}"))
        if is_new:
            api.ask(airflow_call("POST", "/connections", {**wanted, **_connection()}))
    _say("made" if is_new else "kept", f"connection {CONN_ID}")
    if extras:
        note = "with" if is_new else "has its own extras; for these settings give it"
        out().print(f"        {note} {json.dumps(extras)}", soft_wrap=True, highlight=False)


def _connection() -> dict[str, object]:
    """The Connection by which tasks and triggers reach the server that this command speaks to, as the same user."""
    url = urlsplit(os.environ["FRENZY_URL"])
    return {
        "conn_type": "http",
        "schema": url.scheme,
        "host": url.hostname,
        "port": url.port,
        "login": os.environ["FRENZY_USER"],
        "password": os.environ["FRENZY_PASSWORD"],
    }


def _named_server() -> dict[str, str]:
    from frenzy.core.values.errors import SpecError, Violation

    if not os.environ.get("FRENZY_URL"):
        allowed = "set FRENZY_URL, FRENZY_USER and FRENZY_PASSWORD; `frenzy up` needs no --connect"
        raise SpecError([Violation(path="FRENZY_URL", value="unset", allowed=allowed)])
    return dict(os.environ)


def _is_there(api: Api, look: Call[Any]) -> bool:
    from frenzy.adapters.api_client import NotFoundError

    with suppress(NotFoundError):
        api.ask(look)
        return True
    return False


def _show_steps(made: Installation) -> None:
    from frenzy.cli.embedded.installation import ENVIRONMENT_FILE

    folder = made.folder
    job = next(name for name in made.files if name.startswith("include/jobs/"))
    steps = _STEPS.format(
        env=folder / ENVIRONMENT_FILE, job=folder / job, folder=folder, cluster=made.settings.cluster_file
    )
    out().print(steps, soft_wrap=True, highlight=False)


def _say(state: str, name: str) -> None:
    out().print(f"  {state:<5} {name}", soft_wrap=True, highlight=False)
