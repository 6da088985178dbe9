"""The local files of one attempt's supervisor: who it is, and what was asked of it."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.adapters.local.processes import boot_id, pid_namespace, start_ticks
from frenzy.core import codec
from frenzy.core.launch import RunPaths

DEFAULT_GRACE_S: Final = 30.0
_FILE_SCHEME: Final = "file://"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorRecord:
    """Which process supervises the attempt; pid None: it was stopped before it was started.

    started: clock ticks since boot; started_s: seconds since the epoch. namespace: whose process numbers ``pid``
    belongs to.
    """

    host: str
    boot: str
    namespace: str
    pid: int | None = None
    started: int | None = None
    started_s: float | None = None

    @property
    def reference(self) -> str:
        return f"local:{self.host}:{self.pid or 'never-started'}"

    @property
    def is_alive(self) -> bool:
        """On its own machine and boot: whether the process is still the same."""
        return self.pid is not None and start_ticks(self.pid) == self.started

    @classmethod
    def here(cls, pid: int | None = None) -> SupervisorRecord:
        """A record of this machine; of the process ``pid``, if one is given, as it starts."""
        started, started_s = (None, None) if pid is None else (start_ticks(pid), time.time())
        return cls(
            host=socket.gethostname(),
            boot=boot_id(),
            namespace=pid_namespace(),
            pid=pid,
            started=started,
            started_s=started_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """deadline_s: seconds since the epoch; what still runs then is killed."""

    deadline_s: float


@dataclass(frozen=True, slots=True)
class AttemptHome:
    """The folder of an attempt on this machine."""

    folder: Path

    @classmethod
    def of(cls, run_dir: str, run_key: str, attempt: int) -> AttemptHome:
        """The attempt's folder in the run directory, or, for a remote one, in the temporary folder."""
        if "://" not in run_dir or run_dir.startswith(_FILE_SCHEME):
            return cls(Path(RunPaths(run_dir.removeprefix(_FILE_SCHEME)).attempt_dir(attempt)))
        return cls(state_folder() / run_key / f"attempt-{attempt}")

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def make(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive over threads and processes; the kernel lets go when the holder dies."""
        with (self.folder / "launch.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def record(self) -> SupervisorRecord | None:
        text = _read(self.folder / "process.json")
        return None if text is None else codec.loads(SupervisorRecord, text)

    def put_record(self, record: SupervisorRecord) -> None:
        _write(self.folder / "process.json", codec.dumps(record))

    def stop_request(self) -> StopRequest | None:
        text = _read(self.folder / "stop.json")
        return None if text is None else codec.loads(StopRequest, text)

    def request_stop(self, grace_s: float) -> StopRequest:
        """Ask for the end within ``grace_s``; an earlier deadline stays."""
        deadline_s = time.time() + grace_s
        before = self.stop_request()
        request = StopRequest(deadline_s=deadline_s if before is None else min(deadline_s, before.deadline_s))
        _write(self.folder / "stop.json", codec.dumps(request))
        return request


def state_folder() -> Path:
    """This user's folder on this machine for what concerns the machine alone."""
    folder = Path(tempfile.gettempdir()) / f"frenzy-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(text)
    temporary.replace(path)
