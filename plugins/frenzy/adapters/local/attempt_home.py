"""What this machine knows of one attempt's processes: who supervises them, and what was asked of them.

It lies outside the run directory, which the job itself writes.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from frenzy.adapters.local.worker_processes import Marks, boot_id, pid_namespace, start_ticks
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.core.values.run_files import RunPaths

DEFAULT_GRACE_S: Final = 30.0
_FILE_SCHEME: Final = "file://"
_LOCK: Final = "launch.lock"
_MAX_BYTES: Final = 65536
_MAX_PID: Final = 2**22  # PID_MAX_LIMIT of Linux
# Nobody starts an attempt again that ended so long ago.
_FORGOTTEN_AFTER_S: Final = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorRecord:
    """Which process supervises the attempt; pid None: it never will have one, or it is not known any more.

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
        return self.pid is not None and self.started is not None and start_ticks(self.pid) == self.started

    @property
    def leader(self) -> tuple[int, int] | None:
        """Pid and start of the session's leader, where this process can see its session."""
        here = SupervisorRecord.here()
        is_here = (self.host, self.boot, self.namespace) == (here.host, here.boot, here.namespace)
        return (self.pid, self.started) if is_here and self.pid is not None and self.started is not None else None

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

    def is_possible(self) -> bool:
        """Whether these numbers can be those of a process."""
        has_process = self.pid is None or (0 < self.pid <= _MAX_PID and self.started is not None)
        return has_process and (self.started_s is None or math.isfinite(self.started_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """deadline_s: seconds since the epoch; what still runs then is killed. None: it is not known any more."""

    deadline_s: float | None = None

    def is_possible(self) -> bool:
        return self.deadline_s is None or math.isfinite(self.deadline_s)


T = TypeVar("T", SupervisorRecord, StopRequest)


@dataclass(frozen=True, slots=True)
class AttemptHome:
    """The records of an attempt, and the folder for the output of supervisor and node launcher."""

    folder: Path
    logs: Path

    @classmethod
    def of(cls, state: Path, marks: Marks) -> AttemptHome:
        """The attempt's records in ``state``; its output lies in the run directory unless that is a remote one."""
        folder = state / f"{marks.run_key}.{marks.attempt}"
        if "://" in marks.run_dir and not marks.run_dir.startswith(_FILE_SCHEME):
            return cls(folder, folder / "logs")
        return cls(folder, Path(RunPaths(marks.run_dir.removeprefix(_FILE_SCHEME)).logs_dir(marks.attempt)))

    def open_log(self, name: str) -> BinaryIO:
        """To append to; nowhere where the run directory has no place for it."""
        # The job writes there, too: neither its links are followed nor its pipes waited for.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            return os.fdopen(os.open(self.logs / name, flags, 0o644), "ab")
        except OSError:
            return Path(os.devnull).open("ab")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive over threads and processes; the kernel lets go when the holder dies. Raises OSError."""
        self._make()
        with (self.folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def record(self) -> SupervisorRecord | None:
        """Whom the attempt was given to; one without a process where that is not known any more.

        Raises OSError where the disk does not say.
        """
        text = _read(self.folder / "process.json")
        return None if text is None else _decoded(SupervisorRecord, text) or SupervisorRecord.here()

    def put_record(self, record: SupervisorRecord) -> None:
        """Raises OSError."""
        self._make()
        _write(self.folder / "process.json", codec.dumps(record))

    def stop_request(self) -> StopRequest | None:
        """What was asked; None also where the disk does not say: whoever asks sends a signal, too."""
        try:
            text = _read(self.folder / "stop.json")
        except OSError:
            return None
        return None if text is None else _decoded(StopRequest, text) or StopRequest()

    def request_stop(self, grace_s: float) -> None:
        """Ask for the end within ``grace_s``; an earlier deadline stays. Raises OSError."""
        deadline_s = time.time() + grace_s
        before = self.stop_request()
        if before is not None and before.deadline_s is not None:
            deadline_s = min(deadline_s, before.deadline_s)
        place = self.folder / "stop.json"
        try:
            self._make()
            _write(place, codec.dumps(StopRequest(deadline_s=deadline_s)))
        except OSError:
            with suppress(OSError):  # a later deadline is not to stand in the way of this one
                place.unlink()
            raise

    def retire(self) -> None:
        """Keep only that the attempt was given to somebody, for a while. Raises OSError."""
        if self.record() is None:
            self.put_record(SupervisorRecord.here())
        for name in ("stop.json", _LOCK):
            (self.folder / name).unlink(missing_ok=True)

    def _make(self) -> None:
        """Raises OSError, also where others may write to the folder of the records."""
        private_folder(self.folder.parent)
        self.folder.mkdir(mode=0o700, exist_ok=True)


def attempts_in(state: Path) -> frozenset[tuple[str, int]]:
    """(run key, attempt) of the records in ``state`` that are not retired."""
    parts = (each.parent.name.rpartition(".") for each in state.glob(f"*/{_LOCK}"))
    return frozenset((run_key, int(attempt)) for run_key, _, attempt in parts if attempt.isdecimal())


def forget_retired(state: Path, now_s: float) -> None:
    """Remove what was retired long ago; now_s: seconds since the epoch."""
    for folder in state.iterdir():
        with suppress(FileNotFoundError):  # another supervisor forgets them, too
            if not (folder / _LOCK).exists() and folder.stat().st_mtime < now_s - _FORGOTTEN_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)


def user_folder(environ: Mapping[str, str]) -> Path:
    """This user's folder for what all installations on this machine share: XDG_STATE_HOME, or ~/.local/state.

    Raises OSError where there is none that only this user may write to.
    """
    base = Path(environ.get("XDG_STATE_HOME", ""))
    try:
        return private_folder((base if base.is_absolute() else Path.home() / ".local/state") / "frenzy")
    except RuntimeError as error:  # this user has no home
        raise FileNotFoundError(f"{error} Set XDG_STATE_HOME to a folder of this user's.") from error


def private_folder(folder: Path) -> Path:
    """``folder``, made if need be. Raises OSError where others own it or may write to it, or it is a link."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    is_private = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not is_private or not stat.S_ISDIR(found.st_mode):
        detail = "is a link, another user's, or open for others to write to; remove it or correct its mode"
        raise PermissionError(f"{folder} {detail}.")
    return folder


def _decoded(kind: type[T], text: bytes) -> T | None:
    try:
        value = codec.loads(kind, text)
    except (ContractError, RecursionError):
        return None
    return value if value.is_possible() else None


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        return b""


def _write(path: Path, text: str) -> None:
    """On the disk when it returns, whole or not at all: what a power failure leaves is no half of it."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
