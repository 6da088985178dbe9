"""The process that stands over one attempt's workers until all of them are gone.

    python -m frenzy.adapters.local.worker_supervisor --state S --run-dir D --run-key K --attempt N -- COMMAND...
    python -m frenzy.adapters.local.worker_supervisor --state S --run-dir D --run-key K --attempt N --bury

Both detach themselves. The first form is recorded as the attempt's supervisor and runs COMMAND, the
second ends the workers of a supervisor that is dead, also where nothing can be written. Both leave a
result where the workers left none.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.adapters.local.attempt_home import DEFAULT_GRACE_S, AttemptHome, StopRequest, SupervisorRecord
from frenzy.adapters.local.worker_processes import SUPERVISOR_VARIABLE, Marks, Process, processes_of, send_all
from frenzy.core.values.run_files import ExitCode, how_ended, scratch_prefix

_PR_SET_CHILD_SUBREAPER: Final = 36
_GO: Final = b"\x01"
_CRASHED: Final = 1
_TICK_S: Final = 0.5
_TICK_AT_END_S: Final = 0.05
_STRAY_GRACE_S: Final = 2.0
# The job writes the run directory: what is read there may be without end.
_LAST_WORDS_S: Final = 300
_STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The attempt, and what runs it."""

    state: Path
    marks: Marks
    num_gpus: int = 0
    gpu_memory_bytes: int = 0
    gpu_locks: Path = Path()
    grace_s: float = DEFAULT_GRACE_S
    command: tuple[str, ...] = ()

    @property
    def home(self) -> AttemptHome:
        return AttemptHome.of(self.state, self.marks)


class Wakeups:
    """Signals as bytes on a socket, so that waiting ends when one comes."""

    def __init__(self) -> None:
        self.ask_to_stop = False  # whether a signal that did has come
        self._reader, self._writer = socket.socketpair()
        for each in (self._reader, self._writer):
            each.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)

    def wait(self, timeout_s: float) -> frozenset[int]:
        """The signals that came, waiting at most ``timeout_s`` for one."""
        ready, _, _ = select.select([self._reader], [], [], timeout_s)
        came = frozenset(self._reader.recv(4096)) if ready else frozenset()
        self.ask_to_stop = self.ask_to_stop or bool(came & _STOPS)
        return came


class Supervision:
    """Runs the command, passes on a request to stop, enforces its deadline, counts the dead."""

    def __init__(self, target: Target, wakeups: Wakeups, *, leader: tuple[int, int] | None = None) -> None:
        """leader: pid and start of a supervisor that is dead, whose session's processes are the attempt's, too."""
        self._target = target
        self._wakeups = wakeups
        self._leader = leader
        self._known: tuple[Process, ...] = ()
        self._child: int | None = None
        self._status: int | None = None
        self._deadline_s: float | None = None
        self._seen: StopRequest | None = None
        self.killed = False  # at the deadline, before the command had ended

    @property
    def status(self) -> int:
        """Wait status of the command, once it has ended."""
        assert self._status is not None, "the command has ended"
        return self._status

    def start(self, environment: Mapping[str, str], inherited_fds: Sequence[int] = ()) -> None:
        """Start the command. Raises OSError."""
        self._child = _spawn(self._target, environment, inherited_fds)

    def run(self) -> None:
        """Return when the command has ended, and no process of the attempt is left."""
        while self._is_running():
            self._step()
        self.run_down()

    def run_down(self) -> None:
        """End what is left of the attempt: strays have a moment, then they are killed."""
        if self._deadline_s is None:
            self._stop_within(time.monotonic() + _STRAY_GRACE_S)
        while self._others():
            self._step()
        self._reap()

    def stop(self) -> None:
        """Pass a request to stop on to the command; whoever is left at the deadline is killed."""
        self._seen = self._target.home.stop_request()
        deadline_s = None if self._seen is None else self._seen.deadline_s
        grace_s = self._target.grace_s if deadline_s is None else deadline_s - time.time()
        self._stop_within(time.monotonic() + grace_s)
        if self._child is not None:
            os.kill(self._child, signal.SIGTERM)
        else:
            send_all(self._others(), signal.SIGTERM)

    def _step(self) -> None:
        came = self._wakeups.wait(_TICK_S if self._deadline_s is None else _TICK_AT_END_S)
        self._reap()
        # A request is also looked for in its file: whoever made it may be on another machine.
        request = self._target.home.stop_request()
        if came & _STOPS or (request is not None and request != self._seen):
            self.stop()
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            left = self._others()
            send_all(left, signal.SIGKILL)
            self.killed = self.killed or (bool(left) and self._status is None)

    def _is_running(self) -> bool:
        return self._child is not None

    def _stop_within(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s if self._deadline_s is None else min(self._deadline_s, deadline_s)

    def _others(self) -> tuple[Process, ...]:
        found = processes_of(self._target.marks, leader=self._leader, known=self._known)
        self._known = found.but(os.getpid())
        return self._known

    def _reap(self) -> None:
        """Collect dead children: the command, and orphans that were given to this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._child, self._status = None, status


def _spawn(target: Target, environment: Mapping[str, str], inherited_fds: Sequence[int]) -> int:
    """Start the command in a process group of its own, its output in the attempt's launcher log."""
    for each in inherited_fds:
        os.set_inheritable(each, True)
    with target.home.open_log("launcher.log") as log:
        return os.posix_spawn(
            target.command[0],
            target.command,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, log.fileno(), 1), (os.POSIX_SPAWN_DUP2, log.fileno(), 2)],
            setpgroup=0,
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP],
        )


def _remove_scratch(marks: Marks) -> None:
    """What a node launcher that was killed left in the folder for temporary files."""
    import shutil
    import tempfile

    with suppress(OSError):  # a full disk has no such folder
        for each in Path(tempfile.gettempdir()).glob(f"{scratch_prefix(marks.run_key, marks.attempt)}*"):
            shutil.rmtree(each, ignore_errors=True)


def supervise(target: Target, wakeups: Wakeups) -> None:
    """Run the command to its end, and leave a result if it left none."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervision = Supervision(target, wakeups)
    environment = dict(os.environ)
    del environment[SUPERVISOR_VARIABLE]

    def is_stopped() -> bool:
        wakeups.wait(0)
        return wakeups.ask_to_stop or target.home.stop_request() is not None

    try:
        fds = _claim_gpus(target, environment, is_stopped) if target.num_gpus and not is_stopped() else ()
        if is_stopped():
            _leave_result(target, ExitCode.CHECKPOINTED, "stopped on request before the workers were started")
            return
        supervision.start(environment, fds)
    except OSError as error:
        _leave_result(target, _CRASHED, f"the workers could not be started: {error}")
        return
    supervision.run()
    _leave_result(target, *_how_it_ended(supervision.status, supervision.killed))


def _how_it_ended(status: int, killed: bool) -> tuple[int, str]:
    """Exit code and sentence for a command that left no result."""
    if not os.WIFSIGNALED(status):
        code = os.WEXITSTATUS(status)
        return code or _CRASHED, f"the node launcher ended with {code} and left no result; see launcher.log"
    code = 128 + os.WTERMSIG(status)
    return code, f"the node launcher {'did not stop in time and was killed' if killed else how_ended(code)}"


def _claim_gpus(target: Target, environment: dict[str, str], cancelled: Callable[[], bool]) -> tuple[int, ...]:
    """Choose devices nobody else uses; their locks live as long as a process that inherits them."""
    from frenzy.adapters.local.local_gpus import claim_gpus

    claim = claim_gpus(
        target.num_gpus,
        target.gpu_memory_bytes,
        visible=environment.get("CUDA_VISIBLE_DEVICES"),
        locks=target.gpu_locks,
        cancelled=cancelled,
    )
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in claim.indices)
    return claim.lock_fds


def bury(target: Target, wakeups: Wakeups) -> None:
    """End the workers of an attempt whose supervisor is dead."""
    record = None
    with suppress(OSError):
        record = target.home.record()
    supervision = Supervision(target, wakeups, leader=None if record is None else record.leader)
    supervision.stop()
    supervision.run_down()
    number = signal.SIGKILL if supervision.killed else signal.SIGTERM
    _leave_result(target, 128 + number, "the supervisor was lost; its workers were stopped")


def _leave_result(target: Target, exit_code: int, detail: str) -> None:
    # Imported only at the end: a supervisor that waits for hours stays small.
    from frenzy.adapters.fallback_result import put_fallback_result
    from frenzy.adapters.files.run_store import FsspecRunStore

    signal.alarm(_LAST_WORDS_S)  # nobody else ends this process, and while it lives its GPUs are not free
    marks = target.marks
    store = FsspecRunStore(marks.run_dir.rstrip("/").rpartition("/")[0])
    put_fallback_result(store, run_key=marks.run_key, attempt=marks.attempt, exit_code=exit_code, detail=detail)


def _detach(record: Callable[[int], None]) -> Wakeups:
    """Fork; the parent has ``record`` keep the child's number and ends, the child returns after that.

    The child leads a session of its own, and listens for signals, before anybody can know its number.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        if ours.recv(1) == _GO:
            record(pid)
            ours.send(_GO)
        os._exit(0)  # the kernel closes the socket, and not before this process is past all signals
    ours.close()
    os.setsid()
    wakeups = Wakeups()
    theirs.send(_GO)
    if theirs.recv(1) != _GO:
        os._exit(_CRASHED)  # the parent died before it could record this process
    theirs.recv(1)
    theirs.close()
    return wakeups


def _parse(arguments: Sequence[str]) -> tuple[Target, bool]:
    parser = argparse.ArgumentParser(prog="python -m frenzy.adapters.local.worker_supervisor")
    parser.add_argument("--state", required=True, type=Path)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--run-key", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    parser.add_argument("--num-gpus", type=int, default=0)
    parser.add_argument("--gpu-memory-bytes", type=int, default=0)
    parser.add_argument("--gpu-locks", type=Path, default=Path())
    parser.add_argument("--grace-s", type=float, default=DEFAULT_GRACE_S)
    parser.add_argument("--bury", action="store_true")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args(arguments)
    target = Target(
        state=options.state,
        marks=Marks(run_dir=options.run_dir, run_key=options.run_key, attempt=options.attempt),
        num_gpus=options.num_gpus,
        gpu_memory_bytes=options.gpu_memory_bytes,
        gpu_locks=options.gpu_locks,
        grace_s=options.grace_s,
        command=tuple(options.command),
    )
    return target, options.bury


def main(arguments: Sequence[str]) -> int:
    """Run one of the two forms; the caller waits only until the supervisor is on its own."""
    target, is_burial = _parse(arguments)
    wakeups = _detach(lambda pid: None if is_burial else target.home.put_record(SupervisorRecord.here(pid)))
    (bury if is_burial else supervise)(target, wakeups)
    _remove_scratch(target.marks)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
