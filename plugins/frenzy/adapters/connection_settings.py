"""The settings of a process of Airflow: its environment, then the section [frenzy] of Airflow's configuration, then
what the Connection ``frenzy_default`` says.

Airflow resolves Connections in another way in each kind of process (environment, secrets backend, then its
database or the execution API). It is asked once in a process, at the first need: a change is seen by every
process that starts after it, which tasks and the parsing of DAG files always do.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from frenzy.core.values.errors import FrenzyError, Reason, ReasonCode, SpecError, TemporaryError, Violation
from frenzy.settings import CONN_ID, EXTRAS_PATH, Settings, load_settings, variable_names

log = logging.getLogger(__name__)

CONFIG_SECTION: Final = "frenzy"
_RETRY_AFTER_S: Final = 5.0
_LOGIN_KEPT_S: Final = 60.0
_DATABASE_URL: Final = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
# An Airflow that names its database in one of these ways is set up; so is one whose Connection stands beside them.
_SET_UP_BY: Final = (
    _DATABASE_URL,
    f"{_DATABASE_URL}_CMD",
    f"{_DATABASE_URL}_SECRET",
    f"AIRFLOW_CONN_{CONN_ID.upper()}",
)


class ConnectionSettings:
    """Settings from an environment, the section [frenzy] that ``configured`` returns, and the Connection, whose extras
    ``look`` returns (None: no such Connection).

    Asked once; again where it failed or its answer is refused, so that what a person corrects is seen. Several
    threads at the start may each ask: none holds a lock that an event loop could wait for.
    """

    def __init__(
        self,
        look: Callable[[], str | None],
        configured: Callable[[], Mapping[str, object]] = lambda: MappingProxyType({}),
    ) -> None:
        self._look, self._configured = look, configured
        self._extras: Mapping[str, object] | None = None

    def of(self, environ: Mapping[str, str]) -> Settings:
        """For what acts on them. Raises SpecError, and TemporaryError rather than take a failure for no Connection."""
        extras = extras_in(self._asked()) if self._extras is None else self._extras
        settings = load_settings(_with_section(environ, self._configured()), extras)
        self._extras = extras
        return settings

    def at_hand(self, environ: Mapping[str, str]) -> Settings:
        """For what only shows them: those of ``environ``, with a warning, while the Connection cannot be known.

        Raises SpecError.
        """
        try:
            return self.of(environ)
        except TemporaryError as error:
            log.warning("%s The settings are those of the environment.", error)
            return load_settings(_with_section(environ, self._configured()))

    def _asked(self) -> str | None:
        try:
            return self._look()
        except FrenzyError:
            raise
        except Exception as error:
            first_line = next(iter(str(error).splitlines()), "")
            raise _unknown(f"{type(error).__name__}: {first_line}") from error


def extras_in(text: str | None) -> Mapping[str, object]:
    """A Connection's extras by their keys. Raises SpecError for what is no JSON object."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        # Not shown: it may hold a secret.
        allowed = 'give a JSON object, for example {"FRENZY_LAUNCHER": "kubernetes"}'
        raise SpecError([Violation(path=EXTRAS_PATH, value="what is no JSON object", allowed=allowed)])
    return found


def _with_section(environ: Mapping[str, str], section: Mapping[str, object]) -> Mapping[str, str]:
    """``environ``, below it the options of ``section``. Raises SpecError for one that is none.

    An option is called like its variable, without FRENZY_ and in small letters.
    """
    options = {option_of(name): name for name in variable_names(shared_only=True)}
    unknown = [each for each in section if each not in options]
    if unknown:
        allowed = f"allowed: {', '.join(options)}"
        paths = [f"{each} in the section [{CONFIG_SECTION}] of Airflow's configuration" for each in unknown]
        raise SpecError([Violation(path=each, value="no setting", allowed=allowed) for each in paths])
    given = {options[name]: str(value) for name, value in section.items() if value is not None}
    return {**given, **{name: value for name, value in environ.items() if value.strip() or name not in given}}


def option_of(variable: str) -> str:
    """A shared variable's name in the section [frenzy]: ``FRENZY_LEASE_S`` is ``lease_s``."""
    return variable.removeprefix("FRENZY_").lower()


def configured() -> Mapping[str, object]:
    """The section [frenzy], where this process belongs to an Airflow that is set up. Raises SpecError.

    Airflow runs commands and asks secrets backends for options that are secret; none of ours is.
    """
    if "airflow.configuration" not in sys.modules and not _is_set_up(os.environ):
        return {}
    from airflow.configuration import conf
    from airflow.exceptions import AirflowConfigException

    try:
        return conf.getsection(CONFIG_SECTION) or {}
    except AirflowConfigException as error:
        allowed = f"give each option's value itself, not AIRFLOW__{CONFIG_SECTION.upper()}__..._CMD or ..._SECRET"
        path = f"section [{CONFIG_SECTION}] of Airflow's configuration"
        raise SpecError([Violation(path=path, value=str(error), allowed=allowed)]) from error


def ask_airflow() -> str | None:
    """The extras, in the way of this process: through its supervisor, from the database, or not at all.

    Airflow calls a Connection undefined also when looking for it failed: then what failed is raised.
    """
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    supervisor = getattr(runner, "SUPERVISOR_COMMS", None)
    if supervisor is not None:
        return _through(supervisor)
    if os.environ.get("_AIRFLOW_PROCESS_CONTEXT") == "server" or _is_set_up(os.environ):
        return _from_backends()
    return None


_OF_THIS_PROCESS: Final = ConnectionSettings(ask_airflow, configured)


def service_login() -> str | None:
    """As whom Frenzy's tasks call the API: the login of its Connection. None where there is no Connection.

    For the API server; asked once in each minute, so that a change is seen.
    """
    return _login_in_minute(int(time.time() // _LOGIN_KEPT_S))


@lru_cache(maxsize=1)
def _login_in_minute(_number: int) -> str | None:
    found = _connection_from_backends()
    return None if found is None else found.login


def settings_of_airflow() -> Settings:
    """This process's settings, for what acts on them. Raises SpecError or TemporaryError."""
    return _OF_THIS_PROCESS.of(os.environ)


def settings_at_hand() -> Settings:
    """This process's settings, for what only shows them: a failure to ask is a warning. Raises SpecError."""
    return _OF_THIS_PROCESS.at_hand(os.environ)


def _through(supervisor: Any) -> str | None:
    """In tasks, triggers and the parsing of DAG files, which have no database."""
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection

    try:
        return _extra(Connection.get(CONN_ID))
    except AirflowNotFoundException:
        reply = supervisor.send(GetConnection(conn_id=CONN_ID))
    if isinstance(reply, ErrorResponse):
        if reply.error is ErrorType.CONNECTION_NOT_FOUND:
            return None
        raise _unknown(f"{reply.error.value} {reply.detail or ''}".strip())
    return _extra(reply)


def _from_backends() -> str | None:
    """In the API server and on the command line."""
    found = _connection_from_backends()
    return None if found is None else _extra(found)


def _connection_from_backends() -> Any:
    from airflow.configuration import ensure_secrets_loaded
    from airflow.models.connection import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return Connection.get_connection_from_secrets(CONN_ID)
    except AirflowNotFoundException:
        found = (backend.get_connection(conn_id=CONN_ID) for backend in ensure_secrets_loaded())
    return next((each for each in found if each is not None), None)


def _extra(connection: Any) -> str | None:
    extra: str | None = connection.extra
    return extra


def _is_set_up(environ: Mapping[str, str]) -> bool:
    """Whether this machine has an Airflow to ask: an SQLite file that is not there yet would be made by asking."""
    if any(environ.get(name) for name in _SET_UP_BY):
        return True
    if not (Path(environ.get("AIRFLOW_HOME") or os.devnull) / "airflow.cfg").is_file():
        return False
    from airflow.configuration import conf
    from sqlalchemy import make_url

    url = make_url(str(conf.get("database", "sql_alchemy_conn")))
    return url.get_backend_name() != "sqlite" or Path(url.database or "").is_file()


def _unknown(why: str) -> TemporaryError:
    detail = f"The Connection {CONN_ID} could not be read: {why}"
    remedy = "It may hold settings. See to Airflow's API server, database or secrets backend."
    reason = Reason(code=ReasonCode.API_UNREACHABLE, detail=detail, remedy=remedy)
    return TemporaryError(reason, retry_after_s=_RETRY_AFTER_S)
