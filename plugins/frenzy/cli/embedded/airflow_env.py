"""The embedded Airflow's configuration, as environment variables.

Every component and every task process gets the same variables, so that all of them see one DAG bundle
list, one database and one set of keys. Nothing is written to an ``airflow.cfg``.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import yaml
from sqlalchemy import make_url

from frenzy.adapters.connection_settings import extras_in
from frenzy.cli.embedded.installation import DB_MANAGER, dag_bundles
from frenzy.core.values.errors import SpecError, Violation
from frenzy.settings import CHECKOUT, CONN_ID, Settings, load_settings, variable_names

STACK_MARK: Final = "FRENZY_STACK"
USERS: Final = {"admin": "admin", "frenzy": "user", "viewer": "viewer"}
# Who sits at this machine, and as whom tasks and triggers call the API.
ADMIN: Final = "admin"
SERVICE_USER: Final = "frenzy"
_ROLES: Final = ("viewer", "user", "op", "admin")
USERS_VARIABLE: Final = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"
CONNECTION_VARIABLE: Final = f"AIRFLOW_CONN_{CONN_ID.upper()}"

_LOOPBACK: Final = ("127.0.0.1", "localhost")

# Several processes write one SQLite file: wait for each other instead of failing. The API server
# waits in its event loop when it logs what a person did: then it answers nobody else.
_SQLITE_ARGS: Final = "frenzy.adapters.ledger_sql.sqlite_connections.CONNECT_ARGS"
_LOCK_WAIT_S: Final = 60
_API_LOCK_WAIT_S: Final = 5

_FIXED: Final[Mapping[str, str]] = {
    **yaml.safe_load(Path(__file__).with_name("airflow.yaml").read_text(encoding="utf-8")),
    "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What one home generates once: Airflow's keys and the users' passwords."""

    fernet_key: str
    api_secret_key: str
    jwt_secret: str
    passwords: Mapping[str, str]


def secrets_of(settings: Settings) -> Secrets:
    """This home's secrets, made at the first call; readable by their owner only."""
    path = _secrets_path(settings)
    if path.is_file():
        return Secrets(**json.loads(path.read_text(encoding="utf-8")))
    made = Secrets(
        fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        api_secret_key=secrets.token_urlsafe(32),
        jwt_secret=secrets.token_urlsafe(64),
        passwords={user: secrets.token_urlsafe(12) for user in USERS},
    )
    write_private(path, json.dumps(asdict(made), indent=1))
    return made


def users_of(base: Mapping[str, str]) -> dict[str, str]:
    """Role by user: those of this home, or of Airflow's variable where ``base`` has it. Raises SpecError."""
    given = base.get(USERS_VARIABLE, "").strip()
    if not given:
        return dict(USERS)
    users: dict[str, str] = {}
    for each in given.split(","):
        name, role, *_ = [*each.strip().split(":"), ""]
        if not name or role not in _ROLES:
            allowed = f"give NAME:ROLE, separated by commas; roles are {', '.join(_ROLES)}"
            raise SpecError([Violation(path=USERS_VARIABLE, value=repr(each), allowed=allowed)])
        users[name] = role
    missing = [f"{name}:{USERS[name]}" for name in (ADMIN, SERVICE_USER) if name not in users]
    if missing:
        allowed = f"add {','.join(missing)}: the command line and Frenzy's tasks log in so"
        raise SpecError([Violation(path=USERS_VARIABLE, value=repr(given), allowed=allowed)])
    return users


def _with_passwords(settings: Settings, users: Mapping[str, str]) -> Secrets:
    """This home's secrets, with a password for each of ``users``."""
    known = secrets_of(settings)
    new = {name: secrets.token_urlsafe(12) for name in users if name not in known.passwords}
    if not new:
        return known
    made = replace(known, passwords={**known.passwords, **new})
    write_private(_secrets_path(settings), json.dumps(asdict(made), indent=1))
    return made


def _secrets_path(settings: Settings) -> Path:
    return settings.airflow_home / "secrets.json"


def write_private(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` in one step, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def airflow_environment(settings: Settings, port: int, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` plus everything the embedded Airflow on ``port`` needs; also writes its password file.

    A variable that ``base`` sets for Airflow wins over the fixed tuning, so that a user can change it.
    """
    keys = _with_passwords(settings, users_of(base))
    passwords = settings.airflow_home / "passwords.json"
    write_private(passwords, json.dumps(dict(keys.passwords)))
    tuning = {f"AIRFLOW__{name}": value for name, value in _FIXED.items()}
    return {
        **tuning,
        **base,
        **frenzy_variables(settings, base),
        **_places(settings, port, passwords),
        **_secret_variables(settings, port, keys, base),
        **_process_variables(settings, base),
    }


def frenzy_variables(settings: Settings, base: Mapping[str, str]) -> dict[str, str]:
    """Where this home lies, what ``base`` sets, and what no default gives: the rest is the Connection's to say."""
    implied = load_settings({"FRENZY_HOME": str(settings.home), "FRENZY_LAUNCHER": settings.launcher.value})
    unsaid = set(variable_names(shared_only=True)) - {name for name, value in base.items() if value.strip()}
    if settings.launcher is not Settings().launcher:
        unsaid.discard("FRENZY_LAUNCHER")
    default = implied.environment()
    return {
        name: value
        for name, value in settings.environment().items()
        if name not in unsaid or value != default.get(name)
    }


def component_environment(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What the component called ``name`` gets of ``environ``: the API server waits less for SQLite's lock."""
    database = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
    if name != "api-server":
        return dict(environ)
    wait = (f"?timeout={_LOCK_WAIT_S}", f"?timeout={_API_LOCK_WAIT_S}")
    return {**environ, database: environ[database].replace(*wait)}


def base_url(settings: Settings, port: int) -> str:
    """Where this machine reaches the API server."""
    host = "127.0.0.1" if settings.host in {"0.0.0.0", ""} else settings.host  # noqa: S104  # what it listens on
    return f"http://{host}:{port}"


def _places(settings: Settings, port: int, passwords: Path) -> dict[str, str]:
    home = settings.airflow_home
    url = base_url(settings, port)
    values = {
        "CORE__PLUGINS_FOLDER": _plugins_folder(settings),
        "CORE__DAGS_FOLDER": settings.dags_folder,
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": passwords,
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "API__HOST": settings.host,
        "API__PORT": port,
        "API__BASE_URL": url,
        **_database(settings),
        "DATABASE__EXTERNAL_DB_MANAGERS": DB_MANAGER,
        "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(dag_bundles(settings)),
        "LOGGING__BASE_LOG_FOLDER": home / "logs",
        "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": home / "logs/dag_processor",
    }
    return {"AIRFLOW_HOME": str(home), **{f"AIRFLOW__{name}": str(value) for name, value in values.items()}}


def _plugins_folder(settings: Settings) -> Path:
    """The checkout's; an installed package is found by its entry point, and this folder is the user's own."""
    ours = CHECKOUT / "plugins"
    return ours if ours.is_dir() else settings.airflow_home / "plugins"


def _database(settings: Settings) -> dict[str, str]:
    """Airflow's two URLs of its database, or one and how connections to it behave.

    On PostgreSQL with a driver for each. That for blocking calls is psycopg2, whatever the URL says: by other drivers'
    errors Airflow does not see that a row is locked, and its scheduler ends where it should wait.
    """
    url = settings.database
    if url is None:
        return {
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{settings.airflow_home / 'airflow.db'}?timeout={_LOCK_WAIT_S}",
            "DATABASE__SQL_ALCHEMY_CONNECT_ARGS": _SQLITE_ARGS,
            "DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC": _SQLITE_ARGS,
        }
    drivers = {"DATABASE__SQL_ALCHEMY_CONN": "psycopg2", "DATABASE__SQL_ALCHEMY_CONN_ASYNC": "psycopg_async"}
    return {
        name: make_url(url).set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False)
        for name, driver in drivers.items()
    }


def _secret_variables(settings: Settings, port: int, keys: Secrets, base: Mapping[str, str]) -> dict[str, str]:
    host = base_url(settings, port).removeprefix("http://").rpartition(":")[0]
    login = {"login": SERVICE_USER, "password": keys.passwords[SERVICE_USER]}
    connection = {"conn_type": "http", "schema": "http", "host": host, "port": port, **login, **_extra(base)}
    return {
        "AIRFLOW__CORE__FERNET_KEY": keys.fernet_key,
        "AIRFLOW__API__SECRET_KEY": keys.api_secret_key,
        "AIRFLOW__API_AUTH__JWT_SECRET": keys.jwt_secret,
        CONNECTION_VARIABLE: json.dumps(connection),
    }


def _extra(base: Mapping[str, str]) -> dict[str, object]:
    """The settings in the Connection that ``base`` gives; all else in it is the home's own. Raises SpecError."""
    given = base.get(CONNECTION_VARIABLE, "").strip()
    if not given:
        return {}
    # Imported only here: Airflow takes seconds, and few give this variable.
    from airflow.sdk import Connection

    try:
        is_json = given.startswith("{")
        found = Connection.from_json(given, CONN_ID) if is_json else Connection.from_uri(given, CONN_ID)
    except Exception as error:  # whatever Airflow says of a Connection that it cannot read
        # Not shown: it holds a password.
        allowed = "give an Airflow Connection as JSON or as a URI"
        raise SpecError(
            [Violation(path=CONNECTION_VARIABLE, value="what is no Connection", allowed=allowed)]
        ) from error
    load_settings(base, extras_in(found.extra))
    return {"extra": found.extra} if found.extra else {}


def _process_variables(settings: Settings, base: Mapping[str, str]) -> dict[str, str]:
    known = base.get("no_proxy") or base.get("NO_PROXY") or ""
    bypass = ",".join(dict.fromkeys([*filter(None, known.split(",")), *_LOOPBACK]))
    return {
        # Found again in /proc by this mark; setproctitle must not write over it.
        STACK_MARK: str(settings.home),
        "SPT_NOENV": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": bypass,
        "no_proxy": bypass,
    }
