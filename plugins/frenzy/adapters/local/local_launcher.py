"""Launcher on this machine: one detached supervisor for each attempt."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from frenzy.adapters.local.attempt_home import (
    AttemptHome,
    SupervisorRecord,
    attempts_in,
    forget_retired,
    user_folder,
)
from frenzy.adapters.local.worker_environment import helper_environment, worker_environment
from frenzy.adapters.local.worker_processes import (
    SUPERVISOR_VARIABLE,
    Found,
    Marks,
    marks_of_all,
    processes_of,
    send_all,
)
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import RunStore, WorkersAccount, WorkersState

log = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 60.0
_SUPERVISOR: Final = "frenzy.adapters.local.worker_supervisor"
TRAINER_COMMAND: Final = (sys.executable, "-m", "frenzy.trainer.launch")


class LocalLauncher:
    """Runs workers as processes of this machine; every node of a placement is this machine.

    state: folder for what is known of processes, one for each installation, outside all run directories.
    environ: what workers may inherit, and where secrets are looked up. trainer_command: the node
    launcher, which is given ``--run-dir D --attempt N`` and starts the ranks of all nodes.
    """

    def __init__(
        self,
        runs: RunStore,
        *,
        state: Path,
        environ: Mapping[str, str],
        trainer_command: Sequence[str] = TRAINER_COMMAND,
    ) -> None:
        self._runs = runs
        self._state = state
        self._environ = dict(environ)
        self._trainer_command = tuple(trainer_command)
        self._never: set[Marks] = set()  # stopped before their start, where the disk did not take it

    def launch(self, spec: LaunchSpec) -> str:
        """Start the workers, unless they were started or stopped before; a reference for people.

        Raises PermanentError when they cannot be started, OSError where nobody could find them again.
        """
        _check_image(spec)
        marks = _marks(spec)
        home = self._home(marks)
        with home.locked():
            record = home.record() or self._found_record(marks) or self._start(spec, home)
        return record.reference

    def state(self, spec: LaunchSpec) -> WorkersState:
        """See WorkersState. UNKNOWN when the workers were started where this process cannot look.

        Processes decide, and files only where none lives. A request to stop that was made, but whose
        supervisor has died, is enforced from here.
        """
        return self.account(spec).state

    def account(self, spec: LaunchSpec) -> WorkersAccount:
        """The state, and since when they run: whatever else there is to know, the supervisor puts into the result."""
        marks = _marks(spec)
        try:
            record = self._home(marks).record()
        except OSError as error:
            log.warning("The record of %s attempt %d could not be read: %s", marks.run_key, marks.attempt, error)
            return WorkersAccount(state=WorkersState.ALIVE if _find(marks) else WorkersState.UNKNOWN)
        started_s = None if record is None else record.started_s
        return WorkersAccount(state=self._look(marks, record), running_since_s=started_s)

    def remove(self, run_key: str, attempt: int) -> None:
        """Forget an attempt that has ended; a process of it that lives nevertheless is ended first."""
        marks = Marks(run_dir=self._runs.run_dir(run_key), run_key=run_key, attempt=attempt)
        home = self._home(marks)
        found = self._found(marks)
        if found:
            self._end(marks, found, grace_s=0.0)
        elif home.folder.is_dir():
            home.retire()
            forget_retired(self._state, time.time())

    def remains(self) -> tuple[tuple[str, int], ...]:
        """Attempts with a record, or a live process, of this installation."""
        alive = {
            (each.run_key, each.attempt) for each in marks_of_all() if each.run_dir == self._runs.run_dir(each.run_key)
        }
        return tuple(sorted(attempts_in(self._state) | alive))

    def stop(self, spec: LaunchSpec, *, grace_s: float) -> None:
        """Ask the workers to end, and end them after ``grace_s``. Workers not yet started never will be.

        Nothing of it needs the disk. Where it does not take the request, supervisors grant their own grace, and
        only this launcher remembers never to start the workers.
        """
        marks = _marks(spec)
        home = self._home(marks)
        try:
            home.request_stop(grace_s)
        except OSError as error:
            log.warning("The request to stop %s could not be written: %s", home.folder.name, error)
            self._never.add(marks)
        found = self._found(marks)
        if not found:
            with _locked_if_possible(home):
                found = self._found(marks)
                if not found:
                    self._never_start(marks, home)
        if found:
            self._end(marks, found, grace_s=grace_s)

    def _home(self, marks: Marks) -> AttemptHome:
        return AttemptHome.of(self._state, marks)

    def _look(self, marks: Marks, record: SupervisorRecord | None) -> WorkersState:
        where = WorkersState.NOT_STARTED if record is None else _whereabouts(record)
        if record is not None and where is WorkersState.ALIVE and record.is_alive:
            return WorkersState.ALIVE
        # Twice: a process that just starts another program shows no environment, and one look is not atomic.
        found = _find(marks, record) or _find(marks, record)
        if not found:
            return WorkersState.GONE if where is WorkersState.ALIVE or marks in self._never else where
        self._see_to(marks, record, found)
        return WorkersState.ALIVE

    def _see_to(self, marks: Marks, record: SupervisorRecord | None, found: Found) -> None:
        """Record again what was lost, and enforce what the supervisor that is gone was asked."""
        home = self._home(marks)
        if record is None:
            with suppress(OSError):
                home.put_record(_record_of(found))
        if not found.supervisors and home.stop_request() is not None:
            try:
                self._bury(marks)
            except PermanentError as error:
                log.warning("The workers of %s could not be ended: %s", home.folder.name, error)

    def _found(self, marks: Marks) -> Found:
        record = None
        with suppress(OSError):
            record = self._home(marks).record()
        return _find(marks, record)

    def _found_record(self, marks: Marks) -> SupervisorRecord | None:
        """A record of workers that run although none is kept, or that are never to start; else None."""
        found = _find(marks)
        if found:
            return _record_of(found)
        return SupervisorRecord.here() if marks in self._never else None

    def _never_start(self, marks: Marks, home: AttemptHome) -> None:
        try:
            if home.record() is None:
                home.put_record(SupervisorRecord.here())
        except OSError:
            self._never.add(marks)

    def _end(self, marks: Marks, found: Found, *, grace_s: float) -> None:
        """Signal whoever can pass it on, or else see to it that somebody does."""
        if grace_s <= 0:
            send_all(found.workers, signal.SIGKILL)
        send_all(found.supervisors, signal.SIGTERM)
        if found.supervisors:
            return
        try:
            self._bury(marks, grace_s=grace_s)
        except PermanentError:
            send_all(found.workers, signal.SIGTERM)
            raise

    def _start(self, spec: LaunchSpec, home: AttemptHome) -> SupervisorRecord:
        environment = {**worker_environment(spec, self._environ), **_supervisor_environment(_marks(spec))}
        if self._runs.spec(spec.run_key, spec.attempt) is None:
            self._runs.put_spec(spec)
        arguments = [*self._target(_marks(spec)), *_gpus(spec, self._environ), "--", *self._command(spec)]
        self._run_supervisor(arguments, environment, home)
        record = home.record()
        if record is None:
            raise _not_started("it ended at once", home)
        return record

    def _bury(self, marks: Marks, *, grace_s: float | None = None) -> None:
        """Give the workers of a dead supervisor a new one, none of theirs, that ends them.

        grace_s: for where no request can be read. Raises PermanentError.
        """
        home = self._home(marks)
        environment = {**helper_environment(self._environ), **_supervisor_environment(marks)}
        grace = () if grace_s is None else ("--grace-s", str(grace_s))
        with _locked_if_possible(home):
            if not self._found(marks).supervisors:
                self._run_supervisor([*self._target(marks), *grace, "--bury"], environment, home)

    def _target(self, marks: Marks) -> tuple[str, ...]:
        attempt = ("--run-dir", marks.run_dir, "--run-key", marks.run_key, "--attempt", str(marks.attempt))
        return ("--state", str(self._state), *attempt)

    def _command(self, spec: LaunchSpec) -> tuple[str, ...]:
        return (*self._trainer_command, "--run-dir", spec.run_dir, "--attempt", str(spec.attempt))

    def _run_supervisor(self, arguments: Sequence[str], environment: Mapping[str, str], home: AttemptHome) -> None:
        """Run the supervisor's module, which returns once the supervisor proper is on its own."""
        with home.open_log("supervisor.log") as output:
            try:
                subprocess.run(
                    [sys.executable, "-m", _SUPERVISOR, *arguments],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    check=True,
                    timeout=_START_TIMEOUT_S,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise _not_started(str(error), home) from error


def _check_image(spec: LaunchSpec) -> None:
    """Raises PermanentError for a script in an image: nothing here runs one."""
    if spec.job.workload is not None and spec.job.workload.image is not None:
        detail = f"workload.image is {spec.job.workload.image!r}, and workers on this machine run in no image."
        remedy = "Leave workload.image out, or submit the job where Frenzy launches on Kubernetes."
        raise PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))


def _marks(spec: LaunchSpec) -> Marks:
    return Marks(run_dir=spec.run_dir, run_key=spec.run_key, attempt=spec.attempt)


def _supervisor_environment(marks: Marks) -> dict[str, str]:
    return {**marks.environment(), SUPERVISOR_VARIABLE: "1"}


def _find(marks: Marks, record: SupervisorRecord | None = None) -> Found:
    return processes_of(marks, leader=None if record is None else record.leader)


def _record_of(found: Found) -> SupervisorRecord:
    """Of processes that were found without one; since when they run is not known."""
    pid = found.supervisors[0].pid if found.supervisors else None
    return replace(SupervisorRecord.here(pid), started_s=None)


@contextmanager
def _locked_if_possible(home: AttemptHome) -> Iterator[None]:
    """Where the lock cannot be had for want of a file, no launch can have it either."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(home.locked())
        yield


def _whereabouts(record: SupervisorRecord) -> WorkersState:
    """ALIVE when ``record`` speaks of this machine and boot, so that a look at /proc can tell."""
    here = SupervisorRecord.here()
    if record.pid is None or (record.host == here.host and record.boot != here.boot):
        return WorkersState.GONE
    is_here = (record.host, record.namespace) == (here.host, here.namespace)
    return WorkersState.ALIVE if is_here else WorkersState.UNKNOWN


def _gpus(spec: LaunchSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The locks' folder is not left to the supervisor: it has the job's environment."""
    if spec.gpu.kind is DeviceKind.VIRTUAL:
        return ()
    locks = user_folder(environ) / "gpus"
    wanted = ("--num-gpus", str(spec.placement.num_gpus), "--gpu-memory-bytes", str(spec.gpu.memory_bytes))
    return (*wanted, "--gpu-locks", str(locks))


def _not_started(why: str, home: AttemptHome) -> PermanentError:
    detail = f"The supervisor of the workers could not be started: {why}."
    remedy = f"See {home.logs / 'supervisor.log'}."
    return PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))
