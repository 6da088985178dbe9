"""Finding processes of this machine again, through /proc: standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

RUN_KEY_VARIABLE: Final = "FRENZY_RUN_KEY"
ATTEMPT_VARIABLE: Final = "FRENZY_ATTEMPT"

_PROC: Final = Path("/proc")
_STATE, _START_TICKS = 0, 19  # fields 3 and 22 of proc_pid_stat(5), counted after the name
_DEAD_STATES: Final = ("Z", "X", "x")


def start_ticks(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot; None when it is gone or only a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in _DEAD_STATES else int(fields[_START_TICKS])


def boot_id() -> str:
    """What tells this boot of the machine from any other."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """Whose process numbers these are: containers of one machine do not see each other's."""
    return str((_PROC / "self/ns/pid").readlink())


def processes_of(run_key: str, attempt: int) -> tuple[int, ...]:
    """Live processes that were started for the attempt, by their environment; zombies do not count."""
    wanted = {f"{RUN_KEY_VARIABLE}={run_key}".encode(), f"{ATTEMPT_VARIABLE}={attempt}".encode()}
    return tuple(pid for pid in _pids() if wanted <= _environment(pid) and start_ticks(pid) is not None)


def send(pid: int, number: signal.Signals, *, started: int | None = None) -> bool:
    """Signal ``pid``, if it is still the process that started at ``started``; False when it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if started is not None and start_ticks(pid) != started:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def signal_all(run_key: str, attempt: int, number: signal.Signals, *, but: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Signal every process of the attempt except ``but``; those that were there."""
    found = tuple(pid for pid in processes_of(run_key, attempt) if pid not in but)
    for pid in found:
        send(pid, number, started=start_ticks(pid))
    return found


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _environment(pid: int) -> frozenset[bytes]:
    """The environment ``pid`` was started with; empty when it is gone or another user's."""
    try:
        return frozenset((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()
