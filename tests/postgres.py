"""A PostgreSQL server for the tests: Debian's programs, a cluster of its own, a socket in a temporary folder.

    with running_server() as server:
        url = server.new_database()

PostgreSQL refuses to run as root, so root hands the cluster to an account without rights. No port is
opened. The server ends with the block; what was in it is removed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine, make_url, text

# A server that is there already, in whose cluster databases may be made and dropped.
SERVER_VARIABLE: Final = "FRENZY_TEST_DATABASE_URL"
MISSING: Final = f"no PostgreSQL server here: apt-get install postgresql, or name one in {SERVER_VARIABLE}"

_DEBIAN: Final = Path("/usr/lib/postgresql")
_ACCOUNTS: Final = ("postgres", "nobody")
_USER: Final = "frenzy"
_START_TIMEOUT_S: Final = 60.0
# The longest path of a Unix socket is 107 bytes; PostgreSQL's file name takes some of them.
_LONGEST_FOLDER: Final = 80
# What a crash would lose may be lost: it is a test. A benchmark wants the commits of a real one.
_CARELESS: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_SMALL: Final = {"shared_buffers": "64MB", "max_connections": "120", "listen_addresses": ""}


@dataclass(frozen=True, slots=True)
class Server:
    """A server: the URL of a database in it whose user may make others."""

    url: str

    def new_database(self, template: str = "template0") -> str:
        """The URL of a new database, a copy of the one called ``template``."""
        name = f"frenzy_{uuid.uuid4().hex[:12]}"
        self._do(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        """Drop the database at ``url``, whoever is still connected to it."""
        self._do(f'DROP DATABASE IF EXISTS "{make_url(url).database}" WITH (FORCE)')

    def _do(self, statement: str) -> None:
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()


def is_available(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a server is named, or one can be started."""
    return bool(environ.get(SERVER_VARIABLE)) or programs() is not None


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    found = [each.parent for each in _DEBIAN.glob("*/bin/initdb")]
    return max(found, key=lambda each: float(each.parent.name), default=None)


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[Server]:
    """The named server, or one that runs for the block; ``durable``: commits reach the disk."""
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        yield Server(named)
        return
    folder = _folder()
    try:
        _as_owner(
            [str(_program("initdb")), "-D", f"{folder}/data", "-U", _USER, "-A", "trust", "-E", "UTF8", "-N"], folder
        )
        process = _start(folder, {} if durable else _CARELESS)
        try:
            _wait(process, folder)
            yield Server(f"postgresql+psycopg2://{_USER}@/postgres?host={folder}")
        finally:
            # A fast shutdown: whoever is connected is disconnected.
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)
    finally:
        shutil.rmtree(folder)


def _folder() -> Path:
    """A short folder that the server's account can reach and owns."""
    for base in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if len(str(base)) <= _LONGEST_FOLDER - 20 and _reachable(base):
            break
    folder = Path(tempfile.mkdtemp(prefix="frenzy-pg-", dir=base))
    account = _account()
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


def _reachable(folder: Path) -> bool:
    ours = (folder, *folder.parents)
    return _account() is None or all(each.stat().st_mode & stat.S_IXOTH for each in ours)


def _account() -> pwd.struct_passwd | None:
    """The account that runs the server; None for our own, which is not root."""
    if os.geteuid() != 0:
        return None
    known = {each.pw_name: each for each in pwd.getpwall()}
    return next(known[name] for name in _ACCOUNTS if name in known)


def _owner() -> dict[str, Any]:
    account = _account()
    return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _environment(folder: Path) -> dict[str, str]:
    # The mark by which .ci/run ends what a killed test run has left.
    return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC", "FRENZY_STACK": str(folder)}


def _program(name: str) -> Path:
    found = programs()
    if found is None:
        raise FileNotFoundError(MISSING)
    return found / name


def _as_owner(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, env=_environment(folder), check=True, capture_output=True, **_owner())


def _start(folder: Path, tuning: Mapping[str, str]) -> subprocess.Popen[bytes]:
    values = {**_SMALL, **tuning, "unix_socket_directories": str(folder)}
    options = [part for name, value in values.items() for part in ("-c", f"{name}={value}")]
    command = [str(_program("postgres")), "-D", f"{folder}/data", *options]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **_owner(),
        )


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    ready = [str(_program("pg_isready")), "-q", "-h", str(folder)]
    while subprocess.run(ready, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            said = (folder / "log").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"PostgreSQL did not start: {said}")
        time.sleep(0.05)
