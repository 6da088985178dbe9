"""Long-running processes of this machine: started in a session of their own, ended without a remainder.

A component is a session: its leader, and whatever it starts without leaving the session. A training
that was started by a task leaves it on purpose, so it outlives the component that started it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from frenzy.adapters.local.worker_processes import boot_id, start_ticks

_KILL_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """What is written down about a started process; pid, start and boot together are its identity.

    started_s: by the system's clock. ticks: since boot, which no change of that clock moves.
    """

    name: str
    pid: int
    started_s: float
    ticks: int | None
    boot: str

    def is_alive(self) -> bool:
        """Whether this very process still runs; another one with its pid does not count."""
        ticks = start_ticks(self.pid)
        return ticks is not None and (self.ticks, self.boot) == (ticks, boot_id())

    def members(self) -> list[psutil.Process]:
        """Every live process of this record's session, also when its leader is gone.

        A pid is not given out again while a session carries it, so another process with the pid
        means that the session is over.
        """
        ticks = start_ticks(self.pid)
        if self.boot != boot_id() or ticks not in (None, self.ticks):
            return []
        return [each for each in psutil.process_iter() if _session(each) == self.pid]

    def leader(self) -> list[psutil.Process]:
        """The recorded process itself, while it lives."""
        return [psutil.Process(self.pid)] if self.is_alive() else []


def start_session(
    name: str, command: Sequence[str], environ: Mapping[str, str], log: Path, *, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start ``command`` in ``folder`` as the leader of a new session, its output appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def write_record(folder: Path, name: str, pid: int) -> ProcessRecord:
    """Record a process that was just started."""
    folder.mkdir(parents=True, exist_ok=True)
    started_s = psutil.Process(pid).create_time()
    record = ProcessRecord(name=name, pid=pid, started_s=started_s, ticks=start_ticks(pid), boot=boot_id())
    draft = folder / f".{name}"
    draft.write_text(json.dumps(asdict(record)), encoding="utf-8")
    draft.replace(folder / f"{name}.json")
    return record


def read_record(folder: Path, name: str) -> ProcessRecord | None:
    """The record of ``name``, or None where there is none that can be read."""
    try:
        return ProcessRecord(**json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def marked_processes(variable: str, value: str, *, without: str | None = None) -> list[psutil.Process]:
    """Live processes started with ``variable`` set to ``value``, without this one and its ancestors.

    without: a variable; processes that have it are left out, too.
    """
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for each in psutil.process_iter():
        environ = {} if each.pid in own else _environment(each)
        if environ.get(variable) == value and without not in environ:
            found.append(each)
    return found


def end_processes(processes: Iterable[psutil.Process], *, grace_s: float) -> None:
    """Ask ``processes`` to stop (SIGTERM), kill what is left after ``grace_s``, and wait until all are gone."""
    left = _signalled(processes, signal.SIGTERM)
    kill_processes(_left_after(left, grace_s))


def kill_processes(processes: Iterable[psutil.Process]) -> None:
    """Kill ``processes`` at once and wait until they are gone."""
    _left_after(_signalled(processes, signal.SIGKILL), _KILL_TIMEOUT_S)


@contextmanager
def interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Within the block each of these signals raises KeyboardInterrupt, so that ``finally`` is reached.

    Python lets only the main thread choose that; in another one the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _left_after(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still run after ``timeout_s``; a process that only its parent has not missed yet does not."""
    deadline = time.monotonic() + timeout_s
    left = [each for each in processes if _is_running(each)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [each for each in left if _is_running(each)]
    return left


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signalled(processes: Iterable[psutil.Process], number: signal.Signals) -> list[psutil.Process]:
    reached: list[psutil.Process] = []
    for process in processes:
        try:
            process.send_signal(number)
            reached.append(process)
        except psutil.NoSuchProcess:
            continue
    return reached


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid) if _is_running(process) else None
    except OSError:
        return None


def _environment(process: psutil.Process) -> Mapping[str, str]:
    """What ``process`` was started with; empty where it is gone or not ours to read."""
    try:
        return process.environ() if _is_running(process) else {}
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return {}
