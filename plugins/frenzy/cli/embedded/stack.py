"""The embedded Airflow: four components on this machine, started, watched, stopped.

Each component is a session with its own log and record, so one of them may die and be started again
while the others run; a supervisor (``frenzy.cli.embedded.stack_supervisor``) starts what died again. ``start`` leaves
alone what is alive, trainings above all. ``stop`` ends everything this home ever started, found by its
mark, and may be called at any time, by any process, more than once.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx

from frenzy.adapters.local.worker_processes import RUN_KEY_VARIABLE
from frenzy.cli.embedded.airflow_env import (
    ADMIN,
    STACK_MARK,
    airflow_environment,
    base_url,
    component_environment,
    secrets_of,
)
from frenzy.cli.embedded.database_release import make_current
from frenzy.cli.embedded.health import (
    ComponentStatus,
    Health,
    Restarts,
    component_status,
    health_at,
    last_error,
    log_lines,
)
from frenzy.cli.embedded.stack_processes import (
    ProcessRecord,
    end_processes,
    kill_processes,
    marked_processes,
    read_record,
    start_session,
    write_record,
)
from frenzy.cli.embedded.tcp_ports import NoFreePortError, reserved_port
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.settings import CHECKOUT, Settings

# In the order of stopping: whoever starts work first, the server that all the others call last.
COMPONENTS: Final[dict[str, Sequence[str]]] = {
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "api-server": ("api-server",),
}
SUPERVISOR: Final = "supervisor"
START_TIMEOUT_S: Final = 240.0
_STOP_TIMEOUT_S: Final = 8.0
_SERVER_STOP_TIMEOUT_S: Final = 3.0
# A look costs time of a processor that the starting components need.
_POLL_S: Final = 0.3
_LOG_TAIL_LINES: Final = 15


class StackError(PermanentError):
    """Airflow could not be started or reached; the message says which part, and shows its last words."""

    def __init__(self, detail: str, remedy: str | None = None) -> None:
        super().__init__(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))


class Stack:
    """One home's Airflow. ``environ`` is what its processes inherit. doing: what a start or stop waits for now."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self._environ = dict(os.environ if environ is None else environ)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.doing = "another command starts or stops it"

    @property
    def port(self) -> int:
        """The port of the last start. Raises StackError when this home has never been started."""
        port = self._last_port()
        if port is None:
            raise StackError(f"No Airflow has been started in {self.settings.home}.", "Start it: frenzy up")
        return port

    @property
    def base_url(self) -> str:
        """Where the API server answers, for example ``http://127.0.0.1:8080``."""
        return base_url(self.settings, self.port)

    def password(self, user: str = ADMIN) -> str:
        """The generated password of ``admin``, ``frenzy`` or ``viewer``."""
        return secrets_of(self.settings).passwords[user]

    def environment(self) -> dict[str, str]:
        """The variables of every process of this stack; for the ``airflow`` command by hand."""
        return airflow_environment(self.settings, self.port, self._environ)

    def start(self) -> None:
        """Start what does not run and wait until all is healthy; trainings run on. Raises StackError."""
        with self._lock():
            missing = [name for name in COMPONENTS if not self._is_alive(name)]
            if len(missing) == len(COMPONENTS):
                self._start_anew()
            else:
                self._start_missing(missing)
            self._start_supervisor()

    def stop(self) -> None:
        """End every process of this home, trainings too (they write a checkpoint first)."""
        if self.settings.home.is_dir():
            with self._lock():
                self._end_airflow()
                self.doing = "trainings write their checkpoints and end"
                end_processes(marked_processes(*self._mark), grace_s=self.settings.stop_grace_s)

    def status(self, timeout_s: float = 10.0) -> tuple[ComponentStatus, ...]:
        """Each component's process and health, in the order of ``COMPONENTS``; ``timeout_s`` is Airflow's to answer."""
        health = health_at(self.base_url, timeout_s) if self._is_alive("api-server") else {}
        return tuple(self._component_status(name, health) for name in COMPONENTS)

    def is_running(self) -> bool:
        """Whether every component's process is there."""
        return all(self._is_alive(name) for name in COMPONENTS)

    def was_started(self) -> bool:
        """Whether an Airflow was ever started in this home."""
        return self._last_port() is not None

    def troubles(self) -> tuple[ComponentStatus, ...]:
        """Components of a started home that are dead, or that died since its supervisor began; asks no server."""
        known = [self._component_status(name, {}) for name in COMPONENTS] if self.was_started() else []
        return tuple(each for each in known if each.pid is None or each.restarts.count)

    def is_supervised(self) -> bool:
        """Whether a component that dies is started again."""
        return self._is_alive(SUPERVISOR)

    def is_dead(self, name: str) -> bool:
        """Whether a component has a record whose process is gone: it died, nobody ended it."""
        return self._record(name) is not None and not self._is_alive(name)

    def revive(self, name: str, environ: Mapping[str, str]) -> int | None:
        """Start a dead component with the variables of this stack; its pid, None when it is not dead any more.

        What a dead scheduler leaves of its session, tasks above all, ends first: Airflow starts them anew.
        """
        with self._lock():
            record = self._record(name)
            if record is None or self._is_alive(name):
                return None
            kill_processes(record.members())
            # Its record stays until there is a new one: should the start fail, it is still known to be dead.
            return self._start_component(name, environ)

    def last_exit(self, name: str) -> str:
        """How a dead component ended, as far as that is known here: its exit status, the last error in its log."""
        child = self._children.get(name)
        status = None if child is None else child.poll()
        known = (None if status is None else f"exit status {status}", last_error(self.log_path(name)))
        return "; ".join(filter(None, known)) or "no error in its log"

    @property
    def supervisor_state_path(self) -> Path:
        """Where the supervisor tells its health page's address and how often it had to start what."""
        return self.settings.home / "supervisor.json"

    def supervisor_state(self) -> Mapping[str, Any]:
        """The messages of the last supervisor; empty before there was one."""
        with suppress(OSError, ValueError):
            state = json.loads(self.supervisor_state_path.read_text(encoding="utf-8"))
            return state if isinstance(state, dict) else {}
        return {}

    def log_path(self, name: str) -> Path:
        """The log of one component."""
        return self.settings.log_folder / f"{name}.log"

    def _start_anew(self) -> None:
        self._end_airflow()
        try:
            self._start_on_free_port()
        except BaseException:
            self._end_airflow()
            raise

    def _start_missing(self, names: Sequence[str]) -> None:
        environ = self.environment()
        for name in reversed(names):
            self._end([name], _STOP_TIMEOUT_S)
            self._start_component(name, environ)
        self._wait_until_healthy(COMPONENTS)

    def _start_on_free_port(self) -> None:
        settings = self.settings
        try:
            with reserved_port(settings.host, settings.port, preferred=self._last_port()) as port:
                self._prepare_home(port)
                environ = self.environment()
                self._migrate(environ)
                for name in reversed(COMPONENTS):
                    self._start_component(name, environ)
                self._wait_until_healthy(["api-server"])
                # While the others still start: it takes seconds.
                self._warm_up()
                self._wait_until_healthy(COMPONENTS)
        except NoFreePortError as error:
            raise StackError(f"{error}.", "Set FRENZY_PORT to a free one, or end what uses it.") from error

    def _prepare_home(self, port: int) -> None:
        settings = self.settings
        for folder in (settings.airflow_home / "config", settings.jobs_folder, settings.log_folder):
            folder.mkdir(parents=True, exist_ok=True)
        # Airflow asks plugins for policies only when this module exists.
        (settings.airflow_home / "config/airflow_local_settings.py").touch()
        self._state_path.write_text(json.dumps({"port": port}), encoding="utf-8")

    def _migrate(self, environ: Mapping[str, str]) -> None:
        if self.settings.database is not None:
            self._run_migrations(environ)
        else:
            make_current(self.settings.airflow_home / "airflow.db", environ, self._run_migrations)

    def _run_migrations(self, environ: Mapping[str, str]) -> None:
        self.doing = "its database is made current"
        process = start_session("migrate", _airflow("db", "migrate"), environ, self.log_path("migrate"))
        if process.wait() != 0:
            raise StackError(f"Airflow's database could not be migrated.{self._end_of_log('migrate')}")

    def _start_component(self, name: str, environ: Mapping[str, str]) -> int:
        return self._start(name, _airflow(*COMPONENTS[name]), component_environment(name, environ))

    def _start_supervisor(self) -> None:
        """Start what watches over the components, unless it runs; last, so that a failed start stays one."""
        if not self.is_supervised():
            self._forget(SUPERVISOR)
            self._start(SUPERVISOR, (sys.executable, "-m", "frenzy.cli.embedded.stack_supervisor"), self.environment())

    def _start(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> int:
        # Relative paths in the specifications of include/jobs are meant from the checkout.
        process = start_session(name, command, environ, self.log_path(name), folder=CHECKOUT)
        try:
            record = write_record(self.settings.pid_folder, name, process.pid)
        except OSError:
            process.kill()  # nobody would find it again
            process.wait()
            raise
        self._children[name] = process
        return record.pid

    def _wait_until_healthy(self, names: Iterable[str]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting = list(names)
        while waiting:
            self.doing = f"{', '.join(waiting)} not healthy yet"
            for name in waiting:
                if not self._is_alive(name):
                    raise StackError(f"Airflow's {name} ended while starting.{self._end_of_log(name)}")
            if time.monotonic() > deadline:
                late = ", ".join(waiting)
                raise StackError(f"Not healthy after {START_TIMEOUT_S:.0f} s: {late}.{self._end_of_log(waiting[0])}")
            time.sleep(_POLL_S)
            health = health_at(self.base_url)
            waiting = [name for name in waiting if not self._component_status(name, health).is_healthy]

    def _warm_up(self) -> None:
        """Have the server build the task API now rather than in the first task's first call."""
        self.doing = "its server gets ready for tasks"
        with suppress(httpx.HTTPError):
            httpx.get(f"{self.base_url}/execution/health/ping", timeout=60.0, trust_env=False)

    def _component_status(self, name: str, health: Health) -> ComponentStatus:
        return component_status(name, self._record(name), self._restarts(name), health)

    def _restarts(self, name: str) -> Restarts:
        with suppress(KeyError, TypeError):
            return Restarts(**self.supervisor_state()["restarts"][name])
        return Restarts()

    def _is_alive(self, name: str) -> bool:
        child = self._children.get(name)
        if child is not None:
            child.poll()
        record = self._record(name)
        return record is not None and record.is_alive()

    def _end_airflow(self) -> None:
        """End the components and what is left of earlier ones, wherever it is; trainings run on."""
        self.doing = "its processes end"
        self._end([SUPERVISOR], _SERVER_STOP_TIMEOUT_S)
        self._end([name for name in COMPONENTS if name != "api-server"], _STOP_TIMEOUT_S)
        # Tasks and triggers talk to the server while they end; after that nobody does.
        self._end(["api-server"], _SERVER_STOP_TIMEOUT_S)
        end_processes(marked_processes(*self._mark, without=RUN_KEY_VARIABLE), grace_s=_STOP_TIMEOUT_S)

    def _end(self, names: Sequence[str], grace_s: float) -> None:
        """End components at the same time: each ends its own children, the rest is killed."""
        records = [record for name in names if (record := self._record(name)) is not None]
        end_processes((each for record in records for each in record.leader()), grace_s=grace_s)
        kill_processes(each for record in records for each in record.members())
        for name in names:
            self._forget(name)

    @property
    def _mark(self) -> tuple[str, str]:
        return STACK_MARK, str(self.settings.home)

    def _forget(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is not None:
            child.wait()
        (self.settings.pid_folder / f"{name}.json").unlink(missing_ok=True)

    def _record(self, name: str) -> ProcessRecord | None:
        return read_record(self.settings.pid_folder, name)

    def _end_of_log(self, name: str) -> str:
        lines = log_lines(self.log_path(name))
        return "".join(f"\n  {line}" for line in (*lines[-_LOG_TAIL_LINES:], f"(all of it: {self.log_path(name)})"))

    @property
    def _state_path(self) -> Path:
        return self.settings.home / "stack.json"

    def _last_port(self) -> int | None:
        with suppress(OSError, ValueError, KeyError):
            return int(json.loads(self._state_path.read_text(encoding="utf-8"))["port"])
        return None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One start or stop at a time for each home."""
        home = self.settings.home
        try:
            home.mkdir(parents=True, exist_ok=True)
            home.chmod(0o700)  # specifications, logs and the database are nobody else's
        except OSError as error:
            raise StackError(
                f"The home {home} cannot be used: {error.strerror}.", "Name another: FRENZY_HOME"
            ) from error
        with (home / "stack.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.doing = "it is looked at what runs"
            yield


def _airflow(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "airflow", *arguments)
