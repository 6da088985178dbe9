"""``frenzy init``: what a new installation needs, in a folder of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
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
    from frenzy.core.values.cluster import Cluster

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
        typer.Option("--connect", help="Make pools and the Connection frenzy_default in the Airflow of FRENZY_URL."),
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
        connect_airflow(made, extras=shared_settings(made) if share_settings else {})
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


def connect_airflow(made: Installation, *, extras: Mapping[str, str]) -> None:
    """Pools and Connection in the Airflow that FRENZY_URL names; those it has already stay as they are.

    On Kubernetes the nodes say which pools there are, hence the ledger makes them.

    Raises SpecError when a variable or the cluster file is bad, PermanentError when Airflow refuses.
    """
    from frenzy.adapters.spec.cluster_file import load_cluster
    from frenzy.cli.commands.server import connect
    from frenzy.core.values.cluster import Cluster

    on_kubernetes = made.settings.launcher is LauncherKind.KUBERNETES
    cluster = Cluster((), ()) if on_kubernetes else load_cluster(made.settings.cluster_file)
    with connect(_named_server()) as api:
        for pool in _pools(cluster):
            _put(api, *pool)
        is_new = _put(api, *_frenzy_default(extras))
    if extras:
        note = "with" if is_new else "has its own extras; for these settings give it"
        out().print(f"        {note} {json.dumps(extras)}", soft_wrap=True, highlight=False)


def _put(api: Api, what: str, look: Call[Any], make: Call[Any]) -> bool:
    """Whether ``what`` had to be made."""
    if _is_there(api, look):
        _say("kept", what)
        return False
    api.ask(make)
    _say("made", what)
    return True


def _pools(cluster: Cluster) -> Iterator[tuple[str, Call[Any], Call[Any]]]:
    """(what it is, the call that looks for it, the call that makes it) of each GPU type's pool."""
    from frenzy.adapters.airflow_calls import airflow_call
    from frenzy.adapters.ledger_sql.airflow_tables import POOL_DESCRIPTION

    for kind in cluster.gpu_types:
        slots = cluster.num_gpus_by_type[kind.name]
        pool = {"name": kind.pool, "slots": slots, "description": POOL_DESCRIPTION, "include_deferred": True}
        yield f"pool {kind.pool}", airflow_call("GET", f"/pools/{kind.pool}"), airflow_call("POST", "/pools", pool)


def _frenzy_default(extras: Mapping[str, str]) -> tuple[str, Call[Any], Call[Any]]:
    """As ``_pools``, of the Connection."""
    from frenzy.adapters.airflow_calls import airflow_call

    wanted = {"connection_id": CONN_ID, **_connection(), **({"extra": json.dumps(extras)} if extras else {})}
    look = airflow_call("GET", f"/connections/{CONN_ID}")
    return f"connection {CONN_ID}", look, airflow_call("POST", "/connections", wanted)


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
