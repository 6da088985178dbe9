"""Finding processes of this machine again, through /proc: standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUN_KEY_VARIABLE: Final = "FRENZY_RUN_KEY"
ATTEMPT_VARIABLE: Final = "FRENZY_ATTEMPT"
RUN_DIR_VARIABLE: Final = "FRENZY_RUN_DIR"
# Borne by supervisors, and taken from the environment of what they start.
SUPERVISOR_VARIABLE: Final = "FRENZY_SUPERVISOR"

_PROC: Final = Path("/proc")
# Fields 3, 4, 6, 20 and 22 of proc_pid_stat(5), counted after the name.
_STATE, _PARENT, _SESSION, _THREADS, _START_TICKS = 0, 1, 3, 17, 19
_DEAD_STATES: Final = ("Z", "X", "x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """started: clock ticks since boot; with the pid it names one process of this boot and no other."""

    pid: int
    parent: int
    session: int
    started: int
    is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What tells an attempt's processes from all others: variables that each inherits.

    run_dir: two installations on one machine may have the same run key.
    """

    run_dir: str
    run_key: str
    attempt: int

    def environment(self) -> dict[str, str]:
        """The variables; who bears them is of the attempt."""
        attempt = {RUN_KEY_VARIABLE: self.run_key, ATTEMPT_VARIABLE: str(self.attempt)}
        return {**attempt, RUN_DIR_VARIABLE: self.run_dir}

    def are_in(self, environment: frozenset[str]) -> bool:
        """Whether ``environment`` bears them; processes that an earlier release started name no run directory."""
        wanted = {f"{name}={value}" for name, value in self.environment().items()}
        missing = wanted - environment
        if missing == {f"{RUN_DIR_VARIABLE}={self.run_dir}"}:
            return not any(each.startswith(f"{RUN_DIR_VARIABLE}=") for each in environment)
        return not missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The live processes of one attempt."""

    supervisors: tuple[Process, ...] = ()
    workers: tuple[Process, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.supervisors or self.workers)

    def but(self, pid: int) -> tuple[Process, ...]:
        """All of them except ``pid``."""
        return tuple(each for each in (*self.supervisors, *self.workers) if each.pid != pid)


def start_ticks(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot; None when it is gone or only a zombie."""
    process = _process(pid)
    return process.started if process is not None and process.is_alive else None


def boot_id() -> str:
    """What tells this boot of the machine from any other."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """Whose process numbers these are: containers of one machine do not see each other's."""
    return str((_PROC / "self/ns/pid").readlink())


def processes_of(marks: Marks, *, leader: tuple[int, int] | None = None, known: Iterable[Process] = ()) -> Found:
    """The live processes of an attempt: all that bear ``marks``, are of its session, or descend from one that does.

    leader: pid and start of the attempt's supervisor, which leads a session of its own. What took the marks out of
    its environment is found by its ancestors as long as the supervisor lives, which adopts orphans, and by the
    session after that. known: those of an earlier look, whose ancestors may have ended since.
    """
    table = {each.pid: each for each in map(_process, _pids()) if each is not None}
    environments = {pid: _environment(pid) for pid in table}
    roots = {pid for pid in table if marks.are_in(environments[pid])}
    roots |= {each.pid for each in known if each.pid in table and table[each.pid].started == each.started}
    if leader is not None:
        roots |= _session(table, *leader)
    family = sorted(pid for pid in _with_descendants(table, roots) if table[pid].is_alive)
    standing_over = {pid for pid in family if f"{SUPERVISOR_VARIABLE}=1" in environments[pid]}
    return Found(
        supervisors=tuple(table[pid] for pid in family if pid in standing_over),
        workers=tuple(table[pid] for pid in family if pid not in standing_over),
    )


def marks_of_all() -> frozenset[Marks]:
    """The marks of every live process that bears them all."""
    found = set()
    for pid in _pids():
        of = dict(each.partition("=")[::2] for each in _environment(pid))
        attempt = of.get(ATTEMPT_VARIABLE, "")
        if attempt.isdecimal() and RUN_KEY_VARIABLE in of and RUN_DIR_VARIABLE in of:
            found.add(Marks(run_dir=of[RUN_DIR_VARIABLE], run_key=of[RUN_KEY_VARIABLE], attempt=int(attempt)))
    return frozenset(found)


def send(process: Process, number: signal.Signals) -> bool:
    """Signal ``process``; False when it is gone, or not ours to signal."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if start_ticks(process.pid) != process.started:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def send_all(processes: Iterable[Process], number: signal.Signals) -> None:
    """Signal each of ``processes`` that is still there."""
    for each in processes:
        send(each, number)


def _session(table: dict[int, Process], pid: int, started: int) -> set[int]:
    """Who is of the session that ``pid`` led. Its number is given to nobody else while one of them lives."""
    now = table.get(pid)
    is_another = now is not None and now.started != started
    return set() if is_another else {each.pid for each in table.values() if each.session == pid}


def _with_descendants(table: dict[int, Process], roots: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for each in table.values():
        children.setdefault(each.parent, []).append(each.pid)
    family, waiting = set(roots), list(roots)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in family]
        family.update(new)
        waiting += new
    return family


def _process(pid: int) -> Process | None:
    """None when it is gone. A zombie of which a thread still runs has only ended its first one: it lives."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return Process(
        pid=pid,
        parent=int(fields[_PARENT]),
        session=int(fields[_SESSION]),
        started=int(fields[_START_TICKS]),
        is_alive=fields[_STATE] not in _DEAD_STATES or int(fields[_THREADS]) > 1,
    )


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _environment(pid: int) -> frozenset[str]:
    """The environment ``pid`` was started with; empty when it is gone or another user's."""
    try:
        return frozenset((_PROC / str(pid) / "environ").read_bytes().decode(errors="surrogateescape").split("\0"))
    except OSError:
        return frozenset()
